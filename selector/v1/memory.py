"""Memory that a client lends to its calls, when the service runs on the same host: an anonymous file (memfd_create).

It begins with a key, and messages follow. The service reads and writes the file and maps nothing: whatever a client
does to it, cutting it off included, is at worst a short read. The client maps what it sampled, which the file's seal
keeps whole. Linux frees the file with the last process that has it open, however that one ends, so a killed client or
service leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from selector.v1.wire import Part

# By which the service knows what is lent to it, whatever it begins with.
NAME = "selector-replay"
KEY_BYTES = 32
# Linux takes so many parts at once.
_MOST_PARTS = 1024


def write(descriptor: int, parts: Sequence[Part], offset: int) -> int:
    """Write parts one after the other; how many bytes.

    Raises:
        OSError: there is no memory for them.
    """
    left = [memoryview(part) for part in parts]
    at = offset
    while left:
        written = os.pwritev(descriptor, left[:_MOST_PARTS], at)
        at += written
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]
    return at - offset
