"""Kept features of texts are used where they are those of the pool, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from selector import kept_surface, pool
from selector.difficulty.surface import surface_features
from selector.kept_surface import KeptSurface
from selector.pool import ACTIVE, Pool, PromptColumns, PromptRecord
from selector.storage.snapshot_files import SnapshotFiles

_RUN = 1


@pytest.fixture(autouse=True)
def small_pools_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_surface, "_LEAST_PROMPTS", 1)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Texts that are described from now on."""
    seen: list[str | None] = []

    def counted(texts: Sequence[str | None]) -> np.ndarray:
        seen.extend(texts)
        return surface_features(texts)

    monkeypatch.setattr(pool, "surface_features", counted)
    return seen


def records(texts: Sequence[str]) -> list[PromptRecord]:
    return [
        PromptRecord(f"p{i}", text.encode().ljust(32, b"."), text, -1, "", 0, float("nan"), 0, ACTIVE)
        for i, text in enumerate(texts)
    ]


def loaded(files: SnapshotFiles, texts: Sequence[str]) -> Pool:
    found = Pool()
    found.load([PromptColumns(*zip(*records(texts), strict=True))] if texts else [])
    KeptSurface(files, _RUN).describe(found)
    plain = Pool()
    plain.put(records(texts))
    assert found.surface.tobytes() == plain.surface.tobytes()
    return found


TEXTS = ["What is 2 + 2?", "Name the CAPITAL of\nFrance.", "", "x ^ 2 = 9"]


def test_a_loaded_pool_is_described_once(tmp_path: Path, described: list[str | None]) -> None:
    files = SnapshotFiles(tmp_path)
    loaded(files, TEXTS)
    described.clear()
    again = Pool()
    again.load([PromptColumns(*zip(*records(TEXTS), strict=True))])
    KeptSurface(files, _RUN).describe(again)
    assert described == []
    again.put(records(["What is 2 + 3?"]))
    assert again.surface[0].tobytes() == surface_features(["What is 2 + 3?"])[0].tobytes(), "what is kept is copied"


def test_a_pool_that_has_grown_uses_what_was_kept_of_its_first_prompts(
    tmp_path: Path, described: list[str | None]
) -> None:
    files = SnapshotFiles(tmp_path)
    kept = KeptSurface(files, _RUN)
    first = Pool()
    first.put(records(TEXTS[:2]))
    kept.save(first)
    described.clear()
    loaded(files, TEXTS)
    # Once by the pool that was loaded, once by the one that it is compared with.
    assert described == [None, "x ^ 2 = 9", *TEXTS[:2], None, "x ^ 2 = 9"]


@pytest.mark.parametrize("change", ["replaced", "shrunk", "damaged", "other code", "none"])
def test_other_contents_damage_and_other_code_are_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    files = SnapshotFiles(tmp_path)
    loaded(files, TEXTS)
    texts = TEXTS
    if change == "replaced":
        texts = ["What is 3 + 3?", *TEXTS[1:]]
    elif change == "shrunk":
        texts = TEXTS[:3]
    elif change == "damaged":
        raw = files.read_surface(_RUN)
        assert raw is not None
        files.save_surface(_RUN, raw[:-1] + bytes([raw[-1] ^ 1]))
    elif change == "other code":
        monkeypatch.setattr(kept_surface, "_code", lambda: "other")
    else:
        files.drop(_RUN)
    loaded(files, texts)


def test_a_disk_that_takes_nothing_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    loaded(SnapshotFiles(tmp_path / "file"), TEXTS)
