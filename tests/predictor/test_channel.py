"""Values and arrays between two real processes' ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from selector.predictor import memory
from selector.predictor.channel import Channel, Closed


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a channel."""
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def descriptors() -> int:
    """Open ones of this process."""
    return len(os.listdir("/proc/self/fd"))


def passed(ends: tuple[Channel, Channel], value: object) -> object:
    """What arrives of a value, however large it is."""
    sending = threading.Thread(target=ends[0].send, args=(value,))
    sending.start()
    try:
        return ends[1].receive()
    finally:
        sending.join()


def test_values_arrive_with_their_arrays(ends: tuple[Channel, Channel]) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "large": random.normal(size=(1000, 33)),
        "odd": random.integers(0, 255, 100_003).astype(np.uint8),
        "small": np.arange(5),
        "none": np.zeros((0, 7), dtype=np.float32),
        "turned": np.asfortranarray(random.normal(size=(200, 100))),
        "part": random.normal(size=(400, 400))[::2, ::3],
    }
    found = passed(ends, {"text": "ä", "arrays": arrays, "again": arrays["large"]})
    assert isinstance(found, dict) and found["text"] == "ä" and found["arrays"].keys() == arrays.keys()
    for name, array in arrays.items():
        assert found["arrays"][name].dtype == array.dtype
        np.testing.assert_array_equal(found["arrays"][name], array)
    np.testing.assert_array_equal(found["again"], arrays["large"])
    assert not found["arrays"]["large"].flags.writeable


def test_an_array_in_a_region_of_its_own_is_not_copied(ends: tuple[Channel, Channel]) -> None:
    array = memory.empty((300, 100), np.float64)
    array[...] = 1.0
    found = passed(ends, [array, array[:200]])
    assert isinstance(found, list)
    array[0, 0] = 7.0
    # The whole is the same memory; a part was copied.
    assert found[0][0, 0] == 7.0 and found[1][0, 0] == 1.0


def test_descriptors_are_closed_with_the_arrays(ends: tuple[Channel, Channel]) -> None:
    before = descriptors()
    for _ in range(3):
        found = passed(ends, [memory.empty((100, 100), np.float64), np.ones(50_000)])
        assert descriptors() > before
        del found
    assert descriptors() == before


def test_more_regions_than_one_message_of_the_system_takes(ends: tuple[Channel, Channel]) -> None:
    arrays = [memory.empty((8192,), np.float64) for _ in range(300)]
    for index, array in enumerate(arrays):
        array[:] = index
    found = passed(ends, arrays)
    assert isinstance(found, list)
    assert [float(array[-1]) for array in found] == list(range(300))


def test_an_end_that_is_closed_is_told(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()
    with pytest.raises(Closed):
        for _ in range(3):
            ends[1].send("nobody listens")


def test_memory_that_was_received_counts_as_shared() -> None:
    array = memory.empty((1 << 20,), np.uint8)
    region = memory.region_of(array)
    assert region is not None and memory.region_of(array[1:]) is None and memory.region_of(np.ones(3)) is None
    assert region_name(region.fd).startswith("/memfd:selector")


def region_name(descriptor: int) -> str:
    """Where a descriptor leads to."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())
