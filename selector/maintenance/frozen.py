"""The stores of a state directory as of one common moment, without stopping or delaying the server that has it open.

No transaction spans the two stores, so their views have to be taken at one moment:

1. take a view of the replay store,
2. take a view of the database,
3. look whether the replay store was written to since 1; if so, begin again.

If it was not, both views were the newest at the moment of 2: together they are what a server killed at that moment
would have left, with every call in it that was answered before. No lock is waited for and none is held, so neither the
server nor this can be kept waiting. Embeddings need no view: they are only appended to, and always before the database
refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from selector.errors import ServiceError
from selector.maintenance.manifest import is_backup
from selector.replay.frozen import FrozenReplay
from selector.storage.frozen import FrozenDatabase
from selector.v1.reasons import Reason

# A try takes well below a millisecond, a write to a store that flushes to a disk rather more.
_TRIES = 100_000


@dataclass(frozen=True)
class FrozenStores:
    """Both stores as of one moment.

    Attributes:
        embeddings: directory of the embeddings, which go on growing.
    """

    database: FrozenDatabase
    replay: FrozenReplay
    embeddings: Path


@contextmanager
def frozen_stores(directory: Path) -> Iterator[FrozenStores]:
    """The stores of a state directory, served or not, or of a backup.

    Raises:
        ServiceError: STORAGE_FAILED when a store cannot be read.
    """
    with closing(frozen_database(directory)) as database, closing(frozen_replay(directory)) as replay:
        for _ in range(_TRIES):
            replay.renew()
            database.renew()
            if replay.newest:
                yield FrozenStores(database, replay, directory / "embeddings")
                return
    raise ServiceError(Reason.STORAGE_FAILED, f"{directory} is written to so fast that no moment in between was found")


def frozen_database(directory: Path) -> FrozenDatabase:
    """The database of a state directory as of now; raises as ``frozen_stores``."""
    path = directory / "state.db"
    try:
        if not path.is_file():
            raise ServiceError(Reason.STORAGE_FAILED, f"{directory} is no state directory: it has no state.db")
        return FrozenDatabase(path)
    except sa.exc.SQLAlchemyError as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        raise ServiceError(Reason.STORAGE_FAILED, f"state database {path} cannot be read: {cause}") from error


def frozen_replay(directory: Path) -> FrozenReplay:
    """The replay store of a state directory as of now; raises as ``frozen_stores``."""
    return FrozenReplay(directory / "replay", written_to=not is_backup(directory))
