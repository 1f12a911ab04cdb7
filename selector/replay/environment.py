"""The LMDB environment of the replay store: opened without trusting its file, and opened again when LMDB gives it up.

LMDB follows the page numbers in its file without asking whether they make sense: a file that was cut off or damaged can
end the process. It is therefore read by a process of its own first (``probe``), where there is one.

When writing the page that makes a transaction valid fails, LMDB refuses all further writing. It puts the former page
back, so what was acknowledged is there: the environment is opened again, once nobody reads.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from selector.replay.errors import StorageFailed

_log = logging.getLogger("selector.replay")

_MOST_READERS = 1024
# LMDB's lock file: a head, and a slot of 64 bytes for every reader.
_LOCK_BYTES = 64 * (_MOST_READERS + 8)


class Environment:
    """See the module docstring.

    Attributes:
        lmdb: the environment as it is open now.
        tables: handles of its named tables.
    """

    def __init__(
        self, path: Path, map_bytes: int, tables: Sequence[str], written: Callable[[int], None] = lambda number: None
    ) -> None:
        """Open or create.

        Args:
            written: told the number of every transaction that is durable.

        Raises:
            StorageFailed: it cannot be opened, or its file is damaged.
        """
        self._path = path
        self._map_bytes = map_bytes
        self._names = tuple(tables)
        self._written = written
        # Threads in a read transaction; none may be when the environment is closed.
        self._readers = 0
        self._free = threading.Condition()
        self._writing = threading.Lock()
        self._broken = False
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (path / "data.mdb").exists():
                _probe(path)
            _allocate(path / "lock.mdb", _LOCK_BYTES)
            self._open()
        except (lmdb.Error, OSError) as error:
            raise StorageFailed(f"replay store {path} cannot be opened: {error}") from error

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """A consistent view.

        Raises:
            StorageFailed: the file cannot be read.
        """
        if self._broken:
            with self._writing:
                self._reopen()
        with self._free:
            self._readers += 1
        try:
            with self.lmdb.begin() as txn:
                yield txn
        except lmdb.Error as error:
            raise StorageFailed(f"the replay store {self._path} could not be read: {error}") from error
        finally:
            with self._free:
                self._readers -= 1
                self._free.notify_all()

    @contextmanager
    def write(self) -> Iterator[lmdb.Transaction]:
        """One durable transaction: everything or, when anything raises, nothing. Writers take turns.

        Raises:
            StorageFailed: it could not be written.
        """
        with self._writing:
            try:
                self._reopen()
                # A backup or verify that was killed would for ever keep freed pages from being used again.
                self.lmdb.reader_check()
                with self.lmdb.begin(write=True) as txn:
                    yield txn
                self._written(self.lmdb.info()["last_txnid"])
            except lmdb.MapFullError as error:
                raise StorageFailed(
                    f"the replay store is full: its map size is {self._map_bytes} bytes; start the server with a "
                    "larger --replay-map-bytes"
                ) from error
            except (lmdb.Error, OSError) as error:
                self._broken = self._broken or self._given_up()
                raise StorageFailed(f"the replay store could not be written: {error}") from error

    def info(self) -> dict[str, int]:
        """LMDB's own figures: ``last_txnid``, ``last_pgno`` and so on, and ``psize``."""
        with self._free:
            figures: Any = self.lmdb.info()
            return {**figures, "psize": self.lmdb.stat()["psize"]}

    def close(self) -> None:
        """Close; nothing may be used afterwards."""
        self.lmdb.close()

    def _open(self) -> None:
        self.lmdb = lmdb.open(
            str(self._path), map_size=self._map_bytes, max_dbs=len(self._names) + 1, max_readers=_MOST_READERS
        )
        self.tables: dict[str, Any] = {name: self.lmdb.open_db(name.encode()) for name in self._names}

    def _given_up(self) -> bool:
        try:
            self.lmdb.begin().abort()
        except lmdb.PanicError:
            return True
        return False

    def _reopen(self) -> None:
        """Open anew if LMDB has given the environment up; the caller writes, or nobody does."""
        if not self._broken:
            return
        with self._free:
            self._free.wait_for(lambda: self._readers == 0)
            self.lmdb.close()
            try:
                self._open()
            except (lmdb.Error, OSError) as error:
                raise StorageFailed(f"the replay store {self._path} cannot be opened again: {error}") from error
            self._broken = False
        _log.warning("the replay store was opened again after a failed write")


def _allocate(path: Path, size: int) -> None:
    """Take the space of a file that is mapped: on a full disk, touching a page without space ends the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _probe(path: Path) -> None:
    """Raise StorageFailed when the file cannot be read to its end."""
    script = Path(__file__).with_name("probe.py")
    done = subprocess.run([sys.executable, "-I", str(script), str(path)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    ending = signal.Signals(-done.returncode).name if done.returncode < 0 else done.stderr.strip().splitlines()[-1:]
    how = f"reading it ended the process with {ending}" if done.returncode < 0 else " ".join(ending)
    raise StorageFailed(
        f"{path / 'data.mdb'} is damaged or cut off ({how}); put it back from a backup, or move the directory "
        f"{path} away to go on without rollouts to replay"
    )
