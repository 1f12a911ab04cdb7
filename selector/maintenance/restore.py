"""Making a state directory of a backup; every byte is checked on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from selector.errors import ServiceError
from selector.maintenance.manifest import Manifest, chunks, read_manifest
from selector.maintenance.publish import is_free, published
from selector.storage.database import check_schema_known
from selector.v1.reasons import Reason


def restore(backup: Path, target: Path, progress: Callable[[str, int, int], object]) -> Manifest:
    """Copy a backup into a directory that is new or empty, for a server to open. The backup stays as it is.

    Raises:
        ServiceError: STORAGE_FAILED when it is damaged, incomplete, or written by a newer version of the service; the
            target is as it was.
    """
    manifest = read_manifest(backup)
    check_schema_known(manifest.schema)
    if not is_free(target):
        raise ServiceError(Reason.STORAGE_FAILED, f"{target} is there already: give a new or empty directory")
    _check_sizes(backup, manifest)
    total, done = sum(facts.bytes for facts in manifest.files), 0
    with published(target) as partial:
        for facts in manifest.files:
            digest = hashlib.sha256()
            path = partial / facts.path
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(path, "xb") as copy:
                for chunk in chunks(backup / facts.path):
                    digest.update(chunk)
                    copy.write(chunk)
                    done += len(chunk)
                    progress("files", done, total)
            if digest.hexdigest() != facts.sha256:
                raise ServiceError(Reason.STORAGE_FAILED, f"{backup / facts.path} is damaged: its checksum is wrong")
    return manifest


def _check_sizes(backup: Path, manifest: Manifest) -> None:
    for facts in manifest.files:
        path = backup / facts.path
        if not path.is_file():
            raise ServiceError(Reason.STORAGE_FAILED, f"{path} is missing")
        if path.stat().st_size != facts.bytes:
            message = f"{path} is damaged: it has {path.stat().st_size} bytes, expected {facts.bytes}"
            raise ServiceError(Reason.STORAGE_FAILED, message)
