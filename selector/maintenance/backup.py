"""A backup: a consistent copy of a state directory as of one moment, taken while a server may be writing to it.

    state.db              one file, without a write-ahead log
    replay/data.mdb       compact
    embeddings/…          as far as they were written at that moment
    backup.json           size and SHA-256 of every file above, runs with their last step

Every call that was answered before the backup began is in it, and of a call that was not finished it holds what a
server killed at that moment would have left. Snapshots of folded states are left out: they are made anew from the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from selector import __version__
from selector.embedding.errors import EmbeddingError
from selector.embedding.reading import copy_space, space_bytes, space_directories
from selector.errors import ServiceError
from selector.maintenance.frozen import FrozenStores, frozen_stores
from selector.maintenance.manifest import Manifest, RunFacts, file_facts, is_backup
from selector.maintenance.publish import is_free, published
from selector.storage import tables
from selector.storage.database import check_schema_known
from selector.storage.frozen import FrozenDatabase
from selector.v1.reasons import Reason

# Called with what is being done, bytes done of it, and bytes to do.
Progress = Callable[[str, int, int], object]

_PAGES_AT_ONCE = 4096


def back_up(state_dir: Path, target: Path, now: Callable[[], float], progress: Progress) -> Manifest:
    """Back a state directory up into a directory that is new or empty.

    Raises:
        ServiceError: STORAGE_FAILED; the target is as it was.
    """
    _check_places(state_dir, target)
    with published(target) as partial:
        with frozen_stores(state_dir) as stores:
            # The moment that the copy is of.
            taken = now()
            check_schema_known(stores.database.schema)
            try:
                _copy_database(stores.database, partial / "state.db", progress)
                _copy_embeddings(stores, partial / "embeddings", progress)
            except (sqlite3.Error, sa.exc.SQLAlchemyError, EmbeddingError) as error:
                raise ServiceError(Reason.STORAGE_FAILED, f"{state_dir} cannot be backed up: {error}") from error
            progress("replay", 0, 0)
            stores.replay.copy(partial / "replay")
            schema, runs = stores.database.schema, _run_facts(stores.database)
        total = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
        count = _counted(progress, "checksums", total)
        manifest = Manifest(__version__, schema, taken, tuple(file_facts(partial, count)), runs)
        manifest.write(partial)
    return manifest


def _check_places(state_dir: Path, target: Path) -> None:
    if is_backup(state_dir):
        raise ServiceError(Reason.STORAGE_FAILED, f"{state_dir} is a backup itself: copy it")
    if target.resolve().is_relative_to(state_dir.resolve()):
        raise ServiceError(Reason.STORAGE_FAILED, f"{target} lies within the state directory {state_dir}")
    if not is_free(target):
        raise ServiceError(Reason.STORAGE_FAILED, f"{target} is there already: give a new or empty directory")


def _copy_database(database: FrozenDatabase, target: Path, progress: Progress) -> None:
    def copied(_status: int, remaining: int, pages: int) -> None:
        progress("database", (pages - remaining) * page_bytes, pages * page_bytes)

    progress("database", 0, 0)
    (page_bytes,) = database.driver.execute("PRAGMA page_size").fetchone()
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        database.driver.backup(copy, pages=_PAGES_AT_ONCE, progress=copied, sleep=0)
        # Until a server opens it: in WAL mode even a reader would make files beside it.
        copy.execute("PRAGMA journal_mode=DELETE")


def _copy_embeddings(stores: FrozenStores, target: Path, progress: Progress) -> None:
    target.mkdir(mode=0o700)
    spaces = space_directories(stores.embeddings)
    referenced = rows_in_use(stores.database)
    missing = referenced.keys() - spaces.keys()
    if missing:
        key, width = min(missing)
        raise EmbeddingError(f"there is no embedding space {key!r} of width {width} in {stores.embeddings}")
    count = _counted(progress, "embeddings", sum(space_bytes(directory) for directory in spaces.values()))
    for (key, width), directory in spaces.items():
        copy_space(directory, target / directory.name, width, referenced.get((key, width), 0), count)


def rows_in_use(database: FrozenDatabase) -> dict[tuple[str, int], int]:
    """(key, width) of every embedding space that a run is in -> rows, from the first on, that prompts refer to."""
    runs, prompts = tables.runs.c, tables.prompts.c
    statement = (
        sa.select(runs.space, runs.width, sa.func.max(prompts.embedding_row))
        .select_from(tables.runs.join(tables.prompts, prompts.run == runs.id))
        .where(runs.space != "", prompts.embedding_row >= 0)
        .group_by(runs.space, runs.width)
    )
    with database.read() as connection:
        return {(space, width): int(row) + 1 for space, width, row in connection.execute(statement)}


def _run_facts(database: FrozenDatabase) -> tuple[RunFacts, ...]:
    runs, prompts, events = tables.runs.c, tables.prompts.c, tables.events.c
    last_step = sa.select(sa.func.max(events.step)).where(events.run == runs.id).scalar_subquery()
    prompt_count = sa.select(sa.func.count()).where(prompts.run == runs.id).scalar_subquery()
    event_count = sa.select(sa.func.count()).where(events.run == runs.id).scalar_subquery()
    statement = sa.select(runs.run_id, last_step, prompt_count, event_count).where(runs.ready).order_by(runs.run_id)
    with database.read() as connection:
        return tuple(
            RunFacts(run_id, -1 if step is None else step, pool, count)
            for run_id, step, pool, count in connection.execute(statement)
        )


def _counted(progress: Progress, what: str, total: int) -> Callable[[int], object]:
    done = 0

    def advanced(size: int) -> None:
        nonlocal done
        done += size
        progress(what, done, total)

    return advanced
