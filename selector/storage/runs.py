"""Runs, their pools, their events and their answered requests, as rows.

All writes of one request go through one ``Transaction``: they become durable together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from selector.errors import ServiceError
from selector.events import EventRow
from selector.pool import PromptColumns, PromptRecord
from selector.storage import tables
from selector.storage.checksums import STATUSES, check_row, damaged, prompt_checksum, row_checksum
from selector.storage.database import Database, driver_of
from selector.v1.reasons import Reason

# Deletions remembered, over all runs: who makes and deletes runs all day must not make others' forgotten soon.
_DELETIONS_KEPT = 100_000
# Requests remembered per run; the contract promises 10,000.
_REQUESTS_KEPT = 12_000
# Requests by which a run may exceed that before the oldest are forgotten.
_REQUESTS_SPARE = 1000

_EVENTS_PER_PAGE = 128
# A deleted run is removed in pieces of so many rows.
_ROWS_PER_PIECE = 2000
# What the id of a deleted run becomes until it is removed; no run can have such an id.
_GONE = "deleted:"
_PROMPTS_PER_INSERT = 10_000
# What fits into the processor's caches is read at nearly twice the rate of a hundred times as much.
_PROMPTS_PER_PAGE = 2000


@dataclass(frozen=True)
class RunRow:
    """A run as stored; ``explicit_config`` and ``config`` are JSON."""

    id: int
    run_id: str
    explicit_config: str
    config: str
    created: float
    space: str
    width: int
    rewind_epoch: int
    rewind_step: int
    forked_from: str
    forked_at: int


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that was applied, and what it was answered with."""

    request_id: str
    method: str
    fingerprint: bytes
    response: bytes
    step: int | None


_PIECES = (
    (tables.prompts, tables.prompts.c.idx),
    (tables.events, tables.events.c.seq),
    (tables.requests, tables.requests.c.id),
)

_RUN_COLUMNS = [tables.runs.c[name] for name in (*RunRow.__dataclass_fields__, "ready", "checksum")]
_EVENT_COLUMNS = [tables.events.c[name] for name in (*EventRow.__dataclass_fields__, "checksum")]

_PROMPT_FIELDS = PromptRecord._fields
_PRIOR_RATE = _PROMPT_FIELDS.index("prior_rate")

# As text, since SQLAlchemy takes several times as long with the values of a row as SQLite.
_PROMPTS = f"SELECT {', '.join(_PROMPT_FIELDS)}, idx, checksum FROM prompts WHERE run = ? ORDER BY idx"
_PUT_PROMPT = (
    f"INSERT OR REPLACE INTO prompts (run, idx, {', '.join(_PROMPT_FIELDS)}, checksum) "
    f"VALUES (?, ?{', ?' * len(_PROMPT_FIELDS)}, ?)"
)


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} (run, {', '.join(columns)}, checksum) VALUES (?{', ?' * len(columns)}, ?)"


# Statements that every step takes, as text for SQLite itself: SQLAlchemy takes longer with one than SQLite.
_APPEND_EVENT = _insert("events", list(EventRow.__dataclass_fields__))
_REMEMBER_REQUEST = _insert("requests", list(AnsweredRequest.__dataclass_fields__))
_FIND_REQUEST = (
    f"SELECT {', '.join(AnsweredRequest.__dataclass_fields__)}, checksum FROM requests WHERE run = ? AND request_id = ?"
)
_FIND_SELECTION = (
    f"SELECT {', '.join(EventRow.__dataclass_fields__)}, checksum FROM events "
    "WHERE run = ? AND kind = 'selection' AND step = ? AND purpose = ? AND round = ?"
)


