"""The state directory: its layout, and the lock that keeps a second server out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from selector.errors import ServiceError
from selector.v1.reasons import Reason

# Names what a backup holds, so it is there in a backup and in no state directory.
BACKUP_MANIFEST = "backup.json"


class StateDirectory:
    """An open, locked state directory.

    Layout: ``state.db`` (SQLite), ``embeddings/`` (memory-mapped vectors), ``replay/`` (LMDB),
    ``snapshots/`` (folded states and features of texts, which may be deleted while no server runs), ``lock``.
    """

    def __init__(self, path: Path) -> None:
        """Create the directory if needed and lock it.

        Raises:
            ServiceError: STORAGE_FAILED when it cannot be created, another process has it, or it is a backup.
        """
        self.path = path
        if (path / BACKUP_MANIFEST).exists():
            # Served, it would no longer be what it says.
            raise ServiceError(
                Reason.STORAGE_FAILED,
                f"{path} is a backup; make a state directory of it with `selector restore {path} DIR`",
            )
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServiceError(Reason.STORAGE_FAILED, f"cannot use state directory {path}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 64, 0).decode(errors="replace").strip() or "another process"
            os.close(self._lock)
            raise ServiceError(
                Reason.STORAGE_FAILED, f"state directory {path} is in use by {holder}; stop that server first"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()}\n".encode(), 0)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "state.db"

    @property
    def embeddings(self) -> Path:
        """Directory of the embedding store."""
        return self.path / "embeddings"

    @property
    def replay(self) -> Path:
        """Directory of the replay store."""
        return self.path / "replay"

    @property
    def snapshots(self) -> Path:
        """Directory of snapshots."""
        return self.path / "snapshots"

    @property
    def reserve(self) -> Path:
        """File of the space that is kept back for deleting."""
        return self.path / "reserve"

    @property
    def watermark(self) -> Path:
        """File that tells how far the stores have got."""
        return self.path / "watermark"

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)
