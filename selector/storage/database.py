"""The state database: one SQLite file in WAL mode with full synchronisation, brought up to date by migrations.

A write transaction that has returned is on disk. Writers take turns, however long one takes; readers wait for nobody.
A failed transaction leaves nothing behind and raises STORAGE_FAILED, and the next one may succeed.
"""

from __future__ import annotations

import logging
import threading
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

_log = logging.getLogger("selector.storage")

# For what other programs do with the file, such as looking into it; the service's own writers do not meet in SQLite.
_BUSY_TIMEOUT_MS = 30_000

_CONNECTIONS_KEPT = 8


class Database:
    """Connections to the state database."""

    def __init__(self, path: Path) -> None:
        """Open or create the database and migrate it to the newest schema.

        Raises:
            ServiceError: STORAGE_FAILED when the file cannot be opened or written.
        """
        self.path = path
        # One process has the directory, so turns can be taken here, where waiting has no time limit.
        self._writing = threading.Lock()
        # No transaction outlasts a call into this module's users, so there are no more connections than threads.
        self._engine = sa.create_engine(
            f"sqlite:///{path}",
            connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000},
            pool_size=_CONNECTIONS_KEPT,
            max_overflow=-1,
        )
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin)
        self._migrate()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is durable once the block has ended, or has no effect; it waits for its turn.

        Blocks must not be nested, and must not wait for anything but the database.
        """
        with self._writing, self._transaction(write=True) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view of what has been committed.

        The write-ahead log cannot be folded into the file before the block ends, so nothing must be waited for in it.
        """
        with self._transaction(write=False) as connection:
            yield connection

    def close(self) -> None:
        """Close all connections; the last one folds the write-ahead log into the file."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(write=write) as connection, connection.begin():
                yield connection
        except sa.exc.SQLAlchemyError as error:
            if not isinstance(error, sa.exc.OperationalError | sa.exc.TimeoutError):
                _log.error("a transaction failed for a reason that trying again may not mend", exc_info=error)
            raise _storage_failed(error) from error

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


def _storage_failed(error: sa.exc.SQLAlchemyError) -> ServiceError:
    # The text of SQLAlchemy's own message holds the statement and its values.
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return ServiceError(
        Reason.STORAGE_FAILED,
        f"the state database could not be used ({cause}); nothing was applied",
        retry_after_s=1.0,
    )