class Transaction:
    """Writes that become durable together."""

    def __init__(self, connection: sa.Connection, spare: dict[int, int], requests_kept: int) -> None:
        """``spare``: how many more requests each run may remember before the oldest are forgotten; kept up to date."""
        self._connection = connection
        self._driver = driver_of(connection.connection)
        self._spare = spare
        self._requests_kept = requests_kept

    def insert_run(self, row: RunRow, *, ready: bool = True) -> int:
        """Insert a run under a fresh internal id, which is returned; ``row.id`` is ignored."""
        values = {name: getattr(row, name) for name in RunRow.__dataclass_fields__ if name != "id"}
        checksum = row_checksum([*values.values(), ready])
        result = self._connection.execute(tables.runs.insert().values(**values, ready=ready, checksum=checksum))
        return _inserted(result)

    def update_run(self, run: int, **values: object) -> None:
        """Change columns of a run."""
        this = tables.runs.c.id == run
        self._connection.execute(tables.runs.update().where(this).values(**values))
        row = self._connection.execute(sa.select(*_RUN_COLUMNS).where(this)).one()
        self._connection.execute(tables.runs.update().where(this).values(checksum=row_checksum(row[1:-1])))

    def delete_run(self, run: int, run_id: str, request_id: str) -> None:
        """Make a run gone, with everything in it; the request is remembered if it has an id.

        That takes next to no space. What the run held is removed by ``RunStore.drop_unfinished``.
        """
        self.update_run(run, ready=False, run_id=f"{_GONE}{run}")
        self._spare.pop(run, None)
        if request_id:
            deletions = tables.deletions
            inserted = _inserted(
                self._connection.execute(deletions.insert().values(request_id=request_id, run_id=run_id))
            )
            self._connection.execute(deletions.delete().where(deletions.c.id <= inserted - _DELETIONS_KEPT))

    def put_prompts(self, run: int, records: Sequence[tuple[int, PromptRecord]]) -> None:
        """Insert prompts, or replace the rows that exist, by index."""
        # SQLite stores NaN as NULL, which is how "no prior" is read back.
        for start in range(0, len(records), _PROMPTS_PER_INSERT):
            rows = [(run, idx, *r, prompt_checksum(idx, r)) for idx, r in records[start : start + _PROMPTS_PER_INSERT]]
            self._connection.exec_driver_sql(_PUT_PROMPT, rows)

    def set_prompt_status(self, run: int, indices: Sequence[int], status: int) -> None:
        """Change the status of prompts."""
        if not indices:
            return
        statement = (
            tables.prompts.update()
            .where(tables.prompts.c.run == run, tables.prompts.c.idx == sa.bindparam("at"))
            .values(status=status, checksum=sa.text(f"checksum / {STATUSES} * {STATUSES} + {int(status)}"))
        )
        self._connection.execute(statement, [{"at": int(i)} for i in indices])

    def append_event(self, run: int, event: EventRow) -> None:
        """Append an event to the run's log."""
        self._insert(_APPEND_EVENT, run, [getattr(event, name) for name in EventRow.__dataclass_fields__])

    def drop_events(self, run: int, step: int) -> dict[str, int]:
        """Drop events of step >= the given step and forget their requests; counts of dropped events by kind."""
        events, requests = tables.events, tables.requests
        late = sa.and_(events.c.run == run, events.c.step >= step)
        counted = sa.select(events.c.kind, sa.func.count()).where(late).group_by(events.c.kind)
        dropped = {kind: int(count) for kind, count in self._connection.execute(counted)}
        self._connection.execute(events.delete().where(late))
        self._connection.execute(requests.delete().where(requests.c.run == run, requests.c.step >= step))
        return dropped

    def remember_request(self, run: int, answered: AnsweredRequest) -> None:
        """Remember an applied request; the oldest are forgotten beyond what is promised."""
        self._insert(_REMEMBER_REQUEST, run, [getattr(answered, name) for name in AnsweredRequest.__dataclass_fields__])
        # Unknown for a run that is written to for the first time since the store was opened.
        spare = self._spare.get(run, 0)
        if spare == 0:
            self._forget_requests(run)
            spare = _REQUESTS_SPARE
        self._spare[run] = spare - 1

    def _insert(self, statement: str, run: int, values: Sequence[Any]) -> None:
        self._driver.execute(statement, (run, *values, row_checksum(values)))

    def _forget_requests(self, run: int) -> None:
        requests = tables.requests
        newest_forgotten = (
            sa.select(requests.c.id)
            .where(requests.c.run == run)
            .order_by(requests.c.id.desc())
            .limit(1)
            .offset(self._requests_kept)
            .scalar_subquery()
        )
        self._connection.execute(requests.delete().where(requests.c.run == run, requests.c.id <= newest_forgotten))

    def copy_run(self, source: int, target: int, before_step: int) -> None:
        """Copy pool and events of step < ``before_step`` (and those that belong to no step) into another run."""
        prompts, events = tables.prompts, tables.events
        for table, where in (
            (prompts, prompts.c.run == source),
            (
                events,
                sa.and_(events.c.run == source, sa.or_(events.c.step.is_(None), events.c.step < before_step)),
            ),
        ):
            names = [column.name for column in table.columns]
            picked = [sa.literal(target) if name == "run" else table.c[name] for name in names]
            self._connection.execute(table.insert().from_select(names, sa.select(*picked).where(where)))


