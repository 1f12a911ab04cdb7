"""Every format that is stored, as a target: what reads it, sound examples, and what a reader may raise.

A reader of malformed bytes raises what its contract names, and nothing else; it does not crash, hang or allocate what
the bytes merely declare; and where the format has a checksum it returns nothing that was not written. ``READERS`` is
the list: a new format is added there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from selector import state_codec
from selector.cli.options import load_config
from selector.config import config_from_json, config_to_json, resolve
from selector.difficulty.adapter import Adapter
from selector.errors import ServiceError
from selector.maintenance.manifest import FileFacts, Manifest, RunFacts
from selector.maintenance.restore import restore
from selector.replay import records
from selector.replay.history import Mark, PushEvent, SampleEvent
from selector.replay.plans import ROW
from selector.requests import RegisterResult, ReportResult
from selector.service import token_file
from selector.storage.state_dir import BACKUP_MANIFEST
from selector.stored_json import loads, record
from tests.difficulty.adapters import random_adapter
from tests.fuzz import damaged_stores, event_rows
from tests.fuzz.faults import Fault
from tests.fuzz.hostile_text import YAML, hostile_json


@dataclass(frozen=True)
class Reader:
    """A reader of one format.

    Attributes:
        read: raises for bytes that are malformed, and returns for others.
        seeds: sound bytes.
        raises: what it may raise.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    raises: tuple[type[Exception], ...] = (ValueError,)


class FormatTarget:
    """Tries inputs on one reader."""

    def __init__(self, name: str, scratch: Path) -> None:
        self._reader = READERS[name](scratch)

    def seeds(self) -> list[bytes]:
        """Sound inputs."""
        return list(self._reader.seeds())

    def __call__(self, data: bytes) -> str:
        """``READ``, or the name of what the reader raised as it may."""
        try:
            self._reader.read(data)
        except self._reader.raises as error:
            return type(error).__name__
        return "READ"


def _events(_scratch: Path) -> Reader:
    return Reader(event_rows.read, event_rows.seeds)


def _replay_records(_scratch: Path) -> Reader:
    """The first byte chooses the record."""
    decoders: list[Callable[[bytes], object]] = [
        lambda data: records.decode_groups([data]),
        records.decode_sample,
        records.decode_push,
        records.decode_mark,
        records.decode_meta,
    ]
    rows = np.zeros(1, dtype=ROW)
    meta = records.RunMeta(3, 2, ((0, 1), (4, 6)), 1, (2, 3), {"pushes": 4})
    sound = [
        records.encode_groups(rows, {0: ("prompt", "group@1")})[0],
        records.encode_sample(SampleEvent(5, 2, b"f" * 16, 2, 4, 0.5, (1, 3), (1, 2))),
        records.encode_push(PushEvent(4, 2, 2, 3, "request", b"f" * 16, b'{"stored": 3}')),
        records.encode_mark(Mark(2, 4, 1)),
        records.encode_meta(meta),
    ]

    def read(data: bytes) -> None:
        decoders[(data[0] if data else 0) % len(decoders)](data[1:])

    def seeds() -> list[bytes]:
        metas = [b"\4" + text for text in hostile_json(sound[4].decode())]
        return [*(bytes([i]) + content for i, content in enumerate(sound)), *metas]

    return Reader(read, seeds)


def _payloads(scratch: Path) -> Reader:
    store = damaged_stores.Payloads(scratch)
    return Reader(store.read, store.seeds, (ServiceError,))


def _embeddings(scratch: Path) -> Reader:
    files = damaged_stores.EmbeddingFiles(scratch)
    return Reader(files.read, files.seeds, files.raises)


def _database(scratch: Path) -> Reader:
    database = damaged_stores.DatabaseFile(scratch)
    return Reader(database.read, database.seeds, (ServiceError, ValueError, OSError))


