"""All measurements in one command: figures in one file, pictures, and what failed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
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
    commands = {figure["command"] for figure in json.loads(report.read_text(encoding="utf-8"))}
    assert commands == {shlex.join(["python", "-m", "bench.performance", *given])}
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


def test_a_quick_run_leaves_real_pictures_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = {"name": "x", "against": "x", "unit": "s", "ratio": 2.0, "must": None, "spread": None, "detail": {}}
    monkeypatch.setattr(suite, "measured", lambda name, quick: [figure])
    monkeypatch.chdir(tmp_path)
    assert suite.main(["--quick", "--only", "select"]) == 0
    assert [path.name for path in Path("bench-output").iterdir()] == ["quick"]
    assert suite.main(["--only", "select"]) == 0
    assert Path("bench-output/performance.png").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_hands_on_what_is_given() -> None:
    def run(*given: str) -> str:
        command = ["make", "--dry-run", "bench", *given]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
        return " ".join(next(part for part in done.stdout.split("\n\n") if "bench.performance" in part).split())

    assert "--quick" not in run() and "--quick" not in run("QUICK=0")
    assert "--quick" in run("QUICK=1")


def test_a_measurement_that_ends_with_an_error_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "SUITE", ("nothing",))
    assert suite.measured("nothing", quick=True) is None
