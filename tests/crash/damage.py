"""A state directory whose files are damaged, and what a server makes of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.crash.faulty import OPTIONS
from tests.crash.observation import Failed
from tests.crash.owner import Owner
from tests.crash.service import Process, Service

# Errors that say that what was asked for is damaged.
_OWNED_UP = ("STORAGE_FAILED", "EMBEDDINGS_DAMAGED", "INTERNAL")

Damage = Callable[[Path], None]


def flipped(at: float, count: int = 1) -> Damage:
    """``count`` bytes with one bit flipped each, from a place that is a share of the file's size."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        start = min(int(at * len(content)), len(content) - count)
        for place in range(start, start + count):
            content[place] ^= 16
        path.write_bytes(content)

    return damage


def zeroed(at: float, count: int = 4096) -> Damage:
    """A page of zeros, as a disk leaves that never wrote it."""

    def damage(path: Path) -> None:
        with open(path, "r+b") as file:
            start = int(at * path.stat().st_size) // count * count
            file.seek(start)
            file.write(bytes(min(count, path.stat().st_size - start)))

    return damage


def cut(to: float) -> Damage:
    """Cut off at a share of its size."""
    return lambda path: os.truncate(path, int(to * path.stat().st_size))


def in_use(damage: Damage) -> Damage:
    """The same of what counts of a write-ahead log, which comes first: the rest was folded into the database before.

    See "WAL File Format" in SQLite's documentation: frames that count have the salts of the log's header.
    """

    def damaged(path: Path) -> None:
        content = path.read_bytes()
        frame = 24 + int.from_bytes(content[8:12], "big")
        end = 32
        while content[end + 8 : end + 16] == content[16:24]:
            end += frame
        os.truncate(path, end)
        damage(path)

    return damaged


def gone(path: Path) -> None:
    """Deleted."""
    path.unlink()


def served(state_dir: Path, owner: Owner, work_dir: Path, name: str, damage: Damage) -> str:
    """Damage one file of a copy of a state directory, and start a server over it.

    Returns:
        ``refused: …`` with the last words of a server that did not start, ``owned up: …`` with the error of a call that
        the damage showed in, or ``intact`` when everything was as the model says.

    Raises:
        Mismatch: the server served something else.
    """
    copied = work_dir / "damaged"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(state_dir, copied)
    (file,) = sorted(copied.rglob(name))[:1]
    damage(file)
    process = Process(copied, OPTIONS)
    address = process.address()
    if not address:
        code = process.close()
        return f"refused: exit {code}: {process.last_words(1)}"
    service = Service(address)
    try:
        owner.check(service, thorough=True)
    except Failed as error:
        if error.refused.reason not in _OWNED_UP:
            raise
        return f"owned up: {error}"
    finally:
        service.close()
        process.kill()
        process.close()
    return "intact"
