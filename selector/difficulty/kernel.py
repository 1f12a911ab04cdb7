"""What attention's heavy arithmetic is computed with: projections of the pool, and attention to references.

``NumpyKernel`` is the reference; ``selector.difficulty.torch_kernel`` does the same on a device of torch's. Both work
in float32 on tiles of one shape (``selector.difficulty.tiles``), so that a prompt's figures depend on its own row and
its place in its tile, not on how many others there are. What differs between kernels is rounding: on one kernel, device
and version of its libraries the same input gives the same bits; across kernels, difficulties agree to ``TOLERANCE``.

A kernel keeps projected rows where it computes; the type ``Rows`` is its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from selector.difficulty.adapter import Projection
from selector.difficulty.tiles import TILE_ROWS

TOLERANCE = 1e-4
"""Most that two kernels' difficulties of one prompt differ; where no score exceeds 70, it is a tenth of that."""

# Scores of so many references and a tile are 32 MiB.
BLOCK = 4096

CPU, TORCH_CPU = "cpu", "torch-cpu"
DEVICES = re.compile(r"cpu|torch-cpu|cuda(:[0-9]{1,2})?")
"""``cpu`` is numpy's, ``torch-cpu`` is torch's, which is there to be compared with, and the others are GPUs.

torch keeps a device's number in 8 bits: to it, cuda:256 is cuda:0.
"""

Rows = Any


class DeviceUnavailable(ValueError):
    """There is no such device, or it cannot be used."""


class Kernel(Protocol):
    """See the module."""

    def projection(self, side: Projection) -> Callable[[np.ndarray], Rows]:
        """One side of an adapter, ready to project (n, w) float32 rows to (n, h)."""
        ...

    def host(self, rows: Rows) -> np.ndarray:
        """Projected rows as an array, (n, h) float32."""
        ...

    def take(self, tiles: Sequence[Rows], prompts: np.ndarray) -> np.ndarray:
        """(n, h) float32 rows of these prompts, (n,) indices into the pool whose tiles these are."""
        ...

    def attend(self, tiles: Sequence[Rows], as_reference: np.ndarray, measured: np.ndarray, plain: bool) -> np.ndarray:
        """``sum_i a_i d_i`` with ``a = softmax(tile . references / sqrt(h))``, (len(tiles) * 2048,) float64.

        Args:
            tiles: each (2048, h).
            as_reference: (K, h) float32.
            measured: (K,) d_i.
            plain: no score is so large that its exponential overflows or loses bits.
        """
        ...


class NumpyKernel:
    """On the CPU, with as many threads as BLAS has."""

    def projection(self, side: Projection) -> Callable[[np.ndarray], np.ndarray]:
        return side

    def host(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def take(self, tiles: Sequence[np.ndarray], prompts: np.ndarray) -> np.ndarray:
        places = zip(prompts // TILE_ROWS, prompts % TILE_ROWS, strict=True)
        return np.stack([tiles[tile][row] for tile, row in places])

    def attend(
        self, tiles: Sequence[np.ndarray], as_reference: np.ndarray, measured: np.ndarray, plain: bool
    ) -> np.ndarray:
        # Of many references a block at a time: all scores of a tile would not stay in a cache.
        blocks = blocks_of(as_reference, measured)
        room = np.empty(TILE_ROWS * min(len(measured), BLOCK), dtype=np.float32)
        difficulty = np.empty(len(tiles) * TILE_ROWS)
        for index, tile in enumerate(tiles):
            sums = np.zeros((2, TILE_ROWS))
            largest = np.full(TILE_ROWS, -np.inf, dtype=np.float32)
            for block, sums_of_block in blocks:
                scores = room[: TILE_ROWS * block.shape[1]].reshape(TILE_ROWS, -1)
                np.matmul(tile, block, out=scores)
                if not plain:
                    # What was summed so far had a smaller largest score subtracted.
                    before, largest = largest, np.maximum(largest, scores.max(axis=1))
                    sums *= np.exp(before - largest)
                    scores -= largest[:, None]
                np.exp(scores, out=scores)
                sums += sums_of_block @ scores.T
            difficulty[index * TILE_ROWS : (index + 1) * TILE_ROWS] = sums[0] / sums[1]
        return difficulty


def blocks_of(as_reference: np.ndarray, measured: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """At most ``BLOCK`` references each: (h, k) float32 keys over sqrt(h), and (2, k) float32 of d_i and of ones."""
    keys = np.ascontiguousarray(as_reference.T) / np.float32(np.sqrt(as_reference.shape[1]))
    sums_of = np.stack([measured, np.ones_like(measured)]).astype(np.float32)
    return [
        (np.ascontiguousarray(keys[:, start : start + BLOCK]), sums_of[:, start : start + BLOCK])
        for start in range(0, len(measured), BLOCK)
    ]


NUMPY = NumpyKernel()


def make_kernel(device: str, threads: int = 1) -> Kernel:
    """The kernel of one of ``DEVICES``; all but that of ``cpu`` import torch.

    Args:
        threads: of torch's, on the CPU.

    Raises:
        DeviceUnavailable: see there.
    """
    if not DEVICES.fullmatch(device):
        raise DeviceUnavailable(f"expected cpu, torch-cpu, cuda or cuda:N; got {device!r}")
    if device == CPU:
        return NUMPY
    from selector.difficulty.torch_kernel import TorchKernel

    return TorchKernel("cpu" if device == TORCH_CPU else device, threads)
