"""Our end of a worker: a process that drives one store; see ``serving`` for what is said."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.performance.replay.processes import cpu_seconds, descendants
from bench.performance.replay.serving import Settings

_ENVIRONMENTS = Path(__file__).parents[3] / "scripts" / "environment.py"


class StoreFailed(RuntimeError):
    """The worker ended; the message holds the end of its log."""


@dataclass(frozen=True)
class Spent:
    """What one push or sample took.

    Attributes:
        seconds: of the clock, in the client.
        client: CPU seconds of the client.
        server: CPU seconds of the store's processes.
    """

    seconds: float
    client: float
    server: float


class Worker:
    """One store, open until ``close``.

    Args:
        store: module of ``stores``.
        python: that its client runs with.
    """

    def __init__(self, store: str, settings: Settings, python: str = sys.executable) -> None:
        self._settings = settings
        settings.folder.mkdir(parents=True)
        self._log = settings.folder.with_suffix(".log")
        fields = ("groups", "tokens", "stored", "folder", "option")
        options = [f"--{field}={getattr(settings, field)}" for field in fields]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [python, "-m", "bench.performance.replay.serving", store, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        self._written = 0
        self.name = self._answer("ready")

    def push(self, step: int) -> Spent:
        """Push a step's groups."""
        return self._do("push", step)

    def sample(self, step: int) -> Spent:
        """Sample as many groups as a push has."""
        return self._do("sample", step)

    def begin(self, what: str, step: int) -> None:
        """Have something done, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {step}\n")

    def end(self) -> float:
        """Wait for what was begun; its seconds."""
        return float(self._answer("done"))

    @property
    def servers(self) -> list[int]:
        """Processes of the store itself."""
        return descendants(self._process.pid)

    def close(self) -> None:
        """End the worker and its store; the files go too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._settings.folder, ignore_errors=True)

    def _do(self, what: str, step: int) -> Spent:
        servers = self.servers
        client, server = cpu_seconds([self._process.pid]), cpu_seconds(servers)
        self.begin(what, step)
        seconds = self.end()
        return Spent(seconds, cpu_seconds([self._process.pid]) - client, cpu_seconds(servers) - server)

    def _answer(self, expected: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        word, _, rest = line.strip().partition(" ")
        if word != expected:
            end = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise StoreFailed(f"expected {expected!r}; got {line!r}; {self._log} ends with:\n{end}")
        return rest


def environment_of(peer: str) -> str:
    """The Python of a peer's environment, made if need be."""
    done = subprocess.run([sys.executable, str(_ENVIRONMENTS), peer], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()
