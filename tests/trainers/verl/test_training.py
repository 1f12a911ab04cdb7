"""Real trainings."""
from __future__ import annotations

from pathlib import Path

from tests.trainers.service import Service
from tests.trainers.verl.tiny import client, config, trainer


def test_first(service: Service, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, service.target)).train()
    print(made.engine.asked)
    for step, logged in made.logged.items():
        print(step, {k: v for k, v in logged.items() if "curriculum" in k or "rollout_corr/rollout_is" in k or "critic/rewards/mean" in k})
    assert 0
