"""What a backup holds: ``backup.json``, written last, names every file with its size and SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from selector.errors import ServiceError
from selector.storage.state_dir import BACKUP_MANIFEST as MANIFEST
from selector.stored_json import loads, record
from selector.v1.reasons import Reason

FORMAT = 1

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileFacts:
    """A file of a backup; ``path`` is relative, with slashes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RunFacts:
    """A run as of the moment of the backup; ``last_step`` is -1 before the first."""

    run_id: str
    last_step: int
    prompts: int
    events: int


@dataclass(frozen=True)
class Manifest:
    """A backup.

    Attributes:
        service: version of the service that made it.
        schema: revision of the database.
        taken_unix_seconds: when.
    """

    service: str
    schema: str
    taken_unix_seconds: float
    files: tuple[FileFacts, ...]
    runs: tuple[RunFacts, ...]

    def write(self, root: Path) -> None:
        """Write it into a backup."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (root / MANIFEST).write_text(text + "\n", encoding="utf-8")


def is_backup(directory: Path) -> bool:
    """Whether a directory is a backup, rather than a state directory."""
    return (directory / MANIFEST).is_file()


def read_manifest(root: Path) -> Manifest:
    """The manifest of a backup.

    Raises:
        ServiceError: STORAGE_FAILED when there is none, or it cannot be understood.
    """
    path = root / MANIFEST
    try:
        stored = loads(path.read_bytes())
        if stored.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        files = tuple(record(FileFacts, facts) for facts in stored.pop("files"))
        runs = tuple(record(RunFacts, facts) for facts in stored.pop("runs"))
        manifest = record(Manifest, {**stored, "files": files, "runs": runs})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServiceError(Reason.STORAGE_FAILED, f"{root} is no backup: cannot use {path}: {error}") from error
    for facts in files:
        parts = Path(facts.path).parts
        if not parts or Path(facts.path).is_absolute() or ".." in parts:
            raise ServiceError(Reason.STORAGE_FAILED, f"{path} names a file outside of the backup: {facts.path!r}")
    if len({Path(facts.path) for facts in files}) < len(files):
        raise ServiceError(Reason.STORAGE_FAILED, f"{path} names a file twice")
    return manifest


def file_facts(root: Path, advanced: Callable[[int], object]) -> Iterator[FileFacts]:
    """Facts of every file below a directory, by path; reads every byte.

    Args:
        advanced: called with the number of bytes read since the last call.
    """
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest, size = hashlib.sha256(), 0
        for chunk in chunks(path):
            digest.update(chunk)
            size += len(chunk)
            advanced(len(chunk))
        yield FileFacts(path.relative_to(root).as_posix(), size, digest.hexdigest())


def chunks(path: Path) -> Iterator[bytes]:
    """A file piece by piece."""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
