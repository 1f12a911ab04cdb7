"""Where groups, samples and pushes are kept on disk: one LMDB environment for all runs.

Every change is one transaction, flushed to disk before it returns: what was written is there after a crash, and what
was not finished has left no trace. A write that fails (disk full, map full, I/O error) raises ``StorageFailed`` and
changes nothing. LMDB admits one writing transaction at a time, whichever thread it comes from; readers never wait.

Deleting frees pages for later writes; the file does not shrink. The environment must not be used across a fork of the
process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from selector.replay.environment import Environment
from selector.replay.errors import StorageFailed
from selector.replay.history import Mark, PushEvent, SampleEvent
from selector.replay.records import (
    RunMeta,
    decode_groups,
    decode_mark,
    decode_meta,
    decode_push,
    decode_sample,
    encode_groups,
    encode_mark,
    encode_meta,
    encode_push,
    encode_sample,
    key,
    run_of,
    run_prefix,
    sealed,
    unsealed,
)
from selector.storage.watermark import Store, Watermark

# Address space only; the file grows with what is stored.
DEFAULT_MAP_BYTES = 256 << 30
# 2: all records but payloads, which have a checksum in their group's, end with one.
FORMAT = b"2"
OLD_FORMAT = b"1"
_LAST_RUN = 2**64 - 1
_PAYLOADS = "payloads"
TABLES = ("meta", "groups", "payloads", "samples", "pushes", "marks")
# Payload bytes copied by one transaction of a fork: LMDB holds what a transaction writes in memory.
_COPY_BYTES = 64 << 20
# Entries deleted by one transaction: on a full disk a small one still finds room.
_ENTRIES_PER_PIECE = 2000


@dataclass(frozen=True)
class StoredRun:
    """Everything of a run but its payloads and samples, in order of the log."""

    meta: RunMeta
    rows: np.ndarray
    identities: Mapping[int, tuple[str, str]]
    marks: tuple[Mark, ...]
    pushes: tuple[PushEvent, ...]


class ReplayStore:
    """The environment.

    Raises:
        StorageFailed: it cannot be opened, or was written in another format.
    """

    def __init__(self, path: Path, map_bytes: int = DEFAULT_MAP_BYTES, watermark: Watermark | None = None) -> None:
        """``watermark``: tells whether the newest transactions are missing; None = nobody knows."""
        written = (lambda number: None) if watermark is None else partial(watermark.advance, Store.REPLAY)
        self._env = Environment(path, map_bytes, TABLES, written)
        try:
            if watermark is not None:
                behind = watermark.mark(Store.REPLAY) - self._env.info()["last_txnid"]
                watermark.check(Store.REPLAY, behind, path / "data.mdb")
            with self._env.read() as txn:
                found = bytes(txn.get(b"format") or b"")
            if found not in (b"", OLD_FORMAT, FORMAT):
                said = found.decode(errors="replace")
                raise StorageFailed(f"replay store {path} has format {said}; expected {FORMAT.decode()}")
            if found != FORMAT:
                with self._env.write() as txn:
                    if found == OLD_FORMAT:
                        self._seal_all(txn)
                    txn.put(b"format", FORMAT)
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        """Close the environment; no run may be used afterwards."""
        self._env.close()

    def file_bytes(self) -> int:
        """Bytes of the file that are or once were in use."""
        info = self._env.info()
        return (info["last_pgno"] + 1) * info["psize"]

    def runs(self) -> list[int]:
        """Ids of the runs of which anything is there, be it left over from a fork cut short, ascending."""
        found: set[int] = set()
        with self._env.read() as txn:
            for table in self._env.tables.values():
                cursor = txn.cursor(db=table)
                there = cursor.first()
                while there:
                    run = run_of(bytes(cursor.key()))
                    found.add(run)
                    there = run < _LAST_RUN and cursor.set_range(run_prefix(run + 1))
        return sorted(found)

    def load(self, run: int) -> StoredRun | None:
        """A run as last written; None if it is not there.

        Raises:
            StorageFailed: a record is damaged.
        """
        with self._env.read() as txn, _undamaged(run):
            meta = txn.get(run_prefix(run), db=self._env.tables["meta"])
            if meta is None:
                return None
            rows, identities = decode_groups(list(self._entries(txn, "groups", run)))
            marks = tuple(decode_mark(value) for value in self._entries(txn, "marks", run))
            pushes = tuple(decode_push(value) for value in self._entries(txn, "pushes", run))
            return StoredRun(decode_meta(unsealed(bytes(meta))), rows, identities, marks, pushes)

    def sample(self, run: int, step: int) -> SampleEvent | None:
        """The sample recorded for a step; StorageFailed when its record is damaged."""
        with self._env.read() as txn:
            value = txn.get(key(run, step), db=self._env.tables["samples"])
        with _undamaged(run):
            return None if value is None else decode_sample(unsealed(bytes(value)))

    def samples(self, run: int) -> Iterator[SampleEvent]:
        """All recorded samples of a run, by step; StorageFailed when one is damaged."""
        with self._env.read() as txn:
            entries = self._entries(txn, "samples", run)
            while True:
                with _undamaged(run):
                    value = next(entries, None)
                    if value is None:
                        return
                    event = decode_sample(value)
                yield event

    def payloads(self, run: int, positions: Sequence[int]) -> list[bytes | None]:
        """Payloads at these positions, as stored; None where there is none."""
        with self._env.read() as txn:
            table = self._env.tables[_PAYLOADS]
            found = [txn.get(key(run, position), db=table) for position in positions]
        return [None if payload is None else bytes(payload) for payload in found]

    @contextmanager
    def write(self, run: int) -> Iterator[RunWriter]:
        """One durable transaction on a run: everything or, when anything raises, nothing.

        Raises:
            StorageFailed: the transaction could not be written.
        """
        with self._env.write() as txn:
            yield RunWriter(txn, self._env.tables, run)

    def drop_run(self, run: int) -> None:
        """Delete everything of a run, in pieces; nothing if it is not there.

        Whoever begins says durably that the run is gone first: ``runs`` then shows what is left after a crash.
        """
        left = True
        while left:
            with self.write(run) as writer:
                left = writer.clear(_ENTRIES_PER_PIECE)

    def copy_payloads(self, source: int, target: int, positions: Sequence[int]) -> None:
        """Copy payloads of one run to another, in several transactions; the target is not there until it has meta."""
        remaining = list(positions)
        while remaining:
            size = 0
            with self.write(target) as writer:
                while remaining and size < _COPY_BYTES:
                    size += writer.copy_payload(source, remaining.pop())

    def _seal_all(self, txn: Any) -> None:
        for name, table in self._env.tables.items():
            if name != _PAYLOADS:
                cursor = txn.cursor(db=table)
                for stored, value in cursor.iternext():
                    cursor.put(bytes(stored), sealed(bytes(value)))

    def _entries(self, txn: Any, table: str, run: int) -> Iterator[bytes]:
        prefix = run_prefix(run)
        cursor = txn.cursor(db=self._env.tables[table])
        if not cursor.set_range(prefix):
            return
        for stored, value in cursor.iternext():
            if not bytes(stored).startswith(prefix):
                return
            yield unsealed(bytes(value))


class RunWriter:
    """What can be written of a run within one transaction."""

    def __init__(self, txn: Any, tables: Mapping[str, Any], run: int) -> None:
        self._txn = txn
        self._tables = tables
        self._run = run

    def meta(self, meta: RunMeta) -> None:
        """Replace the run's counters."""
        self._txn.put(run_prefix(self._run), sealed(encode_meta(meta)), db=self._tables["meta"])

    def groups(self, rows: np.ndarray, identities: Mapping[int, tuple[str, str]]) -> None:
        """Add or replace records of groups."""
        for position, value in zip(rows["position"].tolist(), encode_groups(rows, identities), strict=True):
            self._put("groups", position, value)

    def payload(self, position: int, payload: bytes | memoryview) -> None:
        """Add a payload."""
        self._txn.put(key(self._run, position), payload, db=self._tables[_PAYLOADS])

    def copy_payload(self, source: int, position: int) -> int:
        """Add a payload of another run at the same position; its size."""
        payload = self._txn.get(key(source, position), db=self._tables["payloads"])
        if payload is None:
            return 0
        self.payload(position, bytes(payload))
        return len(payload)

    def forget_groups(self, positions: Iterable[int]) -> None:
        """Delete records and payloads of groups."""
        for position in positions:
            self._delete("groups", position)
            self._delete("payloads", position)

    def push(self, event: PushEvent) -> None:
        """Add or replace a push."""
        self._put("pushes", event.position, encode_push(event))

    def forget_pushes(self, events: Iterable[PushEvent]) -> None:
        """Delete pushes."""
        for event in events:
            self._delete("pushes", event.position)

    def sample(self, event: SampleEvent) -> None:
        """Add or replace a sample."""
        self._put("samples", event.step, encode_sample(event))

    def forget_samples(self, from_step: int) -> None:
        """Delete the samples of this step and later ones."""
        self._delete_range("samples", key(self._run, from_step))

    def marks(self, marks: Iterable[Mark]) -> None:
        """Add or replace marks."""
        for mark in marks:
            self._put("marks", mark.step, encode_mark(mark))

    def forget_marks(self, from_step: int) -> None:
        """Delete the marks of this step and later ones."""
        self._delete_range("marks", key(self._run, from_step))

    def clear(self, most: int) -> bool:
        """Delete up to ``most`` entries of the run; whether more may be there. Without its counters it is not there."""
        for table in TABLES:
            most -= self._delete_range(table, run_prefix(self._run), most)
        return most <= 0

    def _put(self, table: str, number: int, value: bytes) -> None:
        self._txn.put(key(self._run, number), sealed(value), db=self._tables[table])

    def _delete(self, table: str, number: int) -> None:
        self._txn.delete(key(self._run, number), db=self._tables[table])

    def _delete_range(self, table: str, first: bytes, most: int | None = None) -> int:
        """Delete the run's entries from a key on; how many there were."""
        prefix = run_prefix(self._run)
        cursor = self._txn.cursor(db=self._tables[table])
        count = 0
        found = cursor.set_range(first)
        while found and count != most and bytes(cursor.key()).startswith(prefix):
            found = cursor.delete()
            count += 1
        return count


@contextmanager
def _undamaged(run: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise StorageFailed(f"replay groups of run {run} cannot be read: {error}") from error
