"""Messages between two processes of one server: pickled values, whose large arrays travel as shared memory.

Both ends run the same code and are parent and child, so what comes in can be trusted.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import pickle
import socket
import struct
from contextlib import suppress
from typing import Any

import numpy as np

from selector.predictor import memory

_HEAD = struct.Struct("<QI")
# Copying less than this through the socket costs less than mapping it.
_SMALLEST_SHARED = 1 << 16
# SCM_MAX_FD of Linux is 253.
_MOST_REGIONS = 250


class Closed(Exception):
    """The other process is gone, or its end was closed."""


class Channel:
    """One end of a stream socket; one thread sends and one receives at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, value: Any) -> None:
        """Send a value; arrays of 64 KiB and more arrive read-only.

        Raises:
            Closed: nobody can receive it.
            OSError: there is no memory.
        """
        raw = io.BytesIO()
        sharing = _Sharing(raw)
        sharing.dump(value)
        regions = sharing.regions()
        try:
            self._end.sendall(_HEAD.pack(raw.tell(), len(regions)))
            for start in range(0, len(regions), _MOST_REGIONS):
                part = regions[start : start + _MOST_REGIONS]
                socket.send_fds(self._end, [b"\0"], [each.fd for each in part])
            self._end.sendall(raw.getbuffer())
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self) -> Any:
        """The next value.

        Raises:
            Closed: there will be none.
            OSError: there is no memory, or no descriptor; what comes next cannot be told any more.
        """
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        regions: list[mmap.mmap] = []
        while len(regions) < count:
            wanted = min(count - len(regions), _MOST_REGIONS)
            try:
                said, found, flags, _address = socket.recv_fds(self._end, 1, wanted)
            except OSError as error:
                raise Closed(str(error)) from error
            if not said:
                raise Closed("the other end was closed")
            regions += _mapped(found)
            # Without room for a descriptor the system leaves it out, and what follows would be read as something else.
            if flags & socket.MSG_CTRUNC or len(found) != wanted:
                raise OSError(errno.EMFILE, "descriptors of shared memory were lost: too many are open")
        return _Placing(io.BytesIO(self._read(size)), regions).load()

    def close(self) -> None:
        """Both sides' next call raises ``Closed``, also one that waits."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _read(self, size: int) -> bytearray:
        held = bytearray(size)
        rest = memoryview(held)
        while rest:
            try:
                count = self._end.recv_into(rest)
            except OSError as error:
                raise Closed(str(error)) from error
            if not count:
                raise Closed("the other end was closed")
            rest = rest[count:]
        return held


def _mapped(descriptors: list[int]) -> list[mmap.mmap]:
    """All of them, or none."""
    left = list(descriptors)
    try:
        return [memory.received(left.pop(0)) for _ in descriptors]
    finally:
        for descriptor in left:
            os.close(descriptor)


class _Sharing(pickle.Pickler):
    """Large arrays go into one region together, but for those that are in one of their own."""

    def __init__(self, raw: io.BytesIO) -> None:
        super().__init__(raw, protocol=5)
        self._packed: list[tuple[int, np.ndarray]] = []
        self._size = 0
        self._own: list[memory.Region] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not np.ndarray or value.nbytes < _SMALLEST_SHARED or value.dtype.hasobject:
            return None
        own = memory.region_of(value)
        if own is not None:
            self._own.append(own)
            return (len(self._own), 0, value.shape, value.dtype.str)
        self._packed.append((self._size, value))
        self._size += memory.room(value.nbytes)
        return (0, self._packed[-1][0], value.shape, value.dtype.str)

    def regions(self) -> list[memory.Region]:
        """The one of packed arrays, and the others."""
        if not self._packed and not self._own:
            return []
        packed = memory.region(self._size)
        for offset, array in self._packed:
            memory.placed(packed, offset, array.shape, array.dtype)[...] = array
        return [packed, *self._own]


class _Placing(pickle.Unpickler):
    def __init__(self, raw: io.BytesIO, regions: list[mmap.mmap]) -> None:
        super().__init__(raw)
        self._regions = regions

    def persistent_load(self, pid: Any) -> np.ndarray:
        region, offset, shape, dtype = pid
        return memory.placed(self._regions[region], offset, shape, dtype)
