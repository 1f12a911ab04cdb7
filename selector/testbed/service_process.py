"""The real service as a process of its own, on a free loopback port, for as long as a ``with`` block lasts."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
# More than the service's own grace for calls in flight.
_STOP_TIMEOUT_S = 45.0
_SERVING = re.compile(r"\bgrpc=(\S+)")


class ServiceNotStarted(RuntimeError):
    """The service ended, or said nothing, before it served; the message holds the end of its log."""


@contextmanager
def running_service(state_dir: Path, log_path: Path) -> Iterator[str]:
    """Yields the service's ``host:port``; stops it with SIGTERM, however the block ends.

    Raises:
        ServiceNotStarted: see there.
    """
    command = [sys.executable, "-m", "selector", "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    with log_path.open("w", encoding="utf-8") as log:
        # A session of its own: Ctrl-C goes to us alone, and we stop it after the last call.
        process = subprocess.Popen(
            [*command, "--state-dir", str(state_dir)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield _address(process, log_path)
        finally:
            stop(process)


def _address(process: subprocess.Popen[str], log_path: Path) -> str:
    if process.stdout is None:
        raise ValueError("the process was started without a pipe for its output")
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (remaining := deadline - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], remaining)[0]:
            break
        line = process.stdout.readline()
        found = _SERVING.search(line)
        if found:
            return found.group(1)
        if not line:
            # The pipe closes a moment before the process can be waited for.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_TIMEOUT_S)
            break
    code = process.poll()
    state = "did not serve in time" if code is None else f"ended with exit code {code}"
    end = "\n".join(log_path.read_text(encoding="utf-8").splitlines()[-5:])
    raise ServiceNotStarted(f"the service {state}; its log is {log_path} and ends with:\n{end}")


def stop(process: subprocess.Popen[Any], timeout_s: float = _STOP_TIMEOUT_S) -> None:
    """End a service with SIGTERM, or by force when that takes too long; closes the pipe of its output."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
