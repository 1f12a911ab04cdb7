"""The example of a loop with accelerate, which TRL's environment has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.service import Service
from tests.trainers.trl.tiny import client

_CLONE = Path(__file__).parents[3]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_trains_on_so_many_processes(service: Service, processes: int) -> None:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", f"--num_processes={processes}"]
    example = [str(_CLONE / "examples" / "accelerate_loop.py"), f"--target={service.target}"]
    ended = subprocess.run(
        [*launcher, "--num_machines=1", "--mixed_precision=no", *example, "--steps=21", "--batch-size=8"],
        env={**os.environ, "PYTHONPATH": str(_CLONE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [line for line in ended.stdout.splitlines() if line.startswith("step")]
    assert len(lines) == 3 and all("available 1" in line for line in lines)
    fresh, replayed = map(int, re.findall(r"(?:fresh|replayed) +(\d+)", lines[-1]))
    assert fresh + replayed == 8 and replayed > 0
    with client(service.target, "accelerate-loop") as looked:
        run = looked.get_run()
        assert run.last_step == 20
        # One caller, whatever the number of processes.
        assert 21 <= run.selections <= 42
        assert looked.quality().effective_sample_size is not None
