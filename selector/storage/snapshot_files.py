"""Files of snapshots: ``DIRECTORY/RUN/EPOCH-SEQ-STEP.snapshot``, and ``DIRECTORY/RUN/surface`` of what texts look like.

A snapshot is the fold of a run's events up to SEQ, the largest of whose steps is STEP, within rewind epoch EPOCH. It is
a cache: whatever is missing or damaged is folded from the log again. Nothing is therefore flushed to the disk; a file
appears under its name when it is complete, and what it holds has a checksum.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger("selector.storage")

_NAME = re.compile(r"(\d+)-(\d+)-(-?\d+)\.snapshot")

# Newest of each run: a trainer's checkpoint lies a little before the newest, and its rewind starts from one before it.
_KEPT = 4


@dataclass(frozen=True, order=True)
class SnapshotKey:
    """Which events a snapshot is the fold of; ``last_step`` is the largest of their steps, -1 = none has one."""

    epoch: int
    seq: int
    last_step: int


class SnapshotFiles:
    """The snapshots of all runs. Calls on one run are serialised by the caller. A failed write is logged only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keys(self, run: int, epoch: int) -> list[SnapshotKey]:
        """Snapshots of a run's epoch, newest first."""
        return sorted((key for key in self._all(run) if key.epoch == epoch), reverse=True)

    def read(self, run: int, key: SnapshotKey) -> bytes | None:
        """What was saved, None when it cannot be read."""
        try:
            return self._path(run, key).read_bytes()
        except OSError:
            return None

    def save(self, run: int, key: SnapshotKey, raw: bytes) -> None:
        """Keep a snapshot, and forget all but the newest."""
        try:
            self._write(self._path(run, key), raw)
            for old in sorted(self._all(run), reverse=True)[_KEPT:]:
                self._path(run, old).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("no snapshot of run %d was written, so it takes longer to load: %s", run, error)

    def read_surface(self, run: int) -> bytes | None:
        """The surface features that were saved, None when they cannot be read."""
        try:
            return self._surface(run).read_bytes()
        except OSError:
            return None

    def save_surface(self, run: int, raw: bytes) -> None:
        """Keep the surface features of a run's prompts."""
        try:
            self._write(self._surface(run), raw)
        except OSError as error:
            _log.warning(
                "the features of the texts of run %d were not written, so it takes longer to load: %s", run, error
            )

    def rewound(self, run: int, epoch: int, step: int) -> None:
        """A rewind to ``step`` began ``epoch``: carry over what no dropped event is part of, forget the rest."""
        for key in self._all(run):
            if key.epoch == epoch - 1 and key.last_step < step:
                moved = SnapshotKey(epoch, key.seq, key.last_step)
                try:
                    os.replace(self._path(run, key), self._path(run, moved))
                except OSError as error:
                    _log.warning("a snapshot of run %d could not be kept: %s", run, error)
            else:
                self._remove(self._path(run, key))

    def copy(self, source: int, epoch: int, target: int, before_step: int) -> None:
        """Give a fork the newest snapshot that holds nothing of ``before_step`` or later."""
        for key in self.keys(source, epoch):
            raw = self.read(source, key) if key.last_step < before_step else None
            if raw is not None:
                self.save(target, SnapshotKey(0, key.seq, key.last_step), raw)
                return

    def drop(self, run: int) -> None:
        """Forget a run."""
        shutil.rmtree(self._directory / str(run), ignore_errors=True)

    def keep_only(self, runs: Collection[int]) -> None:
        """Forget all other runs, and remains of interrupted writes."""
        if not self._directory.is_dir():
            return
        names = {str(run) for run in runs}
        for path in self._directory.iterdir():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)
                continue
            for partial in path.glob("*.partial"):
                self._remove(partial)

    def _all(self, run: int) -> list[SnapshotKey]:
        try:
            names = os.listdir(self._directory / str(run))
        except OSError:
            return []
        found = [_NAME.fullmatch(name) for name in names]
        return [SnapshotKey(*map(int, match.groups())) for match in found if match]

    def _surface(self, run: int) -> Path:
        return self._directory / str(run) / "surface"

    def _path(self, run: int, key: SnapshotKey) -> Path:
        return self._directory / str(run) / f"{key.epoch}-{key.seq}-{key.last_step}.snapshot"

    @staticmethod
    def _write(path: Path, raw: bytes) -> None:
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(raw)
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s could not be removed: %s", path, error)
