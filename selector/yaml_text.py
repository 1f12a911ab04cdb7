"""YAML that people write: only plain values, and one kind of error for whatever cannot be read."""

from __future__ import annotations

from typing import Any

import yaml


def load(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The document.

    Raises:
        yaml.YAMLError: it cannot be read. PyYAML itself lets a tag that does not fit its value (``!!int x``), a day
            that is none, or nesting without end pass as other exceptions, whose messages quote the text.
    """
    try:
        return yaml.load(text, Loader=loader)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise yaml.YAMLError("a value is not what its tag says, or it is nested too deeply") from error
