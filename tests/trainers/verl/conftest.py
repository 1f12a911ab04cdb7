"""One Ray and one queue for all tests, on as little as they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq
from omegaconf import OmegaConf


@pytest.fixture(scope="session", autouse=True)
def queue() -> Iterator[None]:
    """verl's queue, in memory."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    tq.init(OmegaConf.create({"backend": storage}))
    yield
    tq.close()
    ray.shutdown()
