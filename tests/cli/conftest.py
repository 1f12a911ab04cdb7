"""The command line, called in this process, and a filled state directory to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from clients import RolloutGroup, SelectorClient
from selector.cli.commands import cli
from tests.service.running import InProcessService

Invoke = Callable[..., Result]

RUN = "math-grpo"
PROMPTS = tuple(f"train/{i}" for i in range(16))
STEPS = 4


@pytest.fixture(scope="session")
def invoke() -> Invoke:
    """``invoke("runs", "--target", …, env={…})`` in this process; a traceback is a failure of the test."""

    def call(*arguments: object, env: dict[str, str] | None = None, input: str | None = None) -> Result:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], input=input, env=env, prog_name="selector")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory that no server has open: a run with history, a paper run, an empty one and a fork."""
    path = tmp_path_factory.mktemp("cli") / "state"
    service = InProcessService(path)
    _fill(service.client(RUN), {"replay": {"max_age_steps": 8}, "seed": 3})
    _fill(service.client("paper"), {"preset": "PAPER", "reference": {"size": 8}})
    service.client("empty").create_run({})
    service.client(RUN).fork("branch", 2)
    service.close()
    return path


@pytest.fixture(scope="session")
def target(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a service over a copy of the state directory."""
    copy = tmp_path_factory.mktemp("served") / "state"
    shutil.copytree(state_dir, copy)
    service = InProcessService(copy)
    yield service.address
    service.close()


def _fill(client: SelectorClient, config: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    client.create_run(config)
    client.register_prompts(
        PROMPTS,
        texts=[f"What is {i} times {i}?" for i in range(len(PROMPTS))],
        embeddings=rng.normal(size=(len(PROMPTS), 4)),
        domains=["algebra" if i % 2 else "geometry" for i in range(len(PROMPTS))],
    )
    client.retire_prompts(PROMPTS[-1:])
    for step in range(STEPS):
        if client.get_run().reference_due:
            batch = client.select_batch(step, 0, purpose="reference")
            measured = {p: rng.integers(0, 2, 4).astype(float) for p in batch.prompt_ids}
            client.report_outcomes(step, measured, purpose="reference")
        batch = client.select_batch(step, 4, fresh_only=True)
        outcomes = {p: rng.integers(0, 2, 4).astype(float) for p in batch.prompt_ids}
        client.report_outcomes(step, outcomes)
        client.push_rollouts(step, [_group(prompt_id, step, values) for prompt_id, values in outcomes.items()])
        client.report_training(step, effective_sample_size=0.75, max_importance_weight=2.5, clip_fraction=0.125)


def _group(prompt_id: str, step: int, outcomes: np.ndarray) -> RolloutGroup:
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=step,
        prompt_token_ids=[1, 2],
        response_token_ids=[[3, 4]] * len(outcomes),
        behavior_log_probs=[np.array([-0.5, -0.25], dtype=np.float32)] * len(outcomes),
        rewards=outcomes,
        outcomes=outcomes,
    )
