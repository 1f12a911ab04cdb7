"""A replay store on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from selector.replay import ReplayStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplayStore]:
    opened = ReplayStore(tmp_path / "replay")
    yield opened
    opened.close()
