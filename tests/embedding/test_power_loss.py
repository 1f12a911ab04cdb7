"""Power loss at any instant: of what was not yet synchronised, the disk may hold any part. Acknowledged rows stay.

The system calls of a session of appends are recorded. For every instant the test rebuilds disks that could have been
found afterwards: everything up to a file's last fdatasync, and of later calls a random selection, torn at random bytes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from selector.embedding import EmbeddingStorageError, EmbeddingStore
from selector.embedding import store as store_module

WIDTH = 4


@dataclass(frozen=True)
class Call:
    """One recorded call; ``data`` of a write, ``offset`` of a write or a cut."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""


@dataclass
class Recorder:
    """Stands between the store and the operating system."""

    calls: list[Call] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    fail_at_sync: int = -1

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        pwrite, ftruncate, fdatasync = os.pwrite, os.ftruncate, os.fdatasync

        def name(descriptor: int) -> str:
            return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

        def recorded_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
            self.calls.append(Call("write", name(descriptor), offset, bytes(data)))
            return pwrite(descriptor, data, offset)

        def recorded_ftruncate(descriptor: int, length: int) -> None:
            self.calls.append(Call("cut", name(descriptor), length))
            ftruncate(descriptor, length)

        def recorded_fdatasync(descriptor: int) -> None:
            if self.fail_at_sync == 0:
                self.fail_at_sync = -1
                raise OSError("input/output error")
            self.fail_at_sync -= 1
            fdatasync(descriptor)
            self.calls.append(Call("sync", name(descriptor)))

        patch.setattr(store_module.os, "pwrite", recorded_pwrite)
        patch.setattr(store_module.os, "ftruncate", recorded_ftruncate)
        patch.setattr(store_module.os, "fdatasync", recorded_fdatasync)


def disk_after(calls: list[Call], file: str, rng: np.random.Generator) -> bytes:
    """A content that the file can have when the power fails after ``calls``."""
    mine = [call for call in calls if call.file == file]
    synced = max((index for index, call in enumerate(mine) if call.kind == "sync"), default=-1)
    disk = bytearray()
    for index, call in enumerate(mine):
        certain = index < synced
        if call.kind == "sync" or not (certain or rng.random() < 0.7):
            continue
        if call.kind == "cut":
            del disk[call.offset :]
            continue
        disk.extend(bytes(max(0, call.offset + len(call.data) - len(disk))))
        reached = [True] * len(call.data) if certain else list(rng.random(len(call.data)) < rng.choice([0.5, 0.98, 1]))
        for position, there in enumerate(reached):
            if there:
                disk[call.offset + position] = call.data[position]
    return bytes(disk)


def content(index: int) -> bytes:
    return hashlib.sha256(str(index).encode()).digest()


def vectors(indices: range) -> np.ndarray:
    return np.array([np.random.default_rng(index).standard_normal(WIDTH) for index in indices], dtype=np.float32)


def test_acknowledged_rows_survive_a_power_loss_at_any_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BLOCK_ROWS", 3)
    recorder = Recorder()
    space = EmbeddingStore(tmp_path / "live").space("texts", WIDTH)
    with monkeypatch.context() as patch:
        recorder.attach(patch)
        # Every other append fails once, in another of its synchronisations, and leaves a tail to be cut.
        for round_, size in enumerate([2, 7, 1, 4, 8, 3]):
            indices = range(len(space), len(space) + size)
            if round_ % 2:
                recorder.fail_at_sync = round_ % 4
                failed = range(1000 + indices.start, 1000 + indices.start + 8)
                with pytest.raises(EmbeddingStorageError):
                    space.append([content(index) for index in failed], vectors(failed))
            space.append([content(index) for index in indices], vectors(indices))
            recorder.acknowledged.append((len(recorder.calls), indices.stop))

    (directory,) = (tmp_path / "live").iterdir()
    found = tmp_path / "found" / directory.name
    found.mkdir(parents=True)
    (found / "space.json").write_bytes((directory / "space.json").read_bytes())
    rng = np.random.default_rng(2)
    for instant in range(len(recorder.calls) + 1):
        promised = max((rows for calls, rows in recorder.acknowledged if calls <= instant), default=0)
        for _ in range(4):
            for file in ("vectors.f32", "keys.bin"):
                (found / file).write_bytes(disk_after(recorder.calls[:instant], file, rng))
            survivor = EmbeddingStore(tmp_path / "found").space("texts", WIDTH)
            rows = survivor.rows([content(index) for index in range(promised)])
            assert rows.tolist() == list(range(promised))
            assert survivor.gather(rows).tobytes() == vectors(range(promised)).tobytes()
            assert survivor.verify().size == 0
