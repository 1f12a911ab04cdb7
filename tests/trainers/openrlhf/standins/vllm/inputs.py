"""In the place of vLLM's prompts."""

from typing import Any


def TokensPrompt(**fields: Any) -> dict[str, Any]:
    """A prompt of token ids."""
    return fields
