"""The measurements of performance run, and what they print can be read by programs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bench.performance import select
from bench.performance.figures import show
from bench.performance.turns import compared, in_turns

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("predict", "predict, h = 128"),
        ("select", "batches of 1,024 of 10,000 in 64 parts"),
        ("calls", "2,000, idle"),
        ("long_run", "server over 20 steps"),
    ],
)
def test_a_quick_run_gives_figures_with_their_command(module: str, name: str, tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"bench.performance.{module}", "--quick", "--json", str(report)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert any(name in figure["name"] for figure in figures)
    for figure in figures:
        assert {"name", "baseline", "ours", "ratio", "unit", "against", "environment"} <= figure.keys()
        assert figure["command"].startswith(f"python -m bench.performance.{module} --quick")
        assert figure["ours"] > 0 and figure["name"] in done.stdout


@pytest.mark.parametrize(
    ("module", "given", "says"),
    [
        ("predict", "--device nonsense", "argument --device: expected cpu, torch-cpu, cuda or cuda:N; got 'nonsense'"),
        ("predict", "--device cuda:99", "argument --device: cuda:99 "),
        ("predict", "--device cpu", "argument --device: expected torch-cpu, cuda or cuda:N; got cpu"),
        ("predict", "--prompts 0", "argument --prompts: expected a whole number >= 1; got 0"),
        ("predict", "--rounds 0", "argument --rounds: expected a whole number >= 1; got 0"),
        ("predict", "--references 8 --loop-prompts 73", "--loop-prompts: expected at most --references + 64; got 73"),
        ("select", "--prompts 0", "argument --prompts: expected a whole number >= 1; got 0"),
        ("select", "--prompts 10000 1000", "--prompts: expected at least twice what is chosen, 2048; got 1000"),
        ("select", "--rounds -1", "argument --rounds: expected a whole number >= 1; got -1"),
        ("select", "--quick --rounds many", "argument --rounds: expected a whole number >= 1; got many"),
        ("calls", "--prompts 1000", "--prompts: expected at least --batch, 1024; got 1000"),
        ("calls", "--steps 0", "argument --steps: expected a whole number >= 1; got 0"),
        ("long_run", "--prompts 8", "--prompts: expected at least --batch, 64; got 8"),
        ("long_run", "--every 0", "argument --every: expected a whole number >= 1; got 0"),
        ("registration", "--prompts 0", "argument --prompts: expected a whole number >= 1; got 0"),
        ("replay.__main__", "--rounds 0", "argument --rounds: expected a whole number >= 1; got 0"),
        ("replay.__main__", "--quick --stored 65", "--stored: expected a multiple of --groups 16; got 65"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    module: str, given: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, *given.split()])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.performance.{module}").main()
    assert ended.value.code == 2
    assert f"error: {says}" in capsys.readouterr().err


def test_what_is_given_counts_with_quick_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    given = ["--quick", "--prompts", "600", "--batch-sizes", "200", "--rounds", "2", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", ["select", *given])
    select.main()
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert {figure["name"].partition(" of 600")[0] for figure in figures} == {"choose 200", "batches of 200"}
    assert figures[0]["detail"]["rounds"] == 2


def test_the_columns_are_explained_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([compared("x", [2.0], [1.0], "other")], None)
    columns = ("times better", "smallest-largest", "must")
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith(columns)] == [
        *columns
    ]


def test_ways_take_turns_and_get_the_same_rounds() -> None:
    seen: list[tuple[str, int]] = []

    def noted(name: str, number: int) -> None:
        seen.append((name, number))

    found = in_turns({name: partial(noted, name) for name in "abc"}, 4, warm_up=2)
    assert [number for _, number in seen] == [number for number in range(6) for _ in range(3)]
    orders = {tuple(name for name, _ in seen[start : start + 3]) for start in range(0, 18, 3)}
    assert len(orders) > 1
    assert all(len(times.wall) == len(times.cpu) == 4 for times in found.values())


def test_ratios_say_how_many_times_better_ours_is() -> None:
    slower = compared("x", [2.0, 4.0, 9.0], [1.0, 1.0, 3.0], "other", work=10.0, unit="s")
    assert (slower.baseline, slower.ours, slower.ratio, slower.spread) == (0.4, 0.1, 3.0, (2.0, 4.0))
    faster = compared("x", [2.0], [1.0], "other", work=10.0, unit="1 / s", rate=True)
    assert (faster.baseline, faster.ours, faster.ratio) == (5.0, 10.0, 2.0)
