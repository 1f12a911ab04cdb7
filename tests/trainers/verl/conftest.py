"""What the tests of verl share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq

from tests.trainers.service import Service
from tests.trainers.verl.tiny import start_queue

_NUMBERS = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def queue() -> Iterator[None]:
    """One for all tests, which takes longer to start than they take."""
    start_queue()
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests that leave it as it is; each has a run of its own there."""
    made = Service(tmp_path_factory.mktemp("service"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def run_id() -> str:
    """Of this test alone."""
    return f"run{next(_NUMBERS)}"
