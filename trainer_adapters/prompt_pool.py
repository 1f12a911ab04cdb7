"""The prompts of a training, under ids that stay the same from one start of the training to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer_adapters.checks import AdapterError, unique_ids

# 80 bits: among a billion prompts two meet by chance once in a million pools.
_DIGEST_BYTES = 10


@dataclass(frozen=True)
class PromptPool:
    """Prompts as parallel columns.

    Attributes:
        prompt_ids: unique.
        texts: what the model sees; the service embeds them.
        domains: a tag per prompt, or None.
    """

    prompt_ids: tuple[str, ...]
    texts: tuple[str, ...]
    domains: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise AdapterError("prompts: expected at least one, got none")
        unique_ids(self.prompt_ids, "prompt ids")

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.prompt_ids)

    @classmethod
    def from_texts(cls, texts: Iterable[str], domains: Sequence[str | None] | None = None) -> PromptPool:
        """Prompts named by their content."""
        listed = tuple(texts)
        return cls(content_ids(listed), listed, None if domains is None else tuple(domains))

    def uniform(self, count: int, seed: int, step: int, exclude: Iterable[str] = ()) -> tuple[str, ...]:
        """``count`` different prompts drawn uniformly, fewer where there are no more; the same again for one step."""
        left = set(exclude)
        candidates = [prompt_id for prompt_id in self.prompt_ids if prompt_id not in left]
        rng = np.random.default_rng((seed, step))
        chosen = rng.choice(len(candidates), size=min(count, len(candidates)), replace=False)
        return tuple(candidates[index] for index in chosen)


def content_ids(texts: Sequence[str]) -> tuple[str, ...]:
    """An id for each text that does not depend on where in the data it stands: a digest of its content, and from the
    second prompt with the same content on, how often it has occurred before.
    """
    occurred: dict[str, int] = {}
    ids = []
    for text in texts:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
        before = occurred.get(digest, 0)
        occurred[digest] = before + 1
        ids.append(f"{digest}-{before}" if before else digest)
    return tuple(ids)
