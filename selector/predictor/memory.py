"""Arrays in anonymous memory that another process can map: no file, no name, gone with the last process that has it.

A container's /dev/shm is often too small for a pool's embeddings; what ``memfd_create`` gives counts as the process's
own memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

# Of every array in a region: a cache line, and a multiple of every item.
_ALIGNMENT = 64


class Region(mmap.mmap):
    """Memory that can be sent.

    Attributes:
        fd: its descriptor, closed with the last array in it.
    """

    fd: int

    def __del__(self) -> None:
        os.close(self.fd)


def region(size: int) -> Region:
    """So many bytes, all zeros.

    Raises:
        OSError: there is no memory.
    """
    fd = _descriptor()
    try:
        os.ftruncate(fd, max(size, 1))
        made = Region(fd, max(size, 1))
    except BaseException:
        os.close(fd)
        raise
    made.fd = fd
    return made


def _descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("selector", os.MFD_CLOEXEC)
    # Elsewhere a file without a name does, be it on a disk.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def received(fd: int) -> mmap.mmap:
    """The region behind a descriptor that came from another process, read-only; closes the descriptor."""
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        # The mapping holds one of its own.
        os.close(fd)


def placed(memory: mmap.mmap, offset: int, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """The array at an offset of a region."""
    return np.frombuffer(memory, dtype=dtype, count=int(np.prod(shape)), offset=offset).reshape(shape)


def room(nbytes: int) -> int:
    """Bytes that an array takes in a region."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def empty(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """A writable array in a region of its own, so that it can be sent without a copy."""
    kind = np.dtype(dtype)
    return placed(region(int(np.prod(shape)) * kind.itemsize), 0, shape, kind)


def region_of(array: np.ndarray) -> Region | None:
    """What ``empty`` put all of the array into; None = it was made otherwise, or is a part."""
    owner: object = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, Region) and array.flags.c_contiguous and len(owner) == max(array.nbytes, 1):
        return owner
    return None
