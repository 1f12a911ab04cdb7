"""The example of a custom loop runs against the real service as its documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.service.running import InProcessService

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_loop.py"


def test_the_custom_loop_trains_selects_and_replays(service: InProcessService) -> None:
    command = [sys.executable, str(EXAMPLE), f"--target={service.address}", "--steps=14", "--batch-size=16"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    client = service.client("custom-loop")
    run = client.get_run()
    assert run.last_step == 13
    assert run.selections == 14
    assert run.replay_groups > 0
    assert client.quality().effective_sample_size is not None
