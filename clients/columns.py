"""A further column of a rollout group: any array or bytes that the service keeps and returns unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from clients.messages import array_of, build, shown
from selector.v1 import replay_service_pb2

OPAQUE = "bytes"


@dataclass(frozen=True)
class Column:
    """Content of a column, undecoded.

    Attributes:
        dtype: numpy's name of the element type (little-endian), or ``"bytes"`` for opaque content.
        shape: shape of the whole array; for opaque content made here its number of bytes.
        data: the elements in C order.
        lengths: extent of each rollout along the first axis; empty when the column is not split by rollout.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)
    lengths: tuple[int, ...] = ()

    @cached_property
    def value(self) -> np.ndarray | bytes:
        """The whole column: a read-only view of the data, or the bytes themselves.

        Raises:
            ValueError: numpy does not know the element type (``bfloat16`` needs ``import ml_dtypes``), or the data do
                not have the stated shape. ``data`` stays readable.
        """
        if self.dtype == OPAQUE:
            return self.data
        try:
            dtype = np.dtype(self.dtype).newbyteorder("<")
        except TypeError as error:
            raise ValueError(f"dtype: numpy does not know {self.dtype!r}; read the column's data instead") from error
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def rollout(self, index: int) -> np.ndarray | bytes:
        """One rollout's part of a split column, as a view (bytes are copied).

        Raises:
            ValueError: the column is not split by rollout, or its lengths do not count bytes.
            IndexError: there is no such rollout.
        """
        if not self.lengths:
            raise ValueError("the column is not split by rollout; read it whole")
        if self.dtype == OPAQUE and sum(self.lengths) != len(self.data):
            raise ValueError("the lengths of this opaque column do not count bytes; read it whole")
        index = range(len(self.lengths))[index]
        start = sum(self.lengths[:index])
        return self.value[start : start + self.lengths[index]]


def make_column(content: Any, rollouts: int, path: str) -> Column:
    """A column of an array, of bytes, or of a list with one array (or bytes) per rollout.

    Arrays of a list are joined along their first axis, so they may differ only there.

    Raises:
        ValueError: names ``path``, what was expected and what was got.
    """
    if isinstance(content, Column):
        return content
    if isinstance(content, (bytes, bytearray, memoryview)):
        return Column(OPAQUE, (len(bytes(content)),), bytes(content))
    if not isinstance(content, (list, tuple)):
        return _array_column(array_of(content, path, "an array"), (), path)
    if len(content) != rollouts:
        raise ValueError(f"{path}: expected one entry per rollout ({rollouts}), got {len(content)}")
    if all(isinstance(part, (bytes, bytearray)) for part in content):
        data = b"".join(content)
        return Column(OPAQUE, (len(data),), data, tuple(len(part) for part in content))
    parts = [array_of(part, f"{path}[{index}]", "an array") for index, part in enumerate(content)]
    _check_parts(parts, path)
    return _array_column(np.concatenate(parts), tuple(len(part) for part in parts), path)


def check_column(column: Column, rollouts: int, path: str) -> None:
    """Refuses a column whose parts do not add up.

    Raises:
        ValueError: names ``path``, what was expected and what was got.
    """
    # Columns may be made by hand, and their content is not looked into again.
    build(replay_service_pb2.Column, path, dtype=column.dtype, shape=column.shape, lengths=column.lengths)
    if not isinstance(column.data, bytes):
        raise ValueError(f"{path}.data: expected bytes, got {shown(column.data)}")
    if column.lengths and len(column.lengths) != rollouts:
        raise ValueError(f"{path}.lengths: expected one per rollout ({rollouts}), got {len(column.lengths)}")
    if not column.lengths:
        return
    # The shape of opaque content is its sender's affair and may be missing.
    whole = column.shape[0] if column.shape else len(column.data) if column.dtype == OPAQUE else None
    if sum(column.lengths) != whole:
        raise ValueError(f"{path}.lengths: expected a sum of {whole}, the first axis, got {sum(column.lengths)}")


def _check_parts(parts: Sequence[np.ndarray], path: str) -> None:
    first = parts[0]
    for index, part in enumerate(parts):
        if part.ndim == 0:
            raise ValueError(f"{path}[{index}]: expected an array with at least one axis, got a scalar")
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{path}[{index}]: expected {first.dtype} of shape (*, {', '.join(map(str, first.shape[1:]))}) as in "
                f"rollout 0, got {part.dtype} of shape {part.shape}"
            )


def _array_column(array: np.ndarray, lengths: tuple[int, ...], path: str) -> Column:
    name = array.dtype.name
    little = array.dtype.newbyteorder("<")
    try:
        readable = np.dtype(name).newbyteorder("<") == little and not little.hasobject
    except TypeError:
        readable = False
    if not readable:
        raise ValueError(f"{path}: expected numbers or bytes, got an array of {array.dtype}")
    return Column(name, array.shape, array.astype(little, copy=False).tobytes(), lengths)
