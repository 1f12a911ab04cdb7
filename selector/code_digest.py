"""What was computed by some code, and with which libraries: a key for what is kept of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def code_digest(files: Iterable[Path], distributions: Iterable[str]) -> str:
    """Another one for other content of the files, in their order, or other versions of the distributions."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes() if path.is_file() else b"")
    for name in distributions:
        try:
            digest.update(f"{name}={version(name)}".encode())
        except PackageNotFoundError:
            digest.update(f"{name}=?".encode())
    return digest.hexdigest()
