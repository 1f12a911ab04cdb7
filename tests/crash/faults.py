"""Storage that fails: system calls that return an error, and disks that are small or read-only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.kills import detach, traceable

_PATIENCE_S = 20.0


def needs_strace() -> None:
    """Skip, loudly, where system calls cannot be made to fail."""
    if not traceable():
        pytest.skip("NOT tested: failing system calls; strace is missing or may not trace (apt-get install strace)")


@contextmanager
def failing(pid: int, call: str, error: str, files: Sequence[Path], when: str = "1+") -> Iterator[None]:
    """Every such system call of a process for one of the files fails, while the context lasts.

    Args:
        when: which calls of each thread fail, as strace counts them: ``1+`` all, ``2`` the second.
    """
    paths = [option for file in files for option in ("-P", str(file))]
    strace = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", *paths, "-e", f"trace={call}"),
            *("-e", f"inject={call}:error={error}:when={when}", "-p", str(pid)),
        ]
    )
    try:
        _wait_until_traced(pid, strace)
        yield
    finally:
        detach(strace)


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own in memory; skips, loudly, where it may not be mounted."""
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("NOT tested: full and read-only disks; mounting a tmpfs needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    """Change a mounted ``disk``: its size, or ``ro`` and ``rw``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True, capture_output=True)


def fill(path: Path, left: int = 0) -> None:
    """Take up the space of a disk, but for ``left`` bytes."""
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    with open(path / "filler", "ab") as filler:
        os.posix_fallocate(filler.fileno(), 0, os.fstat(filler.fileno()).st_size + max(free - left, 0))


def _wait_until_traced(pid: int, strace: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        if all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks):
            return
        if strace.poll() is not None:
            raise RuntimeError(f"strace ended with {strace.returncode}")
        time.sleep(0.02)
    raise RuntimeError("strace did not attach")
