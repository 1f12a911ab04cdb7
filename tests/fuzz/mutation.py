"""Random changes of bytes, for what is not fuzzed by coverage."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_BYTES = (0, 1, 9, 10, 13, 32, 34, 45, 0x7B, 0x7F, 0x80, 0xC0, 0xFF)


def mutated(random_: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with one to five changes."""
    data = bytearray(random_.choice(seeds))
    for _ in range(random_.randint(1, 5)):
        _change(random_, data, seeds)
    return bytes(data)


def _change(random_: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random_.randint(0, len(data))
    size = random_.choice((1, 1, 2, 4, 8, 16, 64, 512))
    kind = random_.randint(0, 8)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << random_.randint(0, 7)
    elif kind == 1 and at < len(data):
        data[at] = random_.choice(_BYTES)
    elif kind == 2:
        data[at:at] = random_.randbytes(size)
    elif kind == 3:
        del data[at : at + size]
    elif kind == 4:
        data[at:at] = data[at : at + size] * random_.choice((1, 2, 50))
    elif kind == 5:
        width = random_.choice((1, 2, 3, 4, 8))
        number = random_.choice(_NUMBERS) % 256**width
        data[at : at + width] = number.to_bytes(width, random_.choice(("little", "big")))
    elif kind == 6:
        del data[at:]
    elif kind == 7:
        other = random_.choice(seeds)
        start = random_.randint(0, len(other))
        data[at : at + size] = other[start : start + size]
    else:
        data[at : at + size] = bytes(min(size, len(data) - at))
