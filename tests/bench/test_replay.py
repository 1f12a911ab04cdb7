"""The benchmark of replay runs, and what it prints can be read by programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_ROLLUP = Path("/proc/self/smaps_rollup")


@pytest.mark.skipif(not _ROLLUP.exists(), reason="memory of processes is read from Linux's /proc")
def test_a_quick_round_gives_every_figure_with_its_command(tmp_path: Path) -> None:
    report = tmp_path / "replay.json"
    options = ["--quick", "--peers", "tcp,fields", "--folder", str(tmp_path), "--json", str(report)]
    command = [sys.executable, "-m", "bench.performance.replay", *options]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert all({"name", "baseline", "ours", "ratio", "unit", "command"} <= figure.keys() for figure in figures)
    assert all(figure["ours"] > 0 and "bench.performance.replay --quick" in figure["command"] for figure in figures)
    names = {(figure["name"], figure["against"].partition(" ")[0]) for figure in figures}
    for kind in ("push", "sample"):
        for way in ("same host", "over the wire"):
            assert {(f"{kind}, 1 MiB, {way}", "own"), (f"{kind}, 1 MiB, {way}", "gRPC")} <= names
            assert (f"{kind}, median, {way}", "") in names
        assert (f"{kind}, 1 MiB, same host", "ours,") in names
        assert {(f"{kind}, 2,048 tokens a group", "ours,"), (f"{kind}, 2 callers at once", "ours,")} <= names
    for what in ("memory", "file"):
        assert (f"{what} of the server per payload byte stored", "") in names
    # Services and stores have ended, and their files are gone.
    assert [path.name for path in tmp_path.iterdir()] == ["replay.json"]


def test_a_peer_that_there_is_not_is_named() -> None:
    command = [sys.executable, "-m", "bench.performance.replay", "--peers", "tcp,kafka"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "got kafka" in done.stderr
