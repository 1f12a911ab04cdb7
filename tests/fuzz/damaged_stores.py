"""Stores whose files are replaced by the input, opened as the service opens them."""

from __future__ import annotations

import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from selector.config import ReplayConfig
from selector.embedding.embedder import Embedder
from selector.embedding.errors import EmbeddingError
from selector.embedding.store import EmbeddingStore
from selector.replay.group import CheckedGroup
from selector.replay.plans import SampleRequest
from selector.replay.replay_run import ReplayRun
from selector.replay.store import ReplayStore
from selector.storage.database import Database
from selector.storage.runs import RunStore
from tests.fuzz.faults import Fault
from tests.fuzz.hostile_text import hostile_json
from tests.fuzz.world import write_template

_WIDTH = 4


class Payloads:
    """A payload of a replay store, replaced behind the store's back."""

    def __init__(self, scratch: Path) -> None:
        self._store = ReplayStore(scratch / "replay", 1 << 24)
        self._run = ReplayRun(self._store, 1, ReplayConfig(), 0, 10)
        self._written = os.urandom(40) + b"payload of a group" * 4
        self._run.push([(CheckedGroup("p", "g", 0, 0.5, True, 2), self._written)], 0, "", skip_refused=False)
        self._sample = self._run.sample(SampleRequest(0, 1))

    def seeds(self) -> list[bytes]:
        """What was written."""
        return [self._written]

    def read(self, data: bytes) -> None:
        """Read it back through the run."""
        with self._store.write(1) as writer:
            writer.payload(self._sample.positions[0], data)
        (found,) = self._run.read(self._sample, 0, 1 << 20)
        # A CRC-32 can be met by intent, not by damage.
        if found.payload != self._written and zlib.crc32(found.payload) != zlib.crc32(self._written):
            raise Fault("a damaged payload was handed out", "")


class EmbeddingFiles:
    """The three files of an embedding space; an input replaces one of them (first byte)."""

    raises = (EmbeddingError,)
    _NAMES = ("space.json", "vectors.f32", "keys.bin")

    def __init__(self, scratch: Path) -> None:
        self._root = scratch / "embeddings"
        self._sound = scratch / "sound"
        vectors = np.random.default_rng(0).normal(size=(5, _WIDTH)).astype("<f4")
        store = EmbeddingStore(self._sound)
        Embedder(None, store).keep(vectors)
        self._vectors = {row.tobytes() for row in vectors}
        self._directory = next(self._sound.iterdir()).name

    def seeds(self) -> list[bytes]:
        """Each file as it was written, and strange descriptions."""
        files = [(self._sound / self._directory / name).read_bytes() for name in self._NAMES]
        descriptions = [b"\0" + text for text in hostile_json(files[0].decode())]
        return [*(bytes([i]) + content for i, content in enumerate(files)), *descriptions]

    def read(self, data: bytes) -> None:
        """Open every space and gather what is in it."""
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(self._sound, self._root)
        name = self._NAMES[(data[0] if data else 0) % 3]
        (self._root / self._directory / name).write_bytes(data[1:])
        store = EmbeddingStore(self._root)
        for space in store.spaces():
            for row in space.gather(np.arange(len(space))):
                if row.tobytes() not in self._vectors:
                    raise Fault("a vector that was never stored was handed out", name)
        if [path.name for path in self._root.iterdir()] != [self._directory]:
            raise Fault("reading a space made another", name)


class DatabaseFile:
    """The state database, with pieces of the file overwritten; loads every run's rows and events."""

    def __init__(self, scratch: Path) -> None:
        write_template(scratch / "template")
        self._sound = (scratch / "template" / "state.db").read_bytes()
        self._path = scratch / "damaged.db"
        self._executor = ThreadPoolExecutor(1)

    def seeds(self) -> list[bytes]:
        """Patches: an offset (4 bytes) and the bytes from there on."""
        step = 4096
        return [at.to_bytes(4, "little") + self._sound[at : at + 64] for at in range(0, len(self._sound), step)]

    def read(self, data: bytes) -> None:
        """Open the patched database and read everything."""
        at = int.from_bytes(data[:4], "little") % len(self._sound)
        content = self._sound[:at] + data[4:] + self._sound[at + len(data[4:]) :]
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._path.write_bytes(content)
        database = Database(self._path)
        try:
            store = RunStore(database)
            for row in store.runs():
                pool = store.prompts(row.id)
                for event in store.events(row.id):
                    store.find_selection(row.id, event.step or 0, 1, 0)
                assert isinstance(pool, list)
        finally:
            database.close()
