"""The demo as a user runs it, and what it says when it cannot go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selector.testbed import service_process
from selector.testbed.demo import run_demo
from selector.testbed.service_process import ServiceNotStarted, running_service


def test_a_service_that_does_not_start_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'the disk is full' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(service_process.sys, "executable", str(broken))
    with (
        pytest.raises(ServiceNotStarted, match=r"(?s)exit code 3.*the disk is full"),
        running_service(tmp_path / "state", tmp_path / "service.log"),
    ):
        pass
    assert run_demo(tmp_path / "output", seeds=1, steps=1, show_progress=False) == 1
    message = capsys.readouterr().err
    assert message.startswith("selector demo: the service ")
    assert "the disk is full" in message


def test_an_output_directory_that_cannot_be_made_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run_demo(tmp_path / "file" / "output", show_progress=False) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_demo_leaves_a_report_and_runs_to_look_at(tmp_path: Path) -> None:
    lines: list[str] = []
    figures = tmp_path / "figures.json"
    assert run_demo(tmp_path / "demo", seeds=1, steps=3, json_path=figures, echo=lines.append, show_progress=False) == 0
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert (tmp_path / "demo" / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert {run["arm"] for run in json.loads(figures.read_text())["runs"]} == {"uniform", "paper", "default", "oracle"}
    assert any("selector runs --state-dir" in line for line in lines)
