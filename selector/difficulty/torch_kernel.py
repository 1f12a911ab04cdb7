"""Attention's arithmetic with torch, on a GPU or on the CPU: see ``selector.difficulty.kernel``.

Projected tiles stay on the device. Products are float32 throughout, without TF32, and cuBLAS is held to algorithms that
give the same bits each time. Importing this module imports torch, which takes seconds and hundreds of megabytes: only
the predictor's process does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

# Read when CUDA starts: without it cuBLAS may give other bits in another call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor
from torch.nn import functional

from selector.difficulty.adapter import LayerNorm, Projection
from selector.difficulty.kernel import DeviceUnavailable, blocks_of
from selector.difficulty.tiles import TILE_ROWS
from selector.difficulty.tiles import tiles as tiled
from selector.torch_devices import unusable

_EPS = 1e-5


class TorchKernel:
    """On one device."""

    def __init__(self, device: str, threads: int = 1) -> None:
        """
        Args:
            device: as torch names it: cpu, cuda, cuda:1.
            threads: of torch in this process, on the CPU.

        Raises:
            DeviceUnavailable: see there.
        """
        self._device = _usable(device)
        # Neither TF32 nor bfloat16; process-wide, and what others, or environment variables, said before.
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)

    def projection(self, side: Projection) -> Callable[[np.ndarray], Tensor]:
        norm_in, norm_out = self._norm(side.norm_in), self._norm(side.norm_out)
        layers = [(self._sent(each.weight), self._sent(each.bias)) for each in side.layers]

        def tile(rows: np.ndarray) -> Tensor:
            projected = norm_in(self._sent(rows))
            if not layers:
                return projected
            for weight, bias in layers[:-1]:
                projected = functional.gelu(functional.linear(projected, weight, bias))
            return norm_out(functional.linear(projected, *layers[-1]))

        def project(rows: np.ndarray) -> Tensor:
            with torch.inference_mode():
                return torch.cat([tile(each) for each in tiled(rows)])[: len(rows)]

        return project

    def host(self, rows: Tensor) -> np.ndarray:
        found: np.ndarray = rows.cpu().numpy()
        return found

    def take(self, tiles: Sequence[Tensor], prompts: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            places = zip((prompts // TILE_ROWS).tolist(), (prompts % TILE_ROWS).tolist(), strict=True)
            return self.host(torch.stack([tiles[tile][row] for tile, row in places]))

    def attend(
        self, tiles: Sequence[Tensor], as_reference: np.ndarray, measured: np.ndarray, plain: bool
    ) -> np.ndarray:
        with torch.inference_mode():
            blocks = [(self._sent(keys), self._sent(sums_of)) for keys, sums_of in blocks_of(as_reference, measured)]
            # One copy to the host at the end: each would wait for all that was asked of the device before.
            difficulty = torch.empty(len(tiles) * TILE_ROWS, dtype=torch.float64, device=self._device)
            for index, tile in enumerate(tiles):
                difficulty[index * TILE_ROWS : (index + 1) * TILE_ROWS] = _attended(tile, blocks, plain)
            found: np.ndarray = difficulty.cpu().numpy()
            return found

    def _norm(self, norm: LayerNorm) -> Callable[[Tensor], Tensor]:
        weight, bias = self._sent(norm.weight), self._sent(norm.bias)
        return lambda rows: functional.layer_norm(rows, rows.shape[1:], weight, bias, _EPS)

    def _sent(self, array: np.ndarray) -> Tensor:
        # A copy also on the CPU: what comes through shared memory is read-only, and goes away.
        return torch.tensor(array, device=self._device)


def _attended(tile: Tensor, blocks: Sequence[tuple[Tensor, Tensor]], plain: bool) -> Tensor:
    """(2048,) float64; the same sums as in ``NumpyKernel.attend``."""
    sums = torch.zeros((2, len(tile)), dtype=torch.float64, device=tile.device)
    largest = torch.full((len(tile),), -torch.inf, device=tile.device)
    for keys, sums_of in blocks:
        scores = tile @ keys
        if not plain:
            before, largest = largest, torch.maximum(largest, scores.amax(dim=1))
            sums *= torch.exp(before - largest)
            scores -= largest[:, None]
        sums += sums_of @ scores.exp_().T
    return sums[0] / sums[1]


def _usable(device: str) -> torch.device:
    reason = unusable(device)
    if reason is not None:
        raise DeviceUnavailable(reason)
    return torch.device(device)
