"""What the tests of verl share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq

from tests.trainers.verl.tiny import start_queue


@pytest.fixture(scope="session", autouse=True)
def queue() -> Iterator[None]:
    """One for all tests, which takes longer to start than they take."""
    start_queue()
    yield
    tq.close()
    ray.shutdown()
