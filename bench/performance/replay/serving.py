"""The worker's end: opens a store in the environment it runs in, and does what it is told, line by line.

==================  ==============================================================
told on stdin       answered on stdout
==================  ==============================================================
                    ``ready NAME OF THE STORE`` once it is open
``push STEP``       ``done SECONDS`` once the step's groups are acknowledged
``sample STEP``     ``done SECONDS`` once as many groups are there as arrays
end of the input    nothing; the store is closed
==================  ==============================================================
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.performance.replay import content
from bench.performance.replay.content import Arrays

# For which ours keeps groups that have left the buffer.
REWIND_STEPS = 8


@dataclass(frozen=True)
class Settings:
    """What a store is opened with.

    Attributes:
        groups: of a push, and of a sample.
        tokens: response tokens of a group.
        stored: groups that the store keeps; later ones take the place of earlier ones.
        folder: an empty folder for its files.
        option: of the store, what it says there.
    """

    groups: int
    tokens: int
    stored: int
    folder: Path
    option: str = ""


class Store(Protocol):
    """A server and our client of it."""

    name: str

    def prepare(self, step: int, groups: Sequence[Arrays]) -> Any:
        """The step's groups in the containers that the client takes; not timed."""

    def push(self, prepared: Any) -> None:
        """Store the groups; they are acknowledged on return."""

    def sample(self, step: int, count: int) -> Any:
        """That many groups, uniformly, as arrays in the client's containers."""

    def arrays(self, sampled: Any) -> Sequence[Arrays]:
        """A sample as arrays; not timed."""

    def close(self) -> None:
        """Stop the server."""


def server(module: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A module of ``stores`` as a server process, and the port that it prints."""
    command = [sys.executable, "-m", f"bench.performance.replay.stores.{module}", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def slots(step: int, settings: Settings) -> range:
    """Places of a step's groups among ``stored``, for stores whose entries are overwritten."""
    start = step * settings.groups % settings.stored
    return range(start, start + settings.groups)


def main() -> int:
    """The worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    for name in ("groups", "tokens", "stored"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--option", default="")
    arguments = vars(parser.parse_args())
    # Libraries may write what they like to the standard output; the answers have it for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    opened = importlib.import_module(f"bench.performance.replay.stores.{arguments.pop('store')}")
    settings = Settings(**arguments)
    store: Store = opened.open_store(settings)
    groups = content.made(settings.groups, settings.tokens)
    try:
        answers.write(f"ready {store.name}\n")
        for line in sys.stdin:
            what, step = line.split()
            answers.write(f"done {_timed(store, what, int(step), groups)}\n")
    finally:
        store.close()
    return 0


def _timed(store: Store, what: str, step: int, groups: Sequence[Arrays]) -> float:
    if what == "push":
        prepared = store.prepare(step, groups)
        begin = time.perf_counter()
        store.push(prepared)
        return time.perf_counter() - begin
    begin = time.perf_counter()
    sampled = store.sample(step, len(groups))
    seconds = time.perf_counter() - begin
    content.check(store.arrays(sampled), groups, len(groups))
    return seconds


if __name__ == "__main__":
    sys.exit(main())
