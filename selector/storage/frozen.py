"""The state database as of one moment, read only: what backup and verify look at while a server writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from selector.storage.database import Database

# Only a writer that folds the write-ahead log into the file at this moment can make a reader wait.
_TIMEOUT_S = 30.0


class FrozenDatabase(Database):
    """One read transaction on a database that another process may be writing to; nothing is migrated or written.

    SQLite keeps what the transaction sees until ``close``: the write-ahead log of a busy server grows meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Begin the transaction.

        Raises:
            sa.exc.DatabaseError: the file is no database, or cannot be read.
        """
        self.path = path
        uri = f"{path.absolute().as_uri()}?mode=ro"
        self._engine = sa.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_TIMEOUT_S),
            poolclass=sa.NullPool,
        )
        sa.event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        self._connection = self._engine.connect()
        try:
            self._freeze()
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Let go of the view, and take one of this moment."""
        self._view.rollback()
        self._freeze()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """The same view every time."""
        yield self._connection

    @property
    def schema(self) -> str:
        """The revision of the schema, empty when there is none."""
        if not sa.inspect(self._connection).has_table("alembic_version"):
            return ""
        return self._connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() or ""

    @property
    def number(self) -> int:
        """Of the newest transaction."""
        return int(self._connection.exec_driver_sql("PRAGMA user_version").scalar() or 0)

    @property
    def driver(self) -> sqlite3.Connection:
        """The connection of the driver, within the transaction."""
        connection = self._connection.connection.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def close(self) -> None:
        """Let go of the view."""
        self._connection.close()
        self._engine.dispose()

    def _freeze(self) -> None:
        self._view = self._connection.begin()
        # The view begins with the first read, not with BEGIN.
        self._connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()
