from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import InProcessService


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[InProcessService]:
    """A service for one test."""
    running = InProcessService(tmp_path / "state")
    yield running
    running.close()
