"""How far each store has got, kept apart from the stores: one that has lost its newest changes shows at the next start.

A store that was cut off, or put back from an older copy, looks like one that was written to less: SQLite and LMDB fall
back to the last state that is whole. The mark is written after every change, and is not flushed to the disk: after a
power loss it may be behind its store, never ahead.

    watermark    per store 8 bytes little-endian, how far it has got, and their crc32 in 8 bytes
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from enum import IntEnum
from pathlib import Path

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.storage")

_SLOT_BYTES = 16


class Store(IntEnum):
    """The stores that are watched, by their place in the file."""

    DATABASE = 0
    REPLAY = 1


class Watermark:
    """See the module docstring. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        self._path = path
        self._changing = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._descriptor, 0, _SLOT_BYTES * len(Store))
            self._marks = {store: self._read(store) for store in Store}
        except OSError as error:
            raise ServiceError(Reason.STORAGE_FAILED, f"cannot use {path}: {error}") from error

    def check(self, store: Store, behind: int, file: Path) -> None:
        """Refuse a store that is behind its mark by ``behind`` changes; 0 or less = it is not.

        Raises:
            ServiceError: STORAGE_FAILED, naming the file.
        """
        if behind > 0:
            raise ServiceError(
                Reason.STORAGE_FAILED,
                f"{file} has lost its newest {behind} change(s), which had been answered for: it was cut off, damaged "
                f"or replaced by an older copy; restore a backup, or delete {self._path} to go on without them",
            )

    def mark(self, store: Store) -> int:
        """How far the store had got."""
        return self._marks[store]

    def advance(self, store: Store, reached: int) -> None:
        """The store has got so far, durably. A mark that cannot be written is logged only."""
        with self._changing:
            self._marks[store] = reached
            value = reached.to_bytes(8, "little")
            try:
                os.pwrite(self._descriptor, value + _checksum(value), _SLOT_BYTES * store)
            except OSError as error:
                _log.warning("cannot write %s: %s", self._path, error)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self, store: Store) -> int:
        return _mark(os.pread(self._descriptor, _SLOT_BYTES, _SLOT_BYTES * store))


def read_marks(path: Path) -> dict[Store, int]:
    """How far the stores had got, as the file says now; nothing is written, not even the file if there is none.

    Raises:
        OSError: it cannot be read.
    """
    slots = path.read_bytes() if path.exists() else b""
    return {store: _mark(slots[_SLOT_BYTES * store :][:_SLOT_BYTES]) for store in Store}


def _mark(slot: bytes) -> int:
    value, checksum = slot[:8], slot[8:]
    # New, or damaged: then nothing is known.
    return int.from_bytes(value, "little") if checksum == _checksum(value) else 0


def _checksum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(8, "little")
