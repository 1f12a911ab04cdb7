"""The state database: one SQLite file in WAL mode with full synchronisation, brought up to date by migrations.

A write transaction that has returned is on disk. Writers take turns, however long one takes; readers wait for nobody.
A failed transaction leaves nothing behind and raises STORAGE_FAILED, and the next one may succeed.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from selector import __version__
from selector.errors import ServiceError
from selector.storage.watermark import Store, Watermark
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.storage")

# For what other programs do with the file, such as looking into it; the service's own writers do not meet in SQLite.
_BUSY_TIMEOUT_MS = 30_000

_CONNECTIONS_KEPT = 8

# Transactions between two folds of the log, at least. SQLite itself folds it when it has a thousand pages, which is
# after some thirty steps with batches of a thousand prompts, and within whichever transaction that is.
_FOLDED_AFTER = 8

# SQLite's user_version, which counts the transactions from 1, is a number of 31 bits. 0 = nobody counted.
_NUMBERS = 2**31 - 1

# Files up to this size are checked wholly at every start: about a second.
_CHECKED_BYTES = 256 << 20

_MIGRATIONS = "selector:storage/migrations"


class Database:
    """Connections to the state database."""

    def __init__(self, path: Path, watermark: Watermark | None = None) -> None:
        """Open or create the database and migrate it to the newest schema.

        Args:
            watermark: tells whether the newest transactions are missing; None = nobody knows.

        Raises:
            ServiceError: STORAGE_FAILED when the file cannot be opened or written, or is damaged.
        """
        self.path = path
        self._watermark = watermark
        # Transactions so far, as SQLite keeps them with the content.
        self._number = 0
        # Of these, when the log was last folded into the file.
        self._folded = 0
        # One process has the directory, so turns can be taken here, where waiting has no time limit.
        self._writing = threading.Lock()
        # No transaction outlasts a call into this module's users, so there are no more connections than threads.
        self._engine = sa.create_engine(
            f"sqlite:///{path}",
            connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000},
            # Errors, and so the log, must not quote what prompts say.
            hide_parameters=True,
            pool_size=_CONNECTIONS_KEPT,
            max_overflow=-1,
            # The one used last has the most of the file at hand.
            pool_use_lifo=True,
        )
        # Kept from one transaction to the next, begun and ended by hand: SQLAlchemy takes longer for that than SQLite.
        self._writer: sa.Connection | None = None
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin)
        try:
            self._check()
            self._migrate()
        except (sa.exc.DatabaseError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            raise ServiceError(Reason.STORAGE_FAILED, f"cannot use state database {path}: {cause}") from error

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is durable once the block has ended, or has no effect; it waits for its turn.

        Blocks must not be nested, and must not wait for anything but the database, nor end the transaction.
        """
        with self._writing:
            number = self._number % _NUMBERS + 1
            begun = False
            try:
                with self._written(number) as connection:
                    begun = True
                    yield connection
            except ServiceError as error:
                # Where another program has the file locked, nothing was written, and all would wait for it once more.
                if begun and error.reason is Reason.STORAGE_FAILED:
                    self._overwrite()
                raise
            self._number = number
            if self._watermark is not None:
                self._watermark.advance(Store.DATABASE, number)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view of what has been committed.

        The write-ahead log cannot be folded into the file before the block ends, so nothing must be waited for in it.
        """
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise _storage_failed(error) from error

    def row(self, query: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        """The first row that a query of what has been committed finds; for those that every step asks."""
        try:
            connection = self._engine.raw_connection()
            try:
                found: tuple[Any, ...] | None = driver_of(connection).execute(query, parameters).fetchone()
                return found
            finally:
                connection.close()
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise _storage_failed(error) from error

    def fold_log(self) -> None:
        """Move the write-ahead log into the file if there is enough of it, so that no transaction takes time for that.

        Nobody waits for it: what it cannot do now is done later.
        """
        if 0 <= self._number - self._folded < _FOLDED_AFTER:
            return
        self._folded = self._number
        self.row("PRAGMA wal_checkpoint(PASSIVE)", ())

    def close(self) -> None:
        """Close all connections; the last one folds the write-ahead log into the file."""
        self._close_writer()
        self._engine.dispose()

    @contextmanager
    def _written(self, number: int) -> Iterator[sa.Connection]:
        """A transaction of this number."""
        try:
            if self._writer is None:
                self._writer = self._engine.connect().execution_options(begin="")
            driver = driver_of(self._writer.connection)
            driver.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                driver.execute(f"PRAGMA user_version = {number}")
                driver.execute("COMMIT")
            except BaseException:
                self._roll_back(driver)
                raise
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise _storage_failed(error) from error

    def _roll_back(self, driver: sqlite3.Connection) -> None:
        try:
            # SQLite may have done so by itself.
            if driver.in_transaction:
                driver.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing rolls back as well.
            self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            with suppress(sa.exc.SQLAlchemyError, sqlite3.Error):
                self._writer.invalidate()
                self._writer.close()
            self._writer = None

    def _overwrite(self) -> None:
        """Write over a transaction that failed: when its flush was what failed, the log holds it whole.

        After a crash SQLite would take it for one that was acknowledged.
        """
        with suppress(ServiceError), self._written(self._number):
            pass

    def _check(self) -> None:
        """Refuse a file that is damaged, or has lost transactions; a large one is not read to its end for that."""
        there = self.path.exists() and self.path.stat().st_size > 0
        with self._engine.connect() as connection:
            if there and self.path.stat().st_size <= _CHECKED_BYTES:
                found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
                if found != "ok":
                    what = " ".join(str(found).split())
                    raise ServiceError(
                        Reason.STORAGE_FAILED, f"state database {self.path} is damaged ({what}); restore a backup"
                    )
            self._number = int(connection.exec_driver_sql("PRAGMA user_version").scalar() or 0)
        if self._watermark is not None:
            behind = transactions_lost(self._watermark.mark(Store.DATABASE), self._number)
            self._watermark.check(Store.DATABASE, behind, self.path)

    def _migrate(self) -> None:
        config = _migrations()
        # Alembic's own progress lines say nothing a user of the service can act on.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # One transaction from the look at the schema to the last statement: an upgrade that is cut short leaves the old
        # schema.
        with self._engine.connect().execution_options(begin="BEGIN IMMEDIATE") as connection:
            config.attributes["connection"] = connection
            found = _schema(connection)
            if found is not None:
                check_schema_known(found)
            command.upgrade(config, "head")
            connection.commit()


def transactions_lost(mark: int, number: int) -> int:
    """Transactions between the number of the newest one there is and that of the newest one there was, 0 = unknown."""
    if not mark:
        return 0
    ahead = (mark - number) % _NUMBERS
    # The count starts over at some time; nothing loses half of all numbers.
    return ahead if ahead < _NUMBERS // 2 else 0


def newest_schema() -> str:
    """The schema that this version of the service writes."""
    return ScriptDirectory.from_config(_migrations()).get_current_head() or ""


def check_schema_known(found: str) -> None:
    """Refuse a schema that this version cannot read.

    Raises:
        ServiceError: STORAGE_FAILED, naming both versions.
    """
    known = {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}
    if found not in known:
        raise ServiceError(
            Reason.STORAGE_FAILED,
            f"the state database has schema {found or 'none'!r}, written by a newer version of the service; this "
            f"version, {__version__}, knows schemas up to {newest_schema()!r}",
        )


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", _MIGRATIONS)
    return config


def _schema(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _configure(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would defer BEGIN until the first write.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={_BUSY_TIMEOUT_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    statement = connection.get_execution_options().get("begin", "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


def driver_of(connection: sa.PoolProxiedConnection) -> sqlite3.Connection:
    """SQLite's own connection, for statements that every step takes."""
    driver = connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _storage_failed(error: sa.exc.SQLAlchemyError | sqlite3.Error) -> ServiceError:
    # The text of SQLAlchemy's own message holds the statement and its values.
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if not isinstance(cause, sqlite3.OperationalError | sa.exc.TimeoutError):
        _log.error("a transaction failed for a reason that trying again may not mend", exc_info=error)
    return ServiceError(
        Reason.STORAGE_FAILED,
        f"the state database could not be used ({cause}); nothing was applied",
        retry_after_s=1.0,
    )
