"""What glibc's malloc does with freed memory: it is kept and used again.

Each MiB that passes through the server is allocated and freed several times on its way, in blocks that glibc by default
gives back to the system at once; the next message then pays for every page anew, a page fault each. What is kept is
bounded: what pushes and samples need at the same time, and up to 64 MiB for each of two arenas. Other C libraries are
left as they are.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_MIB = 2**20
_OPTIONS = {
    # The largest that is allowed; larger blocks are mapped and unmapped one by one.
    _M_MMAP_THRESHOLD: 32 * _MIB,
    _M_TRIM_THRESHOLD: 64 * _MIB,
    _M_TOP_PAD: 16 * _MIB,
    # Otherwise eight for every core, and what one thread has freed is of no use to the next.
    _M_ARENA_MAX: 2,
}


def keep_freed_memory() -> None:
    """Set it for this process; call it before there are threads."""
    if not _glibc():
        return
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in _OPTIONS.items():
        mallopt(option, value)


def give_freed_memory_back() -> None:
    """Give the system all of it, also what lies between pieces in use; for when far more was needed than will be.

    It takes about a second for every 10 GiB, in which other threads may have to wait.
    """
    if _glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
