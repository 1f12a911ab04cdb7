"""State directories to look after."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from selector.maintenance.backup import back_up
from selector.storage.database import Database
from tests.migrations.released_state import unpack


def silent(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody looks at."""


@pytest.fixture(scope="session")
def _stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = unpack("0001", tmp_path_factory.mktemp("maintenance") / "state")
    # To the newest schema, and the write-ahead log folded into the file.
    Database(state / "state.db").close()
    return state


@pytest.fixture(scope="session")
def _backed_up(_stopped: Path) -> Path:
    target = _stopped.parent / "backup"
    back_up(_stopped, target, lambda: 1.7e9, silent)
    return target


@pytest.fixture
def state(_stopped: Path, tmp_path: Path) -> Path:
    """A copy of a directory with runs of every kind, which no server has open."""
    shutil.copytree(_stopped, tmp_path / "state")
    return tmp_path / "state"


@pytest.fixture
def backup(_backed_up: Path, tmp_path: Path) -> Path:
    """A copy of a backup of it."""
    shutil.copytree(_backed_up, tmp_path / "backup")
    return tmp_path / "backup"
