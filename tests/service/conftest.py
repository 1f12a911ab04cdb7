from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import InProcessService


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """One service for the tests of a module; each test uses runs of its own."""
    running = InProcessService(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[InProcessService]:
    """A service for one test, which may restart it."""
    running = InProcessService(tmp_path / "state")
    yield running
    running.close()
