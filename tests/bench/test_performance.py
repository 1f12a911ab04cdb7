"""The measurements of performance run, and what they print can be read by programs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

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
