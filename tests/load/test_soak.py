"""A short round of the soak; ``make soak`` is the long one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.soak import main


@pytest.mark.slow
def test_a_short_round_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--minutes", "0.5", "--json", str(tmp_path / "soak.json")])
    written = capsys.readouterr().out
    assert code == 0, written
    figures = {record["name"]: record["value"] for record in json.loads((tmp_path / "soak.json").read_text())}
    assert figures["soak violations"] == 0
    assert figures["soak SelectBatch calls"] >= 64
