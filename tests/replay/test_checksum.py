"""Payload checksums are zlib's, whichever library computes them: stores are read with either."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from selector.replay.checksum import crc32


@pytest.mark.parametrize("size", [0, 1, 15, 16, 4095, 1_000_003])
def test_the_checksum_is_that_of_zlib(size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    assert crc32(content) == crc32(memoryview(content)) == zlib.crc32(content)
