"""Upgrading the schema: whole or not at all, never from a newer one, and to what the tables say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import selector.storage.database as database_module
from selector import __version__
from selector.errors import ServiceError
from selector.storage import tables
from selector.storage.database import Database, newest_schema
from tests.migrations.released_state import unpack

# A release to come: a table is made and filled, another one altered.
_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade() -> None:
    op.create_table("next_things", sa.Column("run", sa.Integer, primary_key=True), sa.Column("note", sa.Text))
    op.execute("INSERT INTO next_things SELECT id, run_id FROM runs")
    op.add_column("runs", sa.Column("next_column", sa.Integer, nullable=False, server_default="3"))
    op.create_index("next_index", "runs", ["next_column"])
    op.execute("UPDATE runs SET next_column = 4")
"""


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrations of this release and of one to come, which the code then uses."""
    scripts = write_next_release(tmp_path / "migrations")
    monkeypatch.setattr(database_module, "_MIGRATIONS", str(scripts))
    return scripts


def test_an_upgrade_that_fails_anywhere_leaves_everything_as_it_was(tmp_path: Path, next_release: Path) -> None:
    path = unpack("0001", tmp_path / "state") / "state.db"
    before = _contents(path)
    for failing in range(1, _statements(tmp_path) + 1):
        with _at_statement(failing, _fail), pytest.raises(ServiceError, match="cannot use state database"):
            Database(path)
        assert _contents(path) == before, failing
    Database(path).close()
    assert _contents(path) != before
    assert _rows(path, "SELECT DISTINCT next_column FROM runs") == [(4,)]
    assert _rows(path, "SELECT count(*) FROM next_things") == _rows(path, "SELECT count(*) FROM runs")


@pytest.mark.slow
def test_an_upgrade_that_is_killed_leaves_everything_as_it_was(tmp_path: Path, next_release: Path) -> None:
    path = unpack("0001", tmp_path / "state") / "state.db"
    before = _contents(path)
    for failing in range(1, _statements(tmp_path) + 1, 3):
        code = (
            "from pathlib import Path\n"
            "import selector.storage.database as d, tests.migrations.test_upgrade as t\n"
            f"d._MIGRATIONS = {str(next_release)!r}\n"
            f"with t._at_statement({failing}, t._die): d.Database(Path({str(path)!r}))"
        )
        ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
        assert ended.returncode == -signal.SIGKILL, failing
        assert _contents(path) == before, failing
    Database(path).close()
    assert _rows(path, "SELECT version_num FROM alembic_version") == [("next",)]


def test_a_directory_of_a_newer_version_is_refused_and_named(tmp_path: Path) -> None:
    state = unpack("0001", tmp_path / "state")
    with closing(sqlite3.connect(state / "state.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9876'")
    before = _contents(state / "state.db")
    expected = f"schema '9876', written by a newer version .* {re.escape(__version__)}, .* up to '{newest_schema()}'"
    with pytest.raises(ServiceError, match=expected):
        Database(state / "state.db")
    assert _contents(state / "state.db") == before


def test_tables_and_migrations_agree(tmp_path: Path) -> None:
    Database(tmp_path / "migrated.db").close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
    engine.dispose()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    tables.metadata.create_all(engine)
    engine.dispose()
    # What the comparison above does not look at: keys, references, conditions of indices, rowids.
    assert _shape(tmp_path / "migrated.db") == _shape(tmp_path / "made.db")


def write_next_release(scripts: Path) -> Path:
    """A directory of migrations with one more than there is."""
    source = Path(database_module.__file__).parent / "migrations"
    shutil.copytree(source, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "9999_next.py").write_text(_NEXT.format(head=newest_schema()))
    return scripts


def _shape(path: Path) -> dict[str, Any]:
    shape: dict[str, Any] = {}
    for name, sql in _rows(path, "SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
        if name in ("alembic_version", "sqlite_sequence"):
            continue
        indices = _rows(path, f"PRAGMA index_list({name})")
        shape[name] = (
            sorted(column[1:] for column in _rows(path, f"PRAGMA table_info({name})")),
            sorted(key[2:] for key in _rows(path, f"PRAGMA foreign_key_list({name})")),
            sorted((index[2:], _rows(path, f"PRAGMA index_info({index[1]})")) for index in indices),
            "AUTOINCREMENT" in sql.upper(),
            "WITHOUT ROWID" in sql.upper(),
        )
    conditions = _rows(path, "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '%WHERE%'")
    shape["conditions"] = sorted((name, " ".join(sql.split("WHERE")[1].split())) for name, sql in conditions)
    return shape


def _statements(tmp_path: Path) -> int:
    """How many statements the upgrade of a released directory takes, looking at the schema included."""
    path = unpack("0001", tmp_path / "counted") / "state.db"
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    with _at_statement(0, count):
        Database(path).close()
    return seen


@contextmanager
def _at_statement(number: int, action: Any) -> Iterator[None]:
    """``action`` right before the given statement, counted from 1; 0 = before every one."""
    seen = 0

    def before(*_: object) -> None:
        nonlocal seen
        seen += 1
        if number in (0, seen):
            action()

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", before)


def _fail() -> None:
    raise sa.exc.OperationalError("statement", None, sqlite3.OperationalError("disk I/O error"))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _contents(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def _rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()
