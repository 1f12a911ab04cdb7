"""Columns with one row per prompt that grow as higher prompt indices appear."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike


class GrowingArray:
    """An array (rows, *columns) whose missing rows all hold ``fill``; growing costs O(1) per row, amortised."""

    def __init__(self, fill: float, dtype: DTypeLike, columns: tuple[int, ...] = ()) -> None:
        self._fill = fill
        self.data = np.full((0, *columns), fill, dtype=dtype)

    def reserve(self, rows: int) -> None:
        """Make ``data`` hold at least ``rows`` rows."""
        if rows > len(self.data):
            self.data = self.rows(max(rows, 2 * len(self.data), 64))

    def rows(self, count: int) -> np.ndarray:
        """The first ``count`` rows, (count, *columns), not to be written: a view where held, else a padded copy."""
        if count <= len(self.data):
            return self.data[:count]
        padded = np.full((count, *self.data.shape[1:]), self._fill, dtype=self.data.dtype)
        padded[: len(self.data)] = self.data
        return padded

    def reset(self, indices: np.ndarray) -> None:
        """Set these rows back to ``fill``; rows that were never held are left out."""
        self.data[indices[indices < len(self.data)]] = self._fill

    def load(self, data: np.ndarray) -> None:
        """Hold exactly these rows (n, *columns).

        Raises:
            ValueError: they are of another type or width.
        """
        if data.dtype != self.data.dtype or data.shape[1:] != self.data.shape[1:]:
            expected = f"{self.data.dtype} rows of shape {self.data.shape[1:]}"
            raise ValueError(f"expected {expected}; got {data.dtype} of shape {data.shape[1:]}")
        self.data = data.copy()

    def copy(self) -> GrowingArray:
        other = GrowingArray(self._fill, self.data.dtype, self.data.shape[1:])
        other.data = self.data.copy()
        return other
