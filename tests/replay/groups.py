"""Groups of rollouts for tests of replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from selector.replay import CheckedGroup, GroupColumns, ReplayRun, SampledGroup, SampleRequest


def columns(**changes: Any) -> GroupColumns:
    """A sound group of three rollouts with 2, 3 and 1 response tokens, with changes."""
    fields: dict[str, Any] = {
        "prompt_id": "p",
        "group_id": "",
        "policy_version": 3,
        "sampling": None,
        "lengths": np.array([2, 3, 1], dtype=np.int64),
        "rewards": np.array([0.5, -1.0, 2.0]),
        "outcomes": np.array([1.0, 0.0, 1.0]),
        "statuses": np.array([], dtype=np.uint8),
        "prompt_token_ids": np.arange(4, dtype="<i4").tobytes(),
        "response_token_ids": np.arange(6, dtype="<i4").tobytes(),
        "behavior_log_probs": np.array([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6], dtype="<f4").tobytes(),
    }
    return GroupColumns(**{**fields, **changes})


def log_probs(*values: float) -> bytes:
    """The behaviour log-probs of a group."""
    return np.array(values, dtype="<f4").tobytes()


def checked(
    prompt_id: str, policy_version: int, group_id: str = "", informative: bool = True, mean_outcome: float = 0.5
) -> CheckedGroup:
    """A group that passed validation."""
    return CheckedGroup(
        prompt_id, group_id or f"{prompt_id}@{policy_version}", policy_version, mean_outcome, informative
    )


def payload(*seed: int, size: int = 200) -> bytes:
    """Bytes that follow from the seed."""
    return np.random.default_rng(seed).bytes(size)


def pushed(step: int, count: int, prompts: int | None = None, size: int = 200) -> list[tuple[CheckedGroup, bytes]]:
    """The groups a trainer pushes at a step: ``count`` of them, cycling through ``prompts`` prompts."""
    numbers = range(step * count, (step + 1) * count)
    modulus = prompts or 10**9
    return [(checked(f"p{number % modulus}", step), payload(step, number, size=size)) for number in numbers]


@dataclass(frozen=True)
class Answer:
    """A sample with its groups."""

    groups: tuple[SampledGroup, ...]
    shortfall: int
    eligible: int


def sampled(run: ReplayRun, request: SampleRequest, part: tuple[int, int] = (0, 1), max_bytes: int = 5000) -> Answer:
    """Sample and read it to its end, some bytes at a time."""
    sample = run.sample(request, part)
    groups: list[SampledGroup] = []
    while len(groups) < len(sample.positions):
        groups += run.read(sample, len(groups), max_bytes)
    return Answer(tuple(groups), sample.shortfall, sample.eligible)
