"""What a process holds, from /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident memory."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def peak_bytes(pid: int) -> int:
    """Largest resident memory since it began, or since ``forget_peak``."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def open_files(pid: int) -> int:
    """Open file descriptors, sockets included."""
    return len(os.listdir(f"/proc/{pid}/fd"))