class RunStore:
    """Reads rows, and opens transactions to write them."""

    def __init__(self, database: Database, requests_kept: int = _REQUESTS_KEPT) -> None:
        """``requests_kept``: the newest requests of each run that are never forgotten."""
        self._database = database
        self._requests_kept = requests_kept
        self._spare: dict[int, int] = {}

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Writes inside the block are durable when it has ended, or have no effect."""
        try:
            with self._database.write() as connection:
                yield Transaction(connection, self._spare, self._requests_kept)
        except BaseException:
            # What was counted was not stored, or what should be forgotten was not.
            self._spare.clear()
            raise

    def fold_log(self) -> None:
        """See ``Database.fold_log``."""
        self._database.fold_log()

    def drop_unfinished(self) -> None:
        """Remove what is left of deleted runs, and of runs whose creation was interrupted.

        It is removed piece by piece: other writers get their turn, and the write-ahead log stays small.
        """
        with self._database.read() as connection:
            statement = sa.select(*_RUN_COLUMNS).where(tables.runs.c.ready.is_(False))
            unfinished = [_run_row(row).id for row in connection.execute(statement)]
        for run in unfinished:
            for table, key in _PIECES:
                while self._drop_piece(run, table, key):
                    pass
            with self._database.write() as connection:
                connection.execute(tables.runs.delete().where(tables.runs.c.id == run))

    def _drop_piece(self, run: int, table: sa.Table, key: sa.Column[Any]) -> bool:
        piece = sa.select(key).where(table.c.run == run).limit(_ROWS_PER_PIECE)
        with self._database.write() as connection:
            dropped = connection.execute(table.delete().where(table.c.run == run, key.in_(piece)))
        return dropped.rowcount == _ROWS_PER_PIECE

    def runs(self) -> list[RunRow]:
        """All runs by id."""
        # A damaged row must not pass for one of a run that is unfinished, so those are read as well.
        statement = sa.select(*_RUN_COLUMNS).order_by(tables.runs.c.run_id)
        with self._database.read() as connection:
            rows = connection.execute(statement).all()
        return [found for row in rows if (found := _run_row(row)) and row.ready]

    def prompts(self, run: int) -> list[PromptRecord]:
        """The pool in order of registration."""
        return [PromptRecord(*values) for page in self.prompt_pages(run) for values in zip(*page, strict=True)]

    def prompt_pages(self, run: int) -> Iterator[PromptColumns]:
        """The pool in order of registration, some prompts at a time, as of one moment."""
        with self._database.read() as connection:
            cursor = driver_of(connection.connection).execute(_PROMPTS, (run,))
            while rows := cursor.fetchmany(_PROMPTS_PER_PAGE):
                yield _prompt_columns(rows)

    def events(
        self,
        run: int,
        kinds: Sequence[str] | None = None,
        *,
        after_seq: int = 0,
        before_seq: int | None = None,
        epoch: int | None = None,
    ) -> Iterator[EventRow]:
        """The run's events in order, read page by page: no transaction is open while the reader is busy with a page.

        Args:
            kinds: of these kinds only.
            after_seq: only events after this one.
            before_seq: only events before this one; None = also those that are appended meanwhile.
            epoch: the rewind epoch that the run is known to be in; None = the one it is in at the first page.

        Raises:
            ServiceError: HISTORY_CHANGED when the run was rewound or deleted meanwhile.
        """
        after = after_seq
        while True:
            found, page = self._event_page(run, kinds, after, before_seq)
            epoch = found if epoch is None else epoch
            if found is None or found != epoch:
                raise history_changed()
            yield from page
            if len(page) < _EVENTS_PER_PAGE:
                return
            after = page[-1].seq

    def _event_page(
        self, run: int, kinds: Sequence[str] | None, after: int, before: int | None
    ) -> tuple[int | None, list[EventRow]]:
        """The run's rewind epoch, None when there is no such run, and the next events, as of one moment."""
        c = tables.events.c
        statement = sa.select(*_EVENT_COLUMNS).where(c.run == run, c.seq > after)
        if kinds is not None:
            statement = statement.where(c.kind.in_(kinds))
        if before is not None:
            statement = statement.where(c.seq < before)
        statement = statement.order_by(c.seq).limit(_EVENTS_PER_PAGE)
        with self._database.read() as connection:
            epoch = connection.scalar(sa.select(tables.runs.c.rewind_epoch).where(tables.runs.c.id == run))
            return epoch, [_event_row(row) for row in connection.execute(statement)]

    def find_selection(self, run: int, step: int, purpose: int, round_: int) -> EventRow | None:
        """The selection that was answered for this key, if any."""
        row = self._database.row(_FIND_SELECTION, (run, step, purpose, round_))
        return None if row is None else _event_row(row)

    def was_deleted(self, run_id: str, request_id: str) -> bool:
        """Whether this request deleted a run of this id."""
        c = tables.deletions.c
        statement = sa.select(c.id).where(c.request_id == request_id, c.run_id == run_id)
        with self._database.read() as connection:
            return connection.execute(statement).first() is not None

    def find_request(self, run: int, request_id: str) -> AnsweredRequest | None:
        """The request that was applied under this id, if any."""
        row = self._database.row(_FIND_REQUEST, (run, request_id))
        if row is None:
            return None
        check_row(row[-1], row_checksum(row[:-1]), f"the answer to request {request_id!r}")
        return AnsweredRequest(*row[:-1])


