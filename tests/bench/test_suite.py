"""All measurements in one command: figures in one file, pictures, and what failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.performance import __main__ as suite

_PNG = b"\x89PNG"


@pytest.mark.parametrize(("name", "picture"), [("select", "performance"), ("long_run", "memory")])
def test_one_of_them_gives_its_figures_and_its_picture(
    name: str, picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "figures.json"
    given = ["--only", name, "--quick", "--json", str(report), "--pictures", str(tmp_path / "pictures")]
    assert suite.main(given) == 0
    commands = {figure["command"].split(" --")[0] for figure in json.loads(report.read_text(encoding="utf-8"))}
    assert commands == {f"python -m bench.performance.{name}"}
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == [f"{picture}.png"]
    assert (tmp_path / "pictures" / f"{picture}.png").read_bytes().startswith(_PNG)
    assert f"{picture}.png" in capsys.readouterr().out.splitlines()[-1]


def test_all_take_their_turn_and_one_that_fails_keeps_none_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(name: str, quick: bool) -> list[dict[str, Any]] | None:
        asked.append(name)
        figure = {"name": name, "against": "x", "unit": "s", "ratio": 2.0, "must": None, "spread": None, "detail": {}}
        return None if name == "select" else [figure]

    monkeypatch.setattr(suite, "measured", measured)
    report = tmp_path / "figures.json"
    assert suite.main(["--json", str(report), "--pictures", str(tmp_path)]) == 1
    assert asked == ["predict", "select", "calls", "replay", "registration"]
    found = [figure["name"] for figure in json.loads(report.read_text(encoding="utf-8"))]
    assert found == ["predict", "calls", "replay", "registration"]
    assert "FAILED: select" in capsys.readouterr().err
    assert (tmp_path / "performance.png").exists() and (tmp_path / "replay.png").exists()


def test_a_measurement_that_ends_with_an_error_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "SUITE", ("nothing",))
    assert suite.measured("nothing", quick=True) is None
