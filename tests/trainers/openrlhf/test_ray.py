"""The launcher's command with OpenRLHF's real Ray actors: the class and its settings travel into them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.openrlhf.tiny import client, config, flags, trainer
from tests.trainers.service import Service

_TIMEOUT_S = 240


def launched(folder: Path, target: str, run_id: str, **changes: Any) -> list[dict[str, float]]:
    """A training by the command line; what OpenRLHF logged of each step. Only the launcher knows the settings."""
    line = [sys.executable, str(Path(__file__).with_name("launch.py")), *flags(folder, **changes)]
    settings = json.dumps({"target": target, "run_id": run_id, "timeout_s": 60})
    done = subprocess.run(
        line,
        env={**os.environ, "SELECTOR_CURRICULUM": settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    statuses: list[dict[str, float]] = json.loads((folder / "output" / "statuses.json").read_text(encoding="utf-8"))
    return statuses


def told(target: str, run_id: str) -> list[tuple[int, str, tuple[float, ...]]]:
    """What the service was told."""
    with client(target, run_id) as looked:
        return sorted((row.record.step, row.prompt_id, tuple(row.record.outcomes)) for row in looked.export("outcomes"))


def test_the_synchronous_trainer_trains_as_in_one_process(service: Service, tmp_path: Path, engine: Any) -> None:
    statuses = launched(tmp_path / "ray", service.target, "ray")
    made = trainer(tmp_path / "local", config(service.target, "local"), engine)
    made.fit()
    assert told(service.target, "ray") == told(service.target, "local")
    assert any(status["curriculum/replayed"] > 0 for status in statuses)
    for status, expected in zip(statuses, made.policy.statuses, strict=True):
        assert status == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_the_asynchronous_trainer_resumes_replays_and_saves_its_steps(
    service: Service, tmp_path: Path, engine: Any
) -> None:
    made = trainer(tmp_path, config(service.target, "async"), engine, ckpt__save_steps=1)
    made.fit()
    whole = told(service.target, "async")
    checkpoints = tmp_path / "checkpoints" / "_actor"
    shutil.copy(checkpoints / "global_step2.pt", checkpoints / "latest.pt")
    for path in checkpoints.glob("global_step*.pt"):
        path.unlink()
    statuses = launched(
        tmp_path, service.target, "async", train__async_enable=True, ckpt__save_steps=1, ckpt__load_enable=True
    )
    assert len(statuses) == 6
    stale = [status["curriculum/effective_sample_size"] for status in statuses if status["curriculum/replayed"] > 0]
    assert stale and all(0 < size <= 1 for size in stale)
    # What makes experiences is in another process than what draws batches.
    with client(service.target, "async") as looked:
        assert looked.quality().effective_sample_size == pytest.approx(stale[-1], abs=1e-5)
    after = told(service.target, "async")
    # What came before the checkpoint has stayed, and its step is the first that is chosen anew, from the same history.
    assert [row for row in after if row[0] < 2] == [row for row in whole if row[0] < 2]
    assert [row[:2] for row in after if row[0] == 2] == [row[:2] for row in whole if row[0] == 2]
    assert {step for step, *_ in after} == set(range(8))
    # A batch waits in a queue: its checkpoint is of its own step, not of the one that the generator is at.
    saved = {path.stem: torch.load(path)["client_states"] for path in checkpoints.glob("global_step*.pt")}
    assert saved.keys() == {f"global_step{step}" for step in range(3, 9)}
    for name, states in saved.items():
        assert name == f"global_step{states['global_step']}"
        assert states["data_loader_state_dict"]["curriculum_step"] == states["global_step"]
