"""What Linux counts of processes."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """All processes below one, whoever started them there."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time so far, in ticks of usually 10 ms; processes that have ended count nothing."""
    return sum(int(stat[11]) + int(stat[12]) for pid in pids if (stat := _stat(pid))) / _TICKS


def memory_bytes(pids: list[int]) -> dict[str, int]:
    """Memory in use: ``anonymous``, and ``all`` with pages of files and shared memory, a page's share where shared."""
    anonymous = every = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
        except OSError:
            continue
        sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        anonymous += sizes["Pss_Anon"]
        every += sizes["Pss"]
    return {"anonymous": anonymous, "all": every}


def file_bytes(folder: Path) -> int:
    """Space that the files below a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the third on: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
