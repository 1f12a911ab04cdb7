"""The service as a process of its own, with what the operating system knows of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from selector.testbed.service_process import stop

_SERVING = re.compile(r"\bgrpc=(\S+)")
# The service's first line, written when its modules are imported and nothing is opened yet.
_IMPORTED = b"selector: settings:"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Process:
    """What the operating system knows of a process."""

    pid: int

    def cpu_s(self) -> float:
        """CPU seconds so far, all threads."""
        fields = _fields(Path(f"/proc/{self.pid}/stat"))
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory(self) -> int:
        """Resident bytes."""
        return self._status("VmRSS")

    def most_memory(self) -> int:
        """Resident bytes at their most since the process began."""
        return self._status("VmHWM")

    def mapped(self) -> int:
        """Of the resident bytes, those of mapped files, which the system can take back."""
        return self._status("RssFile")

    def children(self) -> list[Process]:
        """Processes that it started and that still run."""
        # They are listed with the thread that made them.
        lists = [task.joinpath("children").read_text(encoding="ascii") for task in self._threads()]
        return [Process(int(pid)) for each in lists for pid in each.split()]

    def computing(self) -> bool:
        """Whether any thread of it or of its children runs, or would if there were a core for it."""
        for process in (self, *self.children()):
            for thread in process._threads():
                # It may have ended meanwhile.
                with suppress(OSError):
                    if _fields(thread / "stat")[0] in "RD":
                        return True
        return False

    def _threads(self) -> list[Path]:
        return list(Path(f"/proc/{self.pid}/task").iterdir())

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@dataclass(frozen=True)
class Service(Process):
    """A service that serves.

    Attributes:
        target: its ``host:port``.
        imported_s: seconds from the start of the process until its modules were imported.
        started_s: seconds from then until it served.
        started_cpu_s: CPU seconds of the process until it served, imports included.
    """

    target: str
    imported_s: float
    started_s: float
    started_cpu_s: float


@contextmanager
def service(state_dir: Path, *options: str) -> Iterator[Service]:
    """Serves without an encoder while the block lasts; stops it with SIGTERM, however the block ends.

    Args:
        options: further ones of ``selector serve``.

    Raises:
        RuntimeError: it ended before it served; the message is the end of its log.
    """
    command = [sys.executable, "-m", "selector", "serve", "--listen", "127.0.0.1:0", "--metrics-listen", ""]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--encoder", "none", "--state-dir", str(state_dir), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    log: list[bytes] = []
    imported: list[float] = []

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if _IMPORTED in line:
                imported.append(time.perf_counter() - began)
            log.append(line)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        line = process.stdout.readline().decode()
        serving = time.perf_counter() - began
        found = _SERVING.search(line)
        if found is None:
            follower.join(_STOP_TIMEOUT_S)
            raise RuntimeError(f"the service did not start: {line}{b''.join(log[-5:]).decode(errors='replace')}")
        cpu_s = Process(process.pid).cpu_s()
        yield Service(process.pid, found.group(1), imported[0], serving - imported[0], cpu_s)
    finally:
        stop(process, _STOP_TIMEOUT_S)
        follower.join()
        process.stderr.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a state, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="selector-bench-") as directory:
        yield Path(directory) / "state"


def disk_bytes(directory: Path) -> int:
    """Bytes that the files below a directory take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _fields(stat: Path) -> list[str]:
    """Of a process or thread, from its state on: its name, in brackets, may hold spaces."""
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
