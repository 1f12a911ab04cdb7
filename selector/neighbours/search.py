"""Nearest neighbours by inner product, with faiss: exact, on the CPU or an NVIDIA GPU.

Approximate indices lose here: what is searched is too small for them to save much, and a neighbour that an inverted
file misses moves a prediction by up to 0.2 (docs/prediction.md, ``python -m bench.neighbours``).
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

CPU, CUDA = "cpu", "cuda"


class NeighboursUnavailable(ValueError):
    """The device is not there, or faiss cannot use it."""


def check_device(device: str) -> None:
    """Refuse a device that cannot search.

    Raises:
        NeighboursUnavailable: it is neither ``cpu`` nor ``cuda``, or faiss is built without CUDA or sees no GPU.
    """
    if device not in (CPU, CUDA):
        raise NeighboursUnavailable(f"expected cpu or cuda; got {device!r}")
    if device == CPU:
        return
    faiss = _faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        raise NeighboursUnavailable(
            "cuda needs faiss for GPUs: install curriculum-selector[gpu] instead of [server] "
            "(faiss-gpu-cu12 and faiss-cpu cannot be installed together), or use cpu"
        )
    if faiss.get_num_gpus() < 1:
        raise NeighboursUnavailable("cuda needs an NVIDIA GPU; faiss sees none")


def nearest(queries: np.ndarray, base: np.ndarray, count: int, device: str = CPU) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` rows of the base with the largest inner product with each query, largest first.

    Args:
        queries: (m, w) float32.
        base: (n, w) float32.
        count: k > 0.
        device: ``cpu`` or ``cuda``; see ``check_device``.

    Returns:
        Inner products (m, min(k, n)) float32 and rows (m, min(k, n)) int64.

    Raises:
        NeighboursUnavailable: the device cannot search.
    """
    count = min(count, len(base))
    if not count or not len(queries):
        return np.zeros((len(queries), count), dtype=np.float32), np.zeros((len(queries), count), dtype=np.int64)
    queries, base = (np.ascontiguousarray(rows, dtype=np.float32) for rows in (queries, base))
    faiss = _faiss()
    if device == CPU:
        products, rows = faiss.knn(queries, base, count, metric=faiss.METRIC_INNER_PRODUCT)
    else:
        check_device(device)
        products, rows = faiss.knn_gpu(
            faiss.StandardGpuResources(), queries, base, count, metric=faiss.METRIC_INNER_PRODUCT
        )
    return products, rows


def normalised(rows: np.ndarray) -> np.ndarray:
    """The rows at length 1, float32; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _faiss() -> Any:
    return importlib.import_module("faiss")
