"""Directories of every released schema open and answer as they did when they were made."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import selector.storage.migrations.versions as versions
from selector.storage.database import newest_schema
from tests.migrations.released_state import RELEASED, estimated, recorded, unpack
from tests.service.running import InProcessService

# SHA-256 of released migrations. Directories out there were made by them: they are never edited, only followed.
_RELEASED = {"0001": "2c20e9d6be15f22502e551c290451c8fefbd84027ba25aba80359de2116c2bce"}

# Sums of other processors may differ in their last bits.
_TOLERANCE = 1e-6


@pytest.mark.parametrize("schema", _RELEASED)
def test_a_released_migration_is_never_edited(schema: str) -> None:
    (path,) = Path(versions.__file__ or "").parent.glob(f"{schema}_*.py")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _RELEASED[schema]


def test_every_released_schema_has_a_directory_to_open() -> None:
    assert {path.name for path in RELEASED.iterdir()} == set(_RELEASED)


@pytest.mark.parametrize("schema", _RELEASED)
def test_a_directory_of_a_released_schema_opens_and_answers_alike(schema: str, tmp_path: Path) -> None:
    state = unpack(schema, tmp_path / "state")
    assert _schema(state) == schema
    service = InProcessService(state)
    try:
        assert _plain(recorded(service.client)) == _answers(schema, "recorded")
        _assert_close(_plain(estimated(service.client)), _answers(schema, "estimated"))
    finally:
        service.close()
    assert _schema(state) == newest_schema()


def _answers(schema: str, part: str) -> Any:
    return json.loads((RELEASED / schema / f"{part}.json").read_text())


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=list))


def _schema(state: Path) -> str:
    database = sqlite3.connect(state / "state.db")
    (found,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    database.close()
    return str(found)


def _assert_close(got: Any, expected: Any, path: str = "") -> None:
    assert type(got) is type(expected), path
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), path
        for key in expected:
            _assert_close(got[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for index, pair in enumerate(zip(got, expected, strict=True)):
            _assert_close(*pair, f"{path}/{index}")
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=_TOLERANCE, abs=_TOLERANCE), path
    else:
        assert got == expected, path
