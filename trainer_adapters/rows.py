"""Between a trainer's padded tensors and arrays of each rollout's own length; numpy on both sides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


def first_number(values: Iterable[float]) -> float:
    """The first that is not NaN, NaN where there is none: the outcome of a rollout that has several names for it."""
    return next((value for value in values if not math.isnan(value)), math.nan)


def unpadded(values: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """One array per row of ``values`` (rows, width): what stands where ``mask``, of the same shape, is not 0."""
    if values.shape != mask.shape:
        raise ValueError(f"mask: expected shape {values.shape}, got {mask.shape}")
    return [row[kept != 0] for row, kept in zip(values, mask, strict=True)]


def padded(rows: Sequence[np.ndarray], fill: float, width: int = 0, left: bool = False) -> np.ndarray:
    """(rows, width) from arrays of different lengths.

    Args:
        fill: what stands where a row has ended.
        width: at least this; longer rows make it wider.
        left: the padding goes to the left of a row.
    """
    width = max([width, *map(len, rows)])
    result = np.full((len(rows), width), fill, dtype=rows[0].dtype if rows else np.float32)
    for index, row in enumerate(rows):
        if len(row):
            result[index, slice(-len(row), None) if left else slice(0, len(row))] = row
    return result
