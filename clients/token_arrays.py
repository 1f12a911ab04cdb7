"""What a trainer hands over, as the arrays of a rollout group: checked, in the protocol's element types.

Inputs are anything numpy reads: arrays, lists, tensors on the CPU. Every error is a ``ValueError`` that names the field
and the rollout, what was expected and what was got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clients.messages import array_of, listed, shown

INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
UINT8 = np.dtype("u1")


def token_ids(values: Any, path: str) -> np.ndarray:
    """(length,) int32 from integers that fit; an empty input of any type is an empty array."""
    array = _vector(values, path)
    if array.size == 0:
        return array.astype(INT32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: expected integers, got {array.dtype}")
    if array.dtype != INT32 and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError(f"{path}: expected 32-bit integers, got values in [{array.min()}, {array.max()}]")
    return array.astype(INT32, copy=False)


def check_token_ids(ids: np.ndarray, path: str, prompt_id: str, mask: np.ndarray | None = None) -> None:
    """None is negative; where the mask is 0, which the policy did not draw, they may be anything.

    Raises:
        ValueError: names the first that is.
    """
    if ids.size == 0 or ids.min() >= 0:
        return
    wrong = ids < 0 if mask is None else (ids < 0) & (mask != 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        where = "" if mask is None else " where the mask is 1"
        raise ValueError(f"{path}[{first}]: expected a token id >= 0{where}, got {ids[first]} (prompt {prompt_id!r})")


def log_probs(values: Any, path: str) -> np.ndarray:
    """(length,) float32; whether they are finite and not positive is the service's to check, under the mask."""
    return _floats(values, path).astype(FLOAT32, copy=False)


def loss_mask(values: Any, path: str) -> np.ndarray:
    """(length,) uint8 from booleans, integers or floats that are all 0 or 1."""
    array = _vector(values, path)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: expected only 0 and 1, got {shown(values)}")
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{path}: expected only 0 and 1, got {array.dtype} values {np.unique(array)[:5].tolist()}")
    return array.astype(UINT8, copy=False)


def scores(values: Any, path: str) -> np.ndarray:
    """(n,) float64 rewards or outcomes."""
    return _floats(values, path).astype(np.float64, copy=False)


def per_rollout(
    values: Sequence[Any], lengths: np.ndarray, convert: Callable[[Any, str], np.ndarray], path: str
) -> list[np.ndarray]:
    """One array per rollout, each as long as its response."""
    parts = listed(values, path, "arrays")
    if len(parts) != len(lengths):
        raise ValueError(f"{path}: expected one array per rollout ({len(lengths)}), got {len(parts)}")
    arrays = [convert(part, f"{path}[{index}]") for index, part in enumerate(parts)]
    for index, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(
                f"{path}[{index}]: expected {length} values as in response_token_ids[{index}], got {len(array)}"
            )
    return arrays


def _floats(values: Any, path: str) -> np.ndarray:
    array = _vector(values, path)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: expected numbers, got {array.dtype}")
    return array


def _vector(values: Any, path: str) -> np.ndarray:
    array = array_of(values, path, "a one-dimensional array")
    if array.ndim != 1:
        raise ValueError(f"{path}: expected a one-dimensional array, got shape {array.shape}")
    return array
