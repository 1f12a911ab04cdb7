"""Row-wise work on the pool in fixed, zero-padded tiles of 2048 rows, and the caches built on it.

A BLAS product's last bits depend on the shape of its operands. With one fixed tile shape a prompt's figures depend
only on its own row and its place in its tile: a pool that grows leaves every earlier prompt's figures bit for bit as
they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar
from weakref import ref

import numpy as np

TILE_ROWS = 2048

Value = TypeVar("Value")


def tiles(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The (n, w) rows as contiguous float32 tiles (2048, w), the last one filled up with zeros."""
    for start in range(0, len(rows), TILE_ROWS):
        part = rows[start : start + TILE_ROWS]
        if len(part) == TILE_ROWS:
            yield np.ascontiguousarray(part, dtype=np.float32)
        else:
            padded = np.zeros((TILE_ROWS, rows.shape[1]), dtype=np.float32)
            padded[: len(part)] = part
            yield padded


def digest(array: np.ndarray) -> bytes:
    """Identifies the array's content, shape and type."""
    contiguous = np.ascontiguousarray(array)
    hasher = sha256(repr((contiguous.shape, contiguous.dtype.str)).encode())
    hasher.update(contiguous.reshape(-1).view(np.uint8).data)
    return hasher.digest()


class Same:
    """A key that equals only one of the very same object, which it does not keep alive."""

    def __init__(self, value: object) -> None:
        self._value = ref(value)

    def __eq__(self, other: object) -> bool:
        value = self._value()
        return isinstance(other, Same) and value is not None and value is other._value()

    __hash__ = None  # type: ignore[assignment]


class LatestValue(Generic[Value]):
    """A cache of one entry, for values that are a function of their key alone.

    Copies of an estimator share it, so that what one of them computes in another thread serves the others: the entry
    is replaced in one assignment and never altered.
    """

    def __init__(self) -> None:
        self._entry: tuple[object, Value] | None = None

    def get(self, key: object, build: Callable[[], Value]) -> Value:
        entry = self._entry
        if entry is None or entry[0] != key:
            entry = (key, build())
            self._entry = entry
        return entry[1]


@dataclass(frozen=True)
class _ProjectedPool(Generic[Value]):
    version: int
    shape: tuple[int, ...]
    by_digest: dict[bytes, Value]
    order: tuple[bytes, ...]

    @property
    def projected(self) -> list[Value]:
        return [self.by_digest[key] for key in self.order]


class TileProjectionCache(Generic[Value]):
    """The projected pool, tile by tile.

    Under an unchanged version nothing is looked at. Under another one, each tile whose embeddings are as before is
    kept, so that new prompts or fresh signals never cost a projection of the whole pool.
    """

    def __init__(self, projection: Callable[[np.ndarray], Value]) -> None:
        self._projection = projection
        self._pool: _ProjectedPool[Value] | None = None

    def get(self, version: int, embeddings: np.ndarray) -> list[Value]:
        """Projected tiles, each (2048, h) float32, of the (N, w) embeddings, as the projection gives them."""
        held = self._pool
        if held is not None and held.version == version and held.shape == embeddings.shape:
            return held.projected
        known = held.by_digest if held is not None else {}
        order: list[bytes] = []
        by_digest: dict[bytes, Value] = {}
        for tile in tiles(embeddings):
            key = digest(tile)
            order.append(key)
            if key not in by_digest:
                by_digest[key] = known[key] if key in known else self._projection(tile)
        pool = _ProjectedPool(version, embeddings.shape, by_digest, tuple(order))
        self._pool = pool
        return pool.projected
