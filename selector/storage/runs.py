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

from selector.pool import PromptRecord
from selector.storage import tables
from selector.storage.database import Database

# Requests remembered per run; the contract promises 10,000.
_REQUESTS_KEPT = 12_000


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
class EventRow:
    """One event; ``columns`` and ``meta`` are read by the kind's decoder (``selector.events``)."""

    seq: int
    kind: str
    step: int | None
    purpose: int
    round: int
    fingerprint: bytes
    columns: bytes
    meta: str


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that was applied, and what it was answered with."""

    request_id: str
    method: str
    fingerprint: bytes
    response: bytes
    step: int | None


_RUN_COLUMNS = [tables.runs.c[name] for name in RunRow.__dataclass_fields__]
_EVENT_COLUMNS = [tables.events.c[name] for name in EventRow.__dataclass_fields__]


class Transaction:
    """Writes that become durable together."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def insert_run(self, row: RunRow, *, ready: bool = True) -> int:
        """Insert a run under a fresh internal id, which is returned; ``row.id`` is ignored."""
        values = {name: getattr(row, name) for name in RunRow.__dataclass_fields__ if name != "id"}
        result = self._connection.execute(tables.runs.insert().values(**values, ready=ready))
        return _inserted(result)

    def update_run(self, run: int, **values: object) -> None:
        """Change columns of a run."""
        self._connection.execute(tables.runs.update().where(tables.runs.c.id == run).values(**values))

    def delete_run(self, run: int) -> None:
        """Delete a run with everything in it."""
        self._connection.execute(tables.runs.delete().where(tables.runs.c.id == run))

    def put_prompts(self, run: int, records: Sequence[tuple[int, PromptRecord]]) -> None:
        """Insert prompts, or replace the rows that exist, by index."""
        if not records:
            return
        rows = [
            {
                "run": run,
                "idx": idx,
                "prompt_id": r.prompt_id,
                "content_hash": r.content_hash,
                "text": r.text,
                "embedding_row": r.embedding_row,
                "domain": r.domain,
                "token_count": r.token_count,
                "prior_rate": None if np.isnan(r.prior_rate) else r.prior_rate,
                "prior_trials": r.prior_trials,
                "status": r.status,
                "status_reason": r.status_reason,
            }
            for idx, r in records
        ]
        self._connection.execute(tables.prompts.insert().prefix_with("OR REPLACE"), rows)

    def set_prompt_status(self, run: int, indices: Sequence[int], status: int) -> None:
        """Change the status of prompts."""
        if not indices:
            return
        statement = (
            tables.prompts.update()
            .where(tables.prompts.c.run == run, tables.prompts.c.idx == sa.bindparam("at"))
            .values(status=status)
        )
        self._connection.execute(statement, [{"at": int(i)} for i in indices])

    def append_event(self, run: int, event: EventRow) -> None:
        """Append an event to the run's log."""
        values = {name: getattr(event, name) for name in EventRow.__dataclass_fields__}
        self._connection.execute(tables.events.insert().values(run=run, **values))

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
        requests = tables.requests
        values = {name: getattr(answered, name) for name in AnsweredRequest.__dataclass_fields__}
        result = self._connection.execute(requests.insert().values(run=run, **values))
        number = _inserted(result)
        if number % 1000 == 0:
            kept = (
                sa.select(requests.c.id)
                .where(requests.c.run == run)
                .order_by(requests.c.id.desc())
                .limit(1)
                .offset(_REQUESTS_KEPT)
                .scalar_subquery()
            )
            self._connection.execute(requests.delete().where(requests.c.run == run, requests.c.id <= kept))

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

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Writes inside the block are durable when it has ended, or have no effect."""
        with self._database.write() as connection:
            yield Transaction(connection)

    def drop_unfinished(self) -> None:
        """Delete runs whose creation was interrupted."""
        with self._database.write() as connection:
            connection.execute(tables.runs.delete().where(tables.runs.c.ready.is_(False)))

    def runs(self) -> list[RunRow]:
        """All runs by id."""
        statement = sa.select(*_RUN_COLUMNS).where(tables.runs.c.ready.is_(True)).order_by(tables.runs.c.run_id)
        with self._database.read() as connection:
            return [RunRow(*row) for row in connection.execute(statement)]

    def prompts(self, run: int) -> list[PromptRecord]:
        """The pool in order of registration."""
        c = tables.prompts.c
        statement = (
            sa.select(
                c.prompt_id,
                c.content_hash,
                c.text,
                c.embedding_row,
                c.domain,
                c.token_count,
                c.prior_rate,
                c.prior_trials,
                c.status,
                c.status_reason,
            )
            .where(c.run == run)
            .order_by(c.idx)
        )
        with self._database.read() as connection:
            rows = connection.execute(statement).all()
        return [
            PromptRecord(r[0], r[1], r[2], r[3], r[4], r[5], np.nan if r[6] is None else r[6], r[7], r[8], r[9])
            for r in rows
        ]

    def events(self, run: int, kinds: Sequence[str] | None = None) -> Iterator[EventRow]:
        """The run's events in order, optionally of some kinds only."""
        statement = sa.select(*_EVENT_COLUMNS).where(tables.events.c.run == run).order_by(tables.events.c.seq)
        if kinds is not None:
            statement = statement.where(tables.events.c.kind.in_(kinds))
        with self._database.read() as connection:
            for row in connection.execution_options(yield_per=256).execute(statement):
                yield EventRow(*row)

    def find_selection(self, run: int, step: int, purpose: int, round_: int) -> EventRow | None:
        """The selection that was answered for this key, if any."""
        c = tables.events.c
        statement = sa.select(*_EVENT_COLUMNS).where(
            c.run == run, c.kind == "selection", c.step == step, c.purpose == purpose, c.round == round_
        )
        with self._database.read() as connection:
            row = connection.execute(statement).first()
        return None if row is None else EventRow(*row)

    def find_request(self, run: int, request_id: str) -> AnsweredRequest | None:
        """The request that was applied under this id, if any."""
        columns = [tables.requests.c[name] for name in AnsweredRequest.__dataclass_fields__]
        statement = sa.select(*columns).where(tables.requests.c.run == run, tables.requests.c.request_id == request_id)
        with self._database.read() as connection:
            row = connection.execute(statement).first()
        return None if row is None else AnsweredRequest(*row)


def _inserted(result: sa.CursorResult[Any]) -> int:
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])
