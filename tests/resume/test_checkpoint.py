"""A trainer makes a checkpoint at a step, goes on, crashes, and resumes: it goes on as if it had never crashed.

Its twin takes the same steps with a service that is never stopped. The service of the trainer is killed with -9 when
the trainer crashes, stopped and started after the rewind, and killed again halfway. The next 20 selections, predictions
of the whole pool and replay samples are those of the twin, and so is everything that the run shows at the end.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import InProcessService, ServiceProcess
from tests.service.test_restart import BATCH, MODES, REFERENCES, REPLAY, SCORES, begin, ending
from tests.service.trainer import Trainer, prediction_contents

CHECKPOINT, CRASH, AHEAD = 5, 9, 20


# Every estimator meets every score, mode and policy, and every pair of them, in a third of the runs of the product.
WHOLE_PRODUCT = bool(os.environ.get("SELECTOR_WHOLE_PRODUCT"))


def configs(estimator: str, policy: str) -> dict[str, dict[str, Any]]:
    """Every score, with one reference mode or with all, and draws from the posterior."""
    found: dict[str, dict[str, Any]] = {}
    shift = list(REPLAY).index(policy)
    for (i, score), (k, mode) in itertools.product(enumerate(SCORES), enumerate(MODES)):
        if WHOLE_PRODUCT or (i + shift) % len(MODES) == k:
            found[f"{score}-{mode}"] = {"score": score, "reference": MODES[mode]}
    found["thompson"] = {"score_evaluation": "THOMPSON"}
    return {
        name: {"estimator": {"name": estimator}, "replay": REPLAY[policy], **config} for name, config in found.items()
    }


def trainer(service: Any, name: str, config: dict[str, Any], salt: str = "") -> Trainer:
    dedicated = config.get("reference", {}).get("mode") == "DEDICATED"
    references = REFERENCES if dedicated else 0
    return Trainer(service.client(name), BATCH, salt, references=references, replays=True, signals=True)


def steps(service: Any, name: str, config: dict[str, Any], start: int, stop: int, salt: str = "") -> list[object]:
    """What each step is answered, and what is predicted after it."""
    running = trainer(service, name, config, salt)
    with running.client:
        return [
            (running.step(step), prediction_contents(running.client.predict_difficulty()))
            for step in range(start, stop)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", REPLAY)
@pytest.mark.parametrize("estimator", ["FUSED", "ATTENTION", "TRACKER"])
def test_a_resumed_trainer_goes_on_as_one_that_never_crashed(
    own_service: InProcessService, tmp_path: Path, estimator: str, policy: str
) -> None:
    runs = configs(estimator, policy)
    expected, endings = {}, {}
    for name, config in runs.items():
        begin(own_service.client(name), config)
        expected[name] = steps(own_service, name, config, 0, CHECKPOINT + AHEAD)
        endings[name] = ending(own_service.client(name))

    process = ServiceProcess(tmp_path / "killed")
    try:
        for name, config in runs.items():
            with process.client(name) as client:
                begin(client, config)
            assert steps(process, name, config, 0, CHECKPOINT) == expected[name][:CHECKPOINT], name
            elsewhere = steps(process, name, config, CHECKPOINT, CRASH, "another world")
            assert elsewhere != expected[name][CHECKPOINT:CRASH], name
        process.kill()
        process = ServiceProcess(tmp_path / "killed")
        for name in runs:
            with process.client(name) as client:
                assert client.rewind(CHECKPOINT).dropped_reports >= CRASH - CHECKPOINT, name
        assert process.terminate() == 0
        process = ServiceProcess(tmp_path / "killed")
        half = CHECKPOINT + AHEAD // 2
        for name, config in runs.items():
            assert steps(process, name, config, CHECKPOINT, half) == expected[name][CHECKPOINT:half], name
        process.kill()
        process = ServiceProcess(tmp_path / "killed")
        for name, config in runs.items():
            assert steps(process, name, config, half, CHECKPOINT + AHEAD) == expected[name][half:], name
            with process.client(name) as client:
                assert ending(client) == endings[name], name
    finally:
        process.kill()
