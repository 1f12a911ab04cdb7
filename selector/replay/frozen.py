"""The replay store as of one moment, read only: what backup and verify look at while a server writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import lmdb

from selector.replay.errors import StorageFailed
from selector.replay.records import run_of, run_prefix, sealed
from selector.replay.store import FORMAT, OLD_FORMAT, TABLES

_LAST_RUN = 2**64 - 1
_PREFIX = len(run_prefix(0))


class FrozenReplay:
    """One read transaction on a store that another process may be writing to.

    LMDB keeps what the transaction sees until ``close``: pages freed meanwhile are not used again, so the file of a
    busy server grows.
    """

    def __init__(self, path: Path, written_to: bool) -> None:
        """Begin the transaction.

        Args:
            written_to: whether a server may have the store open; without, no lock file is touched.

        Raises:
            StorageFailed: it cannot be opened, or has another format.
        """
        self._path = path
        try:
            if not (path / "data.mdb").is_file():
                raise OSError(f"there is no {path / 'data.mdb'}")
            # Size 0 is the one that the store was written with.
            self._env = lmdb.open(
                str(path), readonly=True, create=False, map_size=0, max_dbs=len(TABLES) + 1, lock=written_to
            )
        except (lmdb.Error, OSError) as error:
            raise StorageFailed(f"replay store {path} cannot be opened: {error}") from error
        try:
            # A reader that was killed would keep its pages from being used again.
            self._env.reader_check()
            self._txn = self._env.begin()
            found = bytes(self._txn.get(b"format") or b"none")
            self._old = found == OLD_FORMAT
            if found not in (OLD_FORMAT, FORMAT):
                raise StorageFailed(
                    f"replay store {path} has format {found.decode(errors='replace')}; expected {FORMAT.decode()}"
                )
        except lmdb.Error as error:
            self._env.close()
            raise StorageFailed(f"replay store {path} cannot be read: {error}") from error
        except BaseException:
            self._env.close()
            raise

    @cached_property
    def _tables(self) -> dict[str, Any]:
        # Handles end with the transaction they were opened in, so not before the view is settled.
        return {name: self._env.open_db(name.encode(), txn=self._txn, create=False) for name in TABLES}

    @property
    def newest(self) -> bool:
        """Whether nothing has been written since the view was taken."""
        return bool(self._env.info()["last_txnid"] == self._txn.id())

    @property
    def number(self) -> int:
        """Of the newest transaction."""
        return int(self._txn.id())

    def renew(self) -> None:
        """Let go of the view, and take one of this moment; only before anything is read."""
        self._txn.abort()
        self._txn = self._env.begin()

    def copy(self, target: Path) -> None:
        """A compact copy of the view in a new directory, flushed to the disk."""
        target.mkdir(mode=0o700)
        try:
            self._env.copy(str(target), compact=True, txn=self._txn)
            with open(target / "data.mdb", "rb") as file:
                os.fsync(file.fileno())
        except (lmdb.Error, OSError) as error:
            raise StorageFailed(f"replay store {self._path} cannot be copied to {target}: {error}") from error

    def runs(self) -> list[int]:
        """Ids of the runs of which anything is there, ascending."""
        found: set[int] = set()
        for table in self._tables.values():
            cursor = self._txn.cursor(db=table)
            there = cursor.first()
            while there:
                run = run_of(bytes(cursor.key()))
                found.add(run)
                there = run < _LAST_RUN and cursor.set_range(run_prefix(run + 1))
        return sorted(found)

    def meta(self, run: int) -> bytes | None:
        """A run's counters as stored."""
        value = self._txn.get(run_prefix(run), db=self._tables["meta"])
        return None if value is None else self._as_stored("meta", bytes(value))

    def entries(self, table: str, run: int) -> Iterator[tuple[int, bytes]]:
        """(position or step, value) of a run's entries in a table, in order."""
        prefix = run_prefix(run)
        cursor = self._txn.cursor(db=self._tables[table])
        if not cursor.set_range(prefix):
            return
        for stored, value in cursor.iternext():
            stored = bytes(stored)
            if not stored.startswith(prefix):
                return
            yield int.from_bytes(stored[_PREFIX:], "big"), self._as_stored(table, bytes(value))

    def _as_stored(self, table: str, value: bytes) -> bytes:
        """With the checksum that records of the old format lack."""
        return sealed(value) if self._old and table != "payloads" else value

    def close(self) -> None:
        """Let go of the view."""
        self._txn.abort()
        self._env.close()
