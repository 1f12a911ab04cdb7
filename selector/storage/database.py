"""The state database: one SQLite file in WAL mode with full synchronisation, brought up to date by migrations.

A write transaction that has returned is on disk. Transactions are serialised by SQLite itself; a failed one leaves
nothing behind and raises STORAGE_FAILED, and the next one may succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_BUSY_TIMEOUT_MS = 30_000


class Database:
    """Connections to the state database."""

    def __init__(self, path: Path) -> None:
        """Open or create the database and migrate it to the newest schema.

        Raises:
            ServiceError: STORAGE_FAILED when the file cannot be opened or written.
        """
        self.path = path
        self._engine = sa.create_engine(
            f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000}
        )
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin)
        self._migrate()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is durable once the block has ended, or has no effect."""
        try:
            with self._engine.connect().execution_options(write=True) as connection, connection.begin():
                yield connection
        except sa.exc.OperationalError as error:
            raise _storage_failed(error) from error

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view of what has been committed."""
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
        except sa.exc.OperationalError as error:
            raise _storage_failed(error) from error

    def close(self) -> None:
        """Close all connections; the last one folds the write-ahead log into the file."""
        self._engine.dispose()

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", "selector:storage/migrations")
        # Alembic's own progress lines say nothing a user of the service can act on.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            with self._engine.connect().execution_options(write=True) as connection:
                config.attributes["connection"] = connection
                _refuse_newer_schema(connection, config)
                command.upgrade(config, "head")
                connection.commit()
        except sa.exc.DatabaseError as error:
            raise ServiceError(Reason.STORAGE_FAILED, f"cannot use state database {self.path}: {error.orig}") from error


def _refuse_newer_schema(connection: sa.Connection, config: Config) -> None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise ServiceError(
            Reason.STORAGE_FAILED, f"the state database has schema {found}, written by a newer version of the service"
        )


def _configure(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would defer BEGIN until the first write.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={_BUSY_TIMEOUT_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    writing = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _storage_failed(error: sa.exc.OperationalError) -> ServiceError:
    return ServiceError(
        Reason.STORAGE_FAILED,
        f"the state database could not be used ({error.orig}); nothing was applied",
        retry_after_s=1.0,
    )
