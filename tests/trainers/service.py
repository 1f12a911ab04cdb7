"""A real service for the tests of an adapter: a process of the service's own environment, beside the trainer's.

SELECTOR_PYTHON names its Python; without it, it is the one of ``.venv`` in this clone.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

_CLONE = Path(__file__).parents[2]
_START_TIMEOUT_S = 120.0
_SERVING = re.compile(r"\bgrpc=(\S+)")


class Service:
    """One state directory on one port; it can be killed and started again.

    Args:
        folder: where its state and its log are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.target = f"127.0.0.1:{free.getsockname()[1]}"

    def start(self) -> None:
        """Returns when it serves."""
        python = os.environ.get("SELECTOR_PYTHON") or str(_CLONE / ".venv" / "bin" / "python")
        command = [python, "-m", "selector", "serve", "--listen", self.target, "--metrics-listen", "127.0.0.1:0"]
        # The trainer's path and packages are not the service's.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        with (self._folder / "service.log").open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*command, "--state-dir", str(self._folder / "state"), "--encoder", "none"],
                cwd=_CLONE,
                env={**environment, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        assert self._process.stdout is not None
        while (remaining := deadline - time.monotonic()) > 0:
            if not select.select([self._process.stdout], [], [], remaining)[0]:
                break
            line = self._process.stdout.readline()
            if _SERVING.search(line):
                return
            if not line:
                break
        self.kill()
        raise RuntimeError("the service did not serve:\n" + (self._folder / "service.log").read_text(encoding="utf-8"))

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to end, and waits until it has."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
