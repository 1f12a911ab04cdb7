"""``selector backup``, ``restore`` and ``verify``: what they print and how they exit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import RUN, STEPS, Invoke
from tests.service.running import InProcessService


def test_backup_restore_and_look(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    made = invoke("backup", tmp_path / "backup", "--state-dir", state_dir, "--json", tmp_path / "backup.json")
    assert made.exit_code == 0, made.output
    assert [line.split()[:2] for line in made.output.splitlines()[2:6]] == [
        ["branch", "1"],
        ["empty", "-"],
        [RUN, str(STEPS - 1)],
        ["paper", str(STEPS - 1)],
    ]
    figures = json.loads((tmp_path / "backup.json").read_text())
    assert {run["run_id"]: run["last_step"] for run in figures["runs"]}[RUN] == STEPS - 1
    assert {file["path"].split("/")[0] for file in figures["files"]} == {"state.db", "replay", "embeddings"}

    restored = invoke("restore", tmp_path / "backup", tmp_path / "state", "--json", tmp_path / "restored.json")
    assert restored.exit_code == 0, restored.output
    assert json.loads((tmp_path / "restored.json").read_text()) == figures
    shown = [invoke("show", RUN, "--state-dir", path).output for path in (tmp_path / "state", state_dir)]
    assert shown[0] == shown[1] and RUN in shown[0]

    refused = invoke("show", RUN, "--state-dir", tmp_path / "backup")
    assert refused.exit_code == 1 and "is a backup" in refused.output


def test_backup_takes_the_state_directory_from_the_environment(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    made = invoke("backup", tmp_path / "backup", env={"SELECTOR_STATE_DIR": str(state_dir)})
    assert made.exit_code == 0, made.output


def test_usage_errors(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, expected in (
        (("backup",), "Missing argument 'DIR'"),
        (("backup", tmp_path / "new", "--state-dir", tmp_path / "nowhere"), "does not exist"),
        (("backup", tmp_path / "full", "--state-dir", state_dir), "is there already"),
        (("restore", tmp_path / "nowhere", tmp_path / "new"), "does not exist"),
        (("restore", tmp_path, tmp_path / "full"), "is there already"),
        (("verify",), "give a BACKUP or --state-dir"),
        (("verify", tmp_path, "--state-dir", tmp_path), "not both"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert expected in result.output


def test_failures(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, expected in (
        (("backup", tmp_path / "new", "--state-dir", tmp_path / "empty"), "it has no state.db"),
        (("backup", state_dir / "new", "--state-dir", state_dir), "lies within the state directory"),
        (("restore", state_dir, tmp_path / "new"), "is no backup"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 1, (arguments, result.output)
        assert expected in result.output and result.output.startswith("Error: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_verify_what_is_sound(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("backup", tmp_path / "backup", "--state-dir", state_dir).exit_code == 0
    sound = invoke("verify", tmp_path / "backup", "--json", tmp_path / "sound.json")
    assert sound.exit_code == 0, sound.output
    assert sound.output.splitlines()[-1] == f"{tmp_path / 'backup'}: backup is sound"
    figures = json.loads((tmp_path / "sound.json").read_text())
    assert figures["sound"] is True and figures["kind"] == "backup"
    assert all(check["problem_count"] == 0 for check in figures["checks"])


def test_verify_what_is_damaged(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("backup", tmp_path / "backup", "--state-dir", state_dir).exit_code == 0
    os.truncate(tmp_path / "backup" / "state.db", 8192)
    damaged = invoke("verify", tmp_path / "backup", "--json", tmp_path / "damaged.json")
    assert damaged.exit_code == 1
    assert damaged.output.splitlines()[0].split() == ["check", "examined", "problems", "notes"]
    assert "PROBLEM in checksums: state.db has 8192 bytes, expected" in damaged.output
    assert damaged.output.splitlines()[-1] == f"{tmp_path / 'backup'}: backup is NOT sound"
    assert json.loads((tmp_path / "damaged.json").read_text())["sound"] is False


@pytest.mark.slow
def test_verify_survives_a_replay_store_that_ends_its_reader(state_dir: Path, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("backup", tmp_path / "backup", "--state-dir", state_dir).exit_code == 0
    assert invoke("restore", tmp_path / "backup", tmp_path / "state").exit_code == 0
    os.truncate(tmp_path / "state" / "replay" / "data.mdb", 8192)
    damaged = invoke("verify", "--state-dir", tmp_path / "state")
    assert damaged.exit_code == 1
    assert "replay/data.mdb" in damaged.output and "events" in damaged.output


@pytest.mark.slow
def test_the_commands_beside_a_server(state_dir: Path, tmp_path: Path) -> None:
    """As processes, while a server has the directory open; a bar is for terminals only."""
    shutil.copytree(state_dir, tmp_path / "served")
    service = InProcessService(tmp_path / "served")
    try:
        for arguments in (
            ("backup", str(tmp_path / "backup"), "--state-dir", str(tmp_path / "served")),
            ("verify", "--state-dir", str(tmp_path / "served")),
            ("verify", str(tmp_path / "backup")),
        ):
            command = [sys.executable, "-m", "selector", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), done
    finally:
        service.close()
