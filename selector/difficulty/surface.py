"""Cheap features of a prompt's text: lengths and counts of characters that tell a mathematical text's kind.

On mathematics these rival a general text embedder as predictors of difficulty, and they cost microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log1p
from string import ascii_uppercase

import numpy as np

SURFACE_FEATURES = (
    "characters",
    "words",
    "digits",
    "backslashes",
    "operators",
    "capitals",
    "question marks",
    "lines",
    "distinct words",
)
"""Names of the columns. All but the last are ``log(1 + count)``; the last is ``log(distinct words / words)``, <= 0."""

_DIGITS = "0123456789"
_OPERATORS = "=+-*/^<>_"
_KINDS = (_DIGITS.encode(), _OPERATORS.encode(), ascii_uppercase.encode())


def _counts(text: str) -> tuple[int, int, int]:
    """Digits, operators and capitals."""
    if text.isascii():
        # What is left without them is shorter: one pass of C each.
        raw = text.encode()
        digits, operators, capitals = (len(raw) - len(raw.translate(None, kind)) for kind in _KINDS)
        return digits, operators, capitals
    return sum(map(text.count, _DIGITS)), sum(map(text.count, _OPERATORS)), sum(map(str.isupper, text))


def _row(text: str) -> tuple[float, ...]:
    words = text.split()
    digits, operators, capitals = _counts(text)
    return (
        log1p(len(text)),
        log1p(len(words)),
        log1p(digits),
        log1p(text.count("\\")),
        log1p(operators),
        log1p(capitals),
        log1p(text.count("?")),
        log1p(text.count("\n")),
        log(max(len(set(words)), 1) / max(len(words), 1)),
    )


def surface_features(texts: Sequence[str | None]) -> np.ndarray:
    """The nine features of each text, (N, 9) float32; a row of NaN for None and for the empty text."""
    features = np.full((len(texts), len(SURFACE_FEATURES)), np.nan, dtype=np.float32)
    for index, text in enumerate(texts):
        if text:
            features[index] = _row(text)
    return features