def _adapters(scratch: Path) -> Reader:
    path = scratch / "adapter.safetensors"

    def seeds() -> list[bytes]:
        random_adapter(0, 4, 3).save(path)
        sound = path.read_bytes()
        size = int.from_bytes(sound[:8], "little")
        headers = hostile_json(sound[8 : 8 + size].decode())[:3000]
        headers += [
            sound[8 : 8 + size].replace(b'"F32"', f'"{dtype}"'.encode(), times)
            for dtype in ("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "")
            for times in (1, -1)
        ]
        return [sound, *(len(header).to_bytes(8, "little") + header + sound[8 + size :] for header in headers)]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        Adapter.load(path)

    return Reader(read, seeds)


def _configs(_scratch: Path) -> Reader:
    def seeds() -> list[bytes]:
        explicit: list[dict[str, Any]] = [
            {},
            {"preset": "PAPER"},
            {"sampling": {"temperature": 1.0, "log_prob_mode": "RAW"}},
        ]
        return [text for given in explicit for text in hostile_json(config_to_json(resolve(given)))]

    return Reader(lambda data: config_from_json(data.decode("utf-8", "surrogateescape")), seeds)


def _answers(_scratch: Path) -> Reader:
    """What was answered to a request that may be repeated; the first byte chooses its kind."""
    answers = (ReportResult(1, 1, 0, 0, 0, 0), RegisterResult(1, 0, 0, 1, ["a"]))

    def seeds() -> list[bytes]:
        texts = [hostile_json(json.dumps(asdict(answer))) for answer in answers]
        return [bytes([kind]) + text for kind in range(len(answers)) for text in texts[kind]]

    def read(data: bytes) -> None:
        record(type(answers[(data[0] if data else 0) % len(answers)]), loads(data[1:]))

    return Reader(read, seeds)


def _option_files(scratch: Path) -> Reader:
    path = scratch / "config.yaml"

    def read(data: bytes) -> None:
        from selector.cli.serve import serve

        path.write_bytes(data)
        load_config(click.Context(serve), next(p for p in serve.params if p.name == "config"), path)

    sound = [
        b"listen: 127.0.0.1:0\nstate-dir: /tmp/state\nadapters: {a: b}\ngrace-s: 1.5\n",
        b"adapters:\n  - a=b\n  - c=d\nmax-runs: 5\n",
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    ]
    return Reader(read, lambda: [*sound, *YAML], (click.UsageError,))


def _token_files(_scratch: Path) -> Reader:
    sound = [
        b"a-token-of-an-admin\nanother-token-one-a-line\n",
        b"tokens:\n  - {name: n, sha256: '%s', scope: admin}\n" % (b"ab" * 32),
        b"tokens:\n  - token: a-long-random-text\n    scope: write\n    runs: [team-a-*, shared]\n",
    ]
    return Reader(token_file.parse, lambda: [*sound, *YAML], (token_file.TokenFileError,))


def _manifests(scratch: Path) -> Reader:
    """``backup.json``, read as by a restore and compared with the files that it names."""
    content = b"what was backed up"
    files = (FileFacts("state.db", len(content), hashlib.sha256(content).hexdigest()),)
    manifest = Manifest("1", "0001", 1.5, files, (RunFacts("run", 1, 2, 3),))
    backup = scratch / "backup"

    def seeds() -> list[bytes]:
        backup.mkdir()
        (backup / "state.db").write_bytes(content)
        manifest.write(backup)
        return hostile_json((backup / BACKUP_MANIFEST).read_text())

    def read(data: bytes) -> None:
        (backup / BACKUP_MANIFEST).write_bytes(data)
        target = scratch / "restored"
        shutil.rmtree(target, ignore_errors=True)
        restore(backup, target, lambda *_: None)
        restored = {path.name: path.read_bytes() for path in target.rglob("*") if path.is_file()}
        if restored not in ({}, {"state.db": content}):
            raise Fault("something else was restored than what was backed up", str(restored))

    return Reader(read, seeds, (ServiceError,))


def _states(_scratch: Path) -> Reader:
    """Binary states; the checksum of an input that begins with 1 is set right, so that what it protects is read."""
    tree = {"a": np.arange(3.0), "b": b"bytes", "c": [1, "x", None], "d": {"e": np.zeros((2, 2), dtype=np.uint8)}}
    head = struct.Struct("<8sIQ")

    def read(data: bytes) -> None:
        raw = data[1:]
        if data[:1] == b"\1" and len(raw) >= head.size:
            magic, _, length = head.unpack_from(raw)
            raw = head.pack(magic, zlib.crc32(raw[head.size :], length & 0xFFFFFFFF), length) + raw[head.size :]
        state_codec.decode(raw)

    def seeds() -> list[bytes]:
        sound = state_codec.encode(tree)
        magic, _, length = head.unpack_from(sound)
        text, rest = sound[head.size : head.size + length].decode(), sound[head.size + length :]
        changed = [head.pack(magic, 0, len(other)) + other + rest for other in hostile_json(text)]
        return [b"\0" + sound, *(b"\1" + other for other in changed)]

    return Reader(read, seeds)


READERS: dict[str, Callable[[Path], Reader]] = {
    "events": _events,
    "replay-records": _replay_records,
    "payloads": _payloads,
    "embeddings": _embeddings,
    "database": _database,
    "adapters": _adapters,
    "configs": _configs,
    "answers": _answers,
    "option-files": _option_files,
    "token-files": _token_files,
    "manifests": _manifests,
    "states": _states,
}