def history_changed() -> ServiceError:
    """The error of a reader whose run has been rewound or deleted since it began."""
    return ServiceError(
        Reason.HISTORY_CHANGED,
        "the run was rewound or deleted while its history was being read; read it from the start",
    )


def _run_row(row: Sequence[Any]) -> RunRow:
    check_row(row[-1], row_checksum(row[1:-1]), f"run {row[1]}")
    return RunRow(*row[:-2])


def _event_row(row: Sequence[Any]) -> EventRow:
    found = EventRow(*row[:-1])
    check_row(row[-1], row_checksum(row[:-1]), f"event {found.seq} ({found.kind}) of step {found.step}")
    return found


def _prompt_columns(rows: Sequence[tuple[Any, ...]]) -> PromptColumns:
    for row in rows:
        values, idx, checksum = row[:-2], row[-2], row[-1]
        try:
            sound = checksum is None or checksum == prompt_checksum(idx, values)
        except (TypeError, ValueError, AttributeError):
            # A value of another type than its column's.
            sound = False
        if not sound:
            raise damaged(f"prompt {values[0]!r}")
    *columns, _, _ = zip(*rows, strict=True)
    if None in columns[_PRIOR_RATE]:
        columns[_PRIOR_RATE] = tuple(np.nan if rate is None else rate for rate in columns[_PRIOR_RATE])
    return PromptColumns(*columns)


def _inserted(result: sa.CursorResult[Any]) -> int:
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])
