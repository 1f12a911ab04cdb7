"""Files that may be replaced while the server runs, such as certificates and tokens.

Asking costs one ``stat`` per file, so it can be done at every call: what was taken away stops to count at once, and
nothing has to be watched in between. Contents are not kept, only their digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

# A file that was written a moment ago may be written again within the same tick of the file system's clock.
_TICK_S = 2.0

_LARGEST_BYTES = 2**20

_Signature = tuple[int, ...] | None


class WatchedFiles:
    """A set of files that belong together; read whole, and again when one of them has changed."""

    def __init__(self, paths: Sequence[Path], now: Callable[[], float]) -> None:
        """``now`` gives Unix seconds."""
        self._paths = tuple(paths)
        self._now = now
        self._signatures: tuple[_Signature, ...] | None = None
        self._settled = False
        self._digest = b""

    def changed(self, *, force: bool = False) -> tuple[bytes, ...] | None:
        """The contents, in the order of the paths, if they differ from those returned before.

        Args:
            force: read the files whatever their times say, and return them whatever they hold.

        Raises:
            OSError: a file cannot be read; once, until the files change again.
        """
        signatures = tuple(_signature(path) for path in self._paths)
        if signatures == self._signatures and self._settled and not force:
            return None
        self._signatures = signatures
        # What cannot be read is not tried again before it changes.
        self._settled = True
        contents = tuple(_read(path) for path in self._paths)
        newest = max((time for signature in signatures if signature for time in signature[:2]), default=0)
        self._settled = self._now() - newest / 1e9 > _TICK_S
        digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).digest()
        if digest == self._digest and not force:
            return None
        self._digest = digest
        return contents

    def unchanged(self) -> bool:
        """Whether the files are still those that were read last."""
        return self._signatures == tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _read(path: Path) -> bytes:
    # A pipe without a writer would be waited for.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise OSError(f"{path} is larger than {_LARGEST_BYTES} bytes")
    return content
