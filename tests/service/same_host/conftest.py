"""A client of a run with prompts, and what the service reached."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from clients import SelectorClient
from selector.service import shared_memory
from selector.v1 import replay_service_pb2 as pb
from tests.service.running import InProcessService
from tests.service.same_host.lending import (
    PROMPTS,
    lent,
    of_others,
)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the service reached memory, for each call that lent it some."""
    found: list[bool] = []
    reach = shared_memory._reach

    def counted(memory: pb.SharedMemory) -> Any:
        opened = reach(memory)
        found.append(opened is not None)
        return opened

    monkeypatch.setattr(shared_memory, "_reach", counted)
    return found


@pytest.fixture
def prepared(own_service: InProcessService) -> Callable[..., SelectorClient]:
    """A client of a run with prompts."""

    def client(run_id: str = "run", config: Any = None, **options: Any) -> SelectorClient:
        found = own_service.client(run_id, **options)
        found.create_run(config or {"replay": {"capacity_groups": 64}})
        found.register_prompts(PROMPTS)
        return found

    return client


@pytest.fixture(autouse=True)
def memory_of_others() -> None:
    of_others.clear()
    of_others.update(lent(os.getpid()).values())
