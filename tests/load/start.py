"""The processes of the soak begin together: each prepares, says so, and is told until when to go on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_READY = "ready"
_LONGEST_PREPARATION_S = 300.0


class Worker:
    """A module of ``tests.load`` as a process; the parent's side."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.load.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def prepared(self) -> None:
        """Wait until it is ready.

        Raises:
            RuntimeError: it ended instead, or took minutes.
        """
        assert self._process.stdout is not None
        patience = threading.Timer(_LONGEST_PREPARATION_S, self._process.kill)
        patience.daemon = True
        patience.start()
        try:
            said = self._process.stdout.readline()
        finally:
            patience.cancel()
        if said.strip() != _READY:
            raise RuntimeError(f"{self._process.args!r} ended while it prepared: {said!r}")

    def begin(self, until: float) -> None:
        """Let it work until the clock says so, in Unix seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{until}\n")
        self._process.stdin.flush()

    def result(self, timeout_s: float) -> Any:
        """What it printed at its end."""
        try:
            answer, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise
        return json.loads(answer)

    def end(self) -> None:
        """Stop it if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


async def ready() -> float:
    """Tell the parent that everything is prepared, and wait to be let off; when to stop, in Unix seconds."""
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    return float(await asyncio.to_thread(sys.stdin.readline))
