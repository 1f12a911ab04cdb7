"""Space kept back for deleting: on a full disk even that needs some, for the logs that make it all or nothing."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.storage")

_T = TypeVar("_T")

# Less is of no use.
_LEAST_BYTES = 64 << 10


class Reserve:
    """A file that takes up space, and gives it up for what frees more."""

    def __init__(self, path: Path, size: int) -> None:
        """Take the space if it is there; ``size`` 0 = none is kept back."""
        self._path = path
        self._size = size
        self._changing = threading.Lock()
        if size:
            self._take()

    def spend(self, work: Callable[[], _T]) -> _T:
        """Do work that frees space; if the storage fails, once more with the reserve released.

        Raises:
            ServiceError: as the work does.
        """
        try:
            return work()
        except ServiceError as error:
            if error.reason is not Reason.STORAGE_FAILED:
                raise
            with self._changing:
                if not self._release():
                    raise
                try:
                    return work()
                finally:
                    self._take()

    def _take(self) -> None:
        """Take the space, or as much as there is of it by halves."""
        size = self._size
        try:
            while size >= _LEAST_BYTES and not self._grown(size):
                size //= 2
        except OSError as error:
            _log.warning("no space is kept back for deleting runs when the disk is full: %s: %s", self._path, error)
        else:
            if size < self._size:
                _log.warning("only %d bytes are kept back for deleting runs: the disk is full", size)

    def _grown(self, size: int) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            there = os.fstat(descriptor).st_size
            if there < size:
                try:
                    os.posix_fallocate(descriptor, 0, size)
                except OSError as error:
                    os.ftruncate(descriptor, there)
                    if error.errno != errno.ENOSPC:
                        raise
                    return False
            return True
        finally:
            os.close(descriptor)

    def _release(self) -> bool:
        try:
            there = self._path.stat().st_size > 0
            os.truncate(self._path, 0)
        except OSError:
            return False
        return there
