"""Whether a state directory or a backup is whole: checksums, references between the parts, and that it can be opened.

Nothing is written but what SQLite and LMDB need to read beside a writer, and nothing is repaired. What the next start
of a server puts right by itself (a fork or rewind that was cut short, an older schema) is a note, not a problem.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from threadpoolctl import threadpool_limits

from selector.errors import ServiceError
from selector.maintenance.database_checks import (
    check_events,
    check_file,
    check_fold,
    check_prompts,
    check_requests,
    check_runs,
)
from selector.maintenance.embedding_checks import check_embeddings
from selector.maintenance.frozen import frozen_database, frozen_replay, frozen_stores
from selector.maintenance.manifest import file_facts, is_backup, read_manifest
from selector.maintenance.replay_checks import check_replay
from selector.maintenance.report import Check, Report
from selector.replay.frozen import FrozenReplay
from selector.snapshots import RunSnapshots
from selector.storage.database import Database, check_schema_known, newest_schema, transactions_lost
from selector.storage.frozen import FrozenDatabase
from selector.storage.runs import RunStore
from selector.storage.snapshot_files import SnapshotFiles
from selector.storage.watermark import Store, read_marks


def verify(directory: Path, *, with_replay: bool = True) -> Report:
    """Look at everything in a state directory, served or not, or in a backup.

    LMDB trusts its file: reading a damaged one can end the process. See ``isolated``.

    Args:
        with_replay: whether to read the replay store at all.
    """
    report = Report(str(directory), "backup" if is_backup(directory) else "state directory")
    if is_backup(directory):
        _check_manifest(report.check("checksums"), directory)
    # Read before the stores: a server that writes to them may be ahead of its mark, and never behind.
    marks = read_marks(directory / "watermark")
    with ExitStack() as stack:
        opening = report.check("stores")
        database, replay = _opened(opening, stack, directory, with_replay)
        _check_marks(opening, marks, database, replay)
        if database is not None:
            _check_contents(report, stack, database, replay, directory)
    return report


def _opened(
    check: Check, stack: ExitStack, directory: Path, with_replay: bool
) -> tuple[FrozenDatabase | None, FrozenReplay | None]:
    """Both stores as of one moment, or, when one cannot be opened, the other."""
    database = replay = None
    try:
        if with_replay:
            stores = stack.enter_context(frozen_stores(directory))
            check.examined = 2
            return stores.database, stores.replay
    except ServiceError:
        # Which of them it is, and why, is said below.
        pass
    try:
        database = stack.enter_context(closing(frozen_database(directory)))
        check.examined += 1
    except ServiceError as error:
        check.problem(error.message)
    try:
        if with_replay:
            replay = stack.enter_context(closing(frozen_replay(directory)))
            check.examined += 1
    except ServiceError as error:
        check.problem(error.message)
    return database, replay


def _check_marks(
    check: Check, marks: Mapping[Store, int], database: FrozenDatabase | None, replay: FrozenReplay | None
) -> None:
    """Neither store has lost its newest transactions."""
    lost = {
        "state.db": transactions_lost(marks[Store.DATABASE], database.number) if database else 0,
        "replay/data.mdb": marks[Store.REPLAY] - replay.number if replay else 0,
    }
    for name, count in lost.items():
        if count > 0:
            check.problem(f"{name} has lost its newest {count} change(s), which had been answered for")


def _check_contents(
    report: Report, stack: ExitStack, database: FrozenDatabase, replay: FrozenReplay | None, directory: Path
) -> None:
    pages = report.check("database pages")
    try:
        check_file(pages, database)
        schema = database.schema
        check_schema_known(schema)
        if schema != newest_schema():
            pages.note(f"the schema is {schema}; the next start upgrades it to {newest_schema()}")
            database = stack.enter_context(_upgraded(database))
        runs = check_runs(report.check("runs"), database)
    except ServiceError as error:
        pages.problem(f"state.db: {error.message}")
        return
    except (sqlite3.Error, sa.exc.SQLAlchemyError) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        pages.problem(f"state.db: {cause}")
        return
    names = ("prompts", "events", "folded states", "snapshots", "requests")
    prompts, events, states, kept, requests = (report.check(name) for name in names)
    files = SnapshotFiles(directory / "snapshots")
    # As the server folds: with one thread sums have one order.
    stack.enter_context(threadpool_limits(1, user_api="blas"))
    in_use = []
    for row, config in runs:
        records = check_prompts(prompts, database, row)
        in_use.append((row, {r.embedding_row: r.prompt_id for r in records if r.embedding_row >= 0}))
        log = check_events(events, database, row, len(records))
        snapshots = RunSnapshots(files, RunStore(database), row.id, interval_groups=0)
        check_fold(states, kept, (row, config), len(records), log, snapshots)
        check_requests(requests, database, row)
    check_embeddings(report.check("embeddings"), directory / "embeddings", in_use)
    if replay is not None:
        check_replay(report.check("replay groups"), replay, {row.id: (row, config) for row, config in runs})


def _check_manifest(check: Check, directory: Path) -> None:
    try:
        manifest = read_manifest(directory)
        found = {facts.path: facts for facts in file_facts(directory, lambda _: None)}
    except ServiceError as error:
        check.problem(error.message)
        return
    except OSError as error:
        check.problem(f"a file cannot be read: {error}")
        return
    for facts in manifest.files:
        check.examined += 1
        there = found.get(facts.path)
        if there is None:
            check.problem(f"{facts.path} is missing")
        elif there.bytes != facts.bytes:
            check.problem(f"{facts.path} has {there.bytes} bytes, expected {facts.bytes}")
        elif there.sha256 != facts.sha256:
            check.problem(f"{facts.path} does not match its checksum")


@contextmanager
def _upgraded(database: FrozenDatabase) -> Iterator[FrozenDatabase]:
    """A copy with the newest schema, for a database that has an older one."""
    with tempfile.TemporaryDirectory(prefix="selector-verify-") as scratch:
        path = Path(scratch) / "state.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            database.driver.backup(copy)
        Database(path).close()
        with closing(FrozenDatabase(path)) as upgraded:
            yield upgraded
