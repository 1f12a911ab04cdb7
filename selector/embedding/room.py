"""How many bytes all embedding spaces of a directory may take together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from selector.embedding.errors import EmbeddingQuotaExceeded


class Room:
    """Counts what is taken; threads may share it."""

    def __init__(self, max_bytes: int, used: int) -> None:
        """``used``: bytes that are there already."""
        self.max_bytes = max_bytes
        self._used = used
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """A write of so many bytes happens inside the block; a block that raises has written nothing.

        Raises:
            EmbeddingQuotaExceeded: before the block is entered.
        """
        with self._lock:
            if self._used + size > self.max_bytes:
                raise EmbeddingQuotaExceeded(self.max_bytes, self._used + size)
            self._used += size
        try:
            yield
        except BaseException:
            with self._lock:
                self._used -= size
            raise
