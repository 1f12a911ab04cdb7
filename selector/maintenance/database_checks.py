"""Whether the rows of the database are what the service writes: runs, prompts, events, requests.

Every check takes the rows as they come and names what does not fit; nothing here raises for damaged content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from selector.config import RunConfig, config_from_json
from selector.difficulty.registry import estimator_of
from selector.events import Event, ReplacementEvent, SelectionEvent, decode
from selector.events import check_prompts as check_event_prompts
from selector.maintenance.report import Check
from selector.pool import ACTIVE, INELIGIBLE, RETIRED, PromptRecord
from selector.snapshots import RunSnapshots
from selector.state import RunState
from selector.state_codec import encode
from selector.storage import tables
from selector.storage.frozen import FrozenDatabase
from selector.storage.runs import RunRow, RunStore

_HASH_BYTES = 32


def check_file(check: Check, database: FrozenDatabase) -> None:
    """SQLite's own checks: pages, indices, constraints, references between tables."""
    with database.read() as connection:
        check.examined = int(connection.exec_driver_sql("PRAGMA page_count").scalar() or 0)
        for (found,) in connection.exec_driver_sql("PRAGMA integrity_check"):
            if found != "ok":
                check.problem(f"state.db: {found}")
        for table, rowid, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            check.problem(f"state.db: a row of {table} ({rowid}) refers to a missing row of {parent}")


def check_runs(check: Check, database: FrozenDatabase) -> list[tuple[RunRow, RunConfig]]:
    """Configurations and counters; the runs whose configuration can be used."""
    usable: list[tuple[RunRow, RunConfig]] = []
    with database.read() as connection:
        unfinished = connection.scalar(sa.select(sa.func.count()).where(tables.runs.c.ready.is_(False)))
    if unfinished:
        check.note(f"{unfinished} fork(s) were cut short; the next start removes them")
    for row in RunStore(database).runs():
        check.examined += 1
        try:
            json.loads(row.explicit_config)
            usable.append((row, config_from_json(row.config)))
        except Exception as error:  # whatever damaged text leads to
            check.problem(f"run {row.run_id}: its configuration cannot be read: {_said(error)}")
        if row.rewind_epoch < 0 or (bool(row.space) != (row.width > 0)):
            check.problem(f"run {row.run_id}: its counters make no sense: {row}")
    return usable


def check_prompts(check: Check, database: FrozenDatabase, row: RunRow) -> list[PromptRecord]:
    """A run's pool; empty when it cannot be read."""
    where = f"run {row.run_id}"
    c = tables.prompts.c
    bounds = sa.select(sa.func.count(), sa.func.min(c.idx), sa.func.max(c.idx)).where(c.run == row.id)
    try:
        with database.read() as connection:
            count, low, high = connection.execute(bounds).one()
        records = RunStore(database).prompts(row.id)
    except Exception as error:  # whatever a damaged page or text leads to
        check.problem(f"{where}: its prompts cannot be read: {_said(error)}")
        return []
    check.examined += count
    if count and (low != 0 or high != count - 1):
        check.problem(f"{where}: {count} prompts have indices from {low} to {high}: some are missing")
    seen: set[str] = set()
    for index, record in enumerate(records):
        wrong = _wrong_with(record, row)
        if record.prompt_id in seen:
            wrong.append("its id occurs twice")
        seen.add(record.prompt_id)
        for description in wrong:
            check.problem(f"{where}: prompt {index} ({record.prompt_id!r}): {description}")
    return records


def check_events(check: Check, database: FrozenDatabase, row: RunRow, pool: int) -> list[Event]:
    """A run's log; the events that can be decoded."""
    where = f"run {row.run_id}"
    events: list[Event] = []
    previous = 0
    # A rewind drops events from the middle of the log, and a fork does not copy them.
    contiguous = row.rewind_epoch == 0 and not row.forked_from
    try:
        for stored in RunStore(database).events(row.id):
            check.examined += 1
            if contiguous and stored.seq != previous + 1:
                check.problem(f"{where}: events {previous + 1} to {stored.seq - 1} are missing")
            previous = stored.seq
            try:
                event = decode(stored)
                check_event_prompts(event, pool)
            except ValueError as error:
                check.problem(f"{where}: {error}")
                continue
            events.append(event)
            for description in _wrong_with_event(event):
                check.problem(f"{where}: event {stored.seq} ({stored.kind}): {description}")
    except Exception as error:  # whatever a damaged page leads to
        check.problem(f"{where}: its events after {previous} cannot be read: {_said(error)}")
    return events


