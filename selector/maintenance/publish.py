"""Making a directory that appears under its name whole and durable, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selector.errors import ServiceError
from selector.v1.reasons import Reason


def is_free(target: Path) -> bool:
    """Whether nothing, or an empty directory, has this name."""
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A new directory beside ``target`` to fill in the block; then it is flushed to the disk and takes the name.

    When the block raises it is removed; when the process is killed it stays behind as ``.NAME.partial-…``.

    Raises:
        ServiceError: STORAGE_FAILED when something of that name is there by then, or a file cannot be written.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise ServiceError(Reason.STORAGE_FAILED, f"cannot write beside {target}: {error}") from error
    try:
        yield partial
        for directory, _, names in os.walk(partial):
            for name in names:
                sync(Path(directory) / name)
            sync(Path(directory))
        # Replaces an empty directory, and fails when something has come into it meanwhile.
        os.rename(partial, target)
        sync(target.parent)
    except OSError as error:
        raise ServiceError(Reason.STORAGE_FAILED, f"cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
