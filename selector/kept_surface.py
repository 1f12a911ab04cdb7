"""Surface features of a pool's texts, kept in a file so that a start need not compute them again.

As a snapshot, the file is only ever a shortcut: it is used when the prompts' contents and the code that describes them
are the very ones that it was made with.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from selector.code_digest import code_digest
from selector.difficulty import surface
from selector.pool import Pool
from selector.state_codec import decode, encode
from selector.storage.snapshot_files import SnapshotFiles

# Those of so few are computed in a fraction of a second.
_LEAST_PROMPTS = 10_000


class KeptSurface:
    """The file of one run."""

    def __init__(self, files: SnapshotFiles, run: int) -> None:
        self._files = files
        self._run = run
        self._kept: bytes | None = None

    def describe(self, pool: Pool) -> None:
        """Complete the features of a pool that was loaded, with those that were kept of its first prompts."""
        raw = self._files.read_surface(self._run) if len(pool) >= _LEAST_PROMPTS else None
        found = None if raw is None else _loaded(raw, pool.content_hashes)
        if found is not None:
            self._kept, features = found
            pool.describe(features)
            if len(features) == len(pool):
                return
        else:
            pool.describe()
        self.save(pool)

    def save(self, pool: Pool) -> None:
        """Keep the features, if others are kept."""
        if len(pool) < _LEAST_PROMPTS or (contents := _digest(pool.content_hashes)) == self._kept:
            return
        self._files.save_surface(self._run, encode({"code": _code(), "contents": contents, "features": pool.surface}))
        self._kept = contents


def _loaded(raw: bytes, contents: Sequence[bytes]) -> tuple[bytes, np.ndarray] | None:
    """Digest of the contents that features were kept of, and the features, if these are the first of a pool's."""
    try:
        tree = decode(raw)
        kept, features = tree["contents"], tree["features"]
        usable = tree["code"] == _code() and kept == _digest(contents[: len(features)])
    except (KeyError, TypeError, ValueError):
        return None
    return (kept, features) if usable else None


def _digest(contents: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join(contents)).digest()


@cache
def _code() -> str:
    """Identifies what describes a text; which letters are capitals is up to Python."""
    files = [Path(__file__), Path(surface.__file__)]
    return f"{code_digest(files, ('numpy', 'curriculum-selector'))} {sys.version}"
