"""The measurement of registering works, and writes figures with everything that identifies them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_FIELDS = {"name", "baseline", "ours", "ratio", "unit", "command", "environment"}


def test_a_quick_run_writes_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.performance.registration", "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert all(figure.keys() >= _FIELDS for figure in figures)
    assert all(figure["command"].startswith("python -m bench.performance.registration --quick") for figure in figures)
    names = [figure["name"] for figure in figures]
    assert len(names) == len(set(names))
    for what in ("texts alone", "embeddings of width 384"):
        for kind in ("register", "server CPU a prompt,", "memory a prompt,", "disk a prompt,", "start with"):
            assert f"{kind} 1,000 prompts, {what}" in names
    assert "start with 100 replay groups and 1,000 prompts" in names