def check_fold(
    folds: Check,
    kept: Check,
    run: tuple[RunRow, RunConfig],
    pool: int,
    events: Sequence[Event],
    snapshots: RunSnapshots,
) -> None:
    """The state of a run can be made of its log, and its snapshots are what is made of the log up to them.

    Args:
        kept: gets what is found of the snapshots.
    """
    row, config = run

    def fresh() -> RunState:
        return RunState(config, estimator_of(config, None))

    saved = {state.next_seq - 1: state for state in snapshots.usable(fresh, row.rewind_epoch)}
    state = fresh()
    state.grow(pool)
    for event in events:
        try:
            state.apply(event)
        except Exception as error:  # whatever an impossible event leads to
            folds.problem(f"run {row.run_id}: its state cannot be made: event {event.seq} fails: {_said(error)}")
            return
        snapshot = saved.get(event.seq)
        # Without its adapter, a run's estimator is another one.
        if snapshot is not None and not config.estimator.adapter:
            kept.examined += 1
            snapshot.grow(pool)
            if encode(snapshot.state_dict()) != encode(state.state_dict()):
                kept.problem(f"run {row.run_id}: the snapshot of event {event.seq} is not what its log makes")
    folds.examined += 1


def check_requests(check: Check, database: FrozenDatabase, row: RunRow) -> None:
    """Remembered requests have an answer that can be given again."""
    c = tables.requests.c
    statement = sa.select(c.id, c.request_id, c.response).where(c.run == row.id).order_by(c.id)
    try:
        with database.read() as connection:
            for _, request_id, response in connection.execute(statement):
                check.examined += 1
                try:
                    json.loads(response)
                except ValueError as error:
                    problem = f"the answer to request {request_id!r} cannot be read: {_said(error)}"
                    check.problem(f"run {row.run_id}: {problem}")
    except Exception as error:  # whatever a damaged page or text leads to
        check.problem(f"run {row.run_id}: its requests cannot be read: {_said(error)}")


def _wrong_with(record: PromptRecord, row: RunRow) -> list[str]:
    wrong = []
    if len(record.content_hash) != _HASH_BYTES:
        wrong.append(f"its content hash has {len(record.content_hash)} bytes, expected {_HASH_BYTES}")
    if record.status not in (ACTIVE, RETIRED, INELIGIBLE):
        wrong.append(f"its status is {record.status}")
    if record.embedding_row < -1 or (record.embedding_row >= 0 and not row.space):
        wrong.append(f"its embedding row is {record.embedding_row}, and the run's space is {row.space!r}")
    if record.twin_group < 0:
        wrong.append(f"its twin group is {record.twin_group}")
    if record.prior_trials < 0 or (record.prior_trials > 0 and not 0 <= record.prior_rate <= 1):
        wrong.append(f"its prior is {record.prior_rate} of {record.prior_trials} trials")
    return wrong


def _wrong_with_event(event: Event) -> list[str]:
    """What no decoder looks at."""
    wrong = []
    if not isinstance(event, ReplacementEvent) and event.step is not None and event.step < 0:
        wrong.append(f"has step {event.step}")
    if isinstance(event, SelectionEvent):
        if len(np.unique(event.prompt)) != len(event.prompt):
            wrong.append("selects a prompt twice")
        if not ((event.probability >= 0) & (event.probability <= 1)).all():
            wrong.append("has probabilities outside [0, 1]")
    return wrong


def _said(error: Exception) -> str:
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return f"{type(cause).__name__}: {cause}"
