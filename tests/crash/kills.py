"""Ways to kill the server: at a random time, right after an answer, or in the very system call of a thread.

``strace`` delivers the signal on entry, so the call itself is not carried out: what came before it is in the files, and
nothing of what comes after.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ANY_OF_THE_STATE = "*"

# System calls of the storage, with the file that they are for, and how often one thread makes them in a second or two.
_STORAGE_CALLS = [
    ("pwrite64", "state.db-wal", 40),
    ("fdatasync", "state.db-wal", 6),
    ("pwrite64", "state.db", 6),
    ("fdatasync", "state.db", 1),
    ("pwrite64", "data.mdb", 12),
    ("fdatasync", "data.mdb", 4),
    ("pwrite64", "vectors.f32", 2),
    ("pwrite64", "keys.bin", 2),
    ("rename", _ANY_OF_THE_STATE, 2),
]
_EMBEDDING_CALLS = [
    ("pwrite64", "vectors.f32", 3),
    ("fdatasync", "vectors.f32", 3),
    ("pwrite64", "keys.bin", 3),
    ("fdatasync", "keys.bin", 3),
]
# Between the storage and the caller.
_OTHER_CALLS = [("sendmsg", "", 20), ("futex", "", 200), ("write", "", 50), ("recvmsg", "", 20)]
# Of a start over an existing state directory, and over a new one.
_START_CALLS = [
    ("fcntl", _ANY_OF_THE_STATE, 80),
    ("newfstatat", _ANY_OF_THE_STATE, 45),
    ("pread64", _ANY_OF_THE_STATE, 35),
    ("pwrite64", _ANY_OF_THE_STATE, 8),
    ("openat", _ANY_OF_THE_STATE, 8),
    ("ftruncate", _ANY_OF_THE_STATE, 2),
]
_MIGRATION_CALLS = [
    ("pwrite64", _ANY_OF_THE_STATE, 45),
    ("fdatasync", _ANY_OF_THE_STATE, 11),
    ("newfstatat", _ANY_OF_THE_STATE, 20),
    ("openat", _ANY_OF_THE_STATE, 9),
    ("ftruncate", _ANY_OF_THE_STATE, 3),
]
_STATE_FILES = ("", "lock", "state.db", "state.db-wal", "state.db-shm", "replay/data.mdb", "replay/lock.mdb")


@dataclass(frozen=True)
class Kill:
    """How one server ends.

    Attributes:
        kind: for the report.
        when: LOAD, START, DRAIN or MIGRATION: what the server is doing meanwhile.
        encoder: it is started with the encoder of texts.
        delay_s: until the kill, or until strace is attached.
        answers: kill right after so many answers, 0 = not that way.
        call: system call to kill at, empty = not that way.
        file: that the call is for, empty = any.
        number: the how many-th such call of a thread.
    """

    kind: str
    when: str = "LOAD"
    encoder: bool = False
    delay_s: float = 0.0
    answers: int = 0
    call: str = ""
    file: str = ""
    number: int = 1

    def __str__(self) -> str:
        place = f"{self.call}({self.file or 'any'}) no. {self.number}" if self.call else ""
        answers = f"after {self.answers} answers" if self.answers else ""
        return (
            f"{self.kind} [{self.when}{', encoder' if self.encoder else ''}] {place}{answers} delay={self.delay_s:.3f}s"
        )


def traceable() -> bool:
    """Whether strace is there and may trace."""
    path = shutil.which("strace")
    return path is not None and subprocess.run([path, "-qq", "-o", "/dev/null", "true"], check=False).returncode == 0


def choose(rng: np.random.Generator, traced: bool) -> Kill:
    """The next kill."""
    delay = float(rng.uniform(0.05, 1.2))
    kind = rng.choice(
        ["time", "answer", "storage", "other", "start", "start time", "embedding", "drain", "migration"],
        p=[0.2, 0.12, 0.28, 0.1, 0.08, 0.05, 0.05, 0.06, 0.06],
    )
    encoder = kind == "embedding" or bool(rng.random() < 0.05)
    if kind == "answer":
        return Kill("right after an answer", encoder=encoder, answers=int(rng.integers(1, 150)))
    if kind == "start time":
        return Kill("start, at a random time", "START", delay_s=float(rng.uniform(0.0, 1.3)))
    if kind == "drain" and (rng.random() < 0.5 or not traced):
        return Kill("drain, at a random time", "DRAIN", delay_s=float(rng.uniform(0.0, 0.3)))
    if not traced or kind == "time":
        return Kill("at a random time", encoder=encoder, delay_s=delay)
    what, when, calls = {
        "storage": ("in a system call of storage", "LOAD", _STORAGE_CALLS),
        "embedding": ("in a system call of the embedding store", "LOAD", _EMBEDDING_CALLS),
        "other": ("in a system call between storage and caller", "LOAD", _OTHER_CALLS),
        "start": ("start, in a system call", "START", _START_CALLS),
        "migration": ("migration, in a system call", "MIGRATION", _MIGRATION_CALLS),
        "drain": ("drain, in a system call", "DRAIN", _STORAGE_CALLS[:6]),
    }[kind]
    call, file, most = calls[int(rng.integers(len(calls)))]
    return Kill(what, when, encoder, delay / 3, call=call, file=file, number=int(rng.integers(1, most + 1)))


def strace(kill: Kill, state_dir: Path) -> list[str]:
    """The command that injects the kill, to run a server under or to attach with ``-p``."""
    paths = [option for path in _paths(kill.file, state_dir) for option in ("-P", str(path))]
    return [
        *("strace", "-f", "-qq", "-o", "/dev/null", *paths, "-e", f"trace={kill.call}"),
        *("-e", f"inject={kill.call}:signal=KILL:when={kill.number}"),
    ]


def _paths(file: str, state_dir: Path) -> list[Path]:
    if not file:
        return []
    found = [path for path in state_dir.rglob("*") if file in (path.name, _ANY_OF_THE_STATE)]
    expected = _STATE_FILES if file == _ANY_OF_THE_STATE else () if found else (file,)
    return sorted({*found, *(state_dir / name for name in expected)})


def detach(tracer: subprocess.Popen[bytes]) -> None:
    """End strace. One whose process died while it was attaching waits for ever, and does not listen."""
    tracer.terminate()
    try:
        tracer.wait(2)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait()
