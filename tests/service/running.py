"""The real service for tests: in this process on a port of its own, or as a process that can be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clients import SelectorClient
from selector.service.server import Server
from selector.settings import ServerSettings

_SERVING = re.compile(r"selector: serving grpc=(\S+) metrics=(\S+) state-dir=(.+)")


class InProcessService:
    """A server in a thread of this process; real gRPC over a loopback port.

    ``restart`` stops it and starts another one over the same state directory.
    """

    def __init__(self, state_dir: Path, **settings: Any) -> None:
        chosen: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics_listen": "", "encoder": "none", "grace_s": 1.0}
        # Hundreds of state directories would each take it.
        chosen["reserve_bytes"] = 0
        # Starting a process takes a second.
        chosen["predictor_threads"] = 0
        self._settings = ServerSettings(state_dir, **{**chosen, **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients: list[SelectorClient] = []
        self._start()

    def client(self, run_id: str, **options: Any) -> SelectorClient:
        """A client that is closed with the service."""
        made = SelectorClient(self.address, run_id, **options)
        self._clients.append(made)
        return made

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def metrics_address(self) -> str:
        return self.server.metrics_address

    @property
    def state_dir(self) -> Path:
        return self._settings.state_dir

    def restart(self, between: Callable[[], object] = lambda: None, **settings: Any) -> None:
        """Stop, do something ``between``, and start over the same state directory; clients must be made anew."""
        self._stop()
        between()
        self._settings = replace(self._settings, **settings)
        self._start()

    def close(self) -> None:
        self._stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _start(self) -> None:
        self.server = Server(self._settings)
        self.run(self.server.start())

    def _stop(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.run(self.server.stop())


class ServiceProcess:
    """``selector serve`` as a process of its own."""

    def __init__(self, state_dir: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "selector",
            "serve",
            "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0",
            f"--state-dir={state_dir}",
            *([] if any(a.startswith("--encoder") for a in arguments) else ["--encoder=none"]),
            *arguments,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
        )
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        try:
            self.address, self.metrics_address = self._addresses()
        except BaseException:
            self.kill()
            raise

    def client(self, run_id: str, **options: Any) -> SelectorClient:
        return SelectorClient(self.address, run_id, **options)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._close()

    def terminate(self) -> int:
        """SIGTERM; the exit code.

        Raises:
            subprocess.TimeoutExpired: it does not end, and was killed.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.kill()

    def _addresses(self) -> tuple[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = _SERVING.match(line)
        if found is not None:
            return found[1], found[2]
        if not line:
            # The pipe closes a moment before the process has an exit code.
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self._reader.join(5)
        code = self.process.poll()
        raise RuntimeError(f"the service did not start (exit code {code}): {line!r}\n{''.join(self.stderr)}")

    def _close(self) -> None:
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line)
