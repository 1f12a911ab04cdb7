"""What the tests of all trainers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A running service without an encoder."""
    folder = tmp_path / "service"
    folder.mkdir()
    made = Service(folder)
    made.start()
    yield made
    made.stop()
