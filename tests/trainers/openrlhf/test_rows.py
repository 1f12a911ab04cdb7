"""What is stored of a rollout comes back as OpenRLHF's own generator had made it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from clients import RolloutGroup
from trainer_adapters.checks import AdapterError
from trainer_adapters.openrlhf.rows import experience, stored

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "log_prob_mode": "PROCESSED"}
FIELDS = [
    name
    for name in Experience.__dataclass_fields__
    if Experience.is_step_tensor_field(name) or Experience.is_episode_tensor_field(name)
]


def fresh(tokens: list[int], ranges: list[tuple[int, int]], reward: Any, truncated: bool = False) -> Experience:
    """As OpenRLHF makes it of an executor's answer; log-probs tell their place."""
    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    drawn = {place for start, end in ranges for place in range(start, end)}
    return generator._process_response_into_experience(
        {
            "prompt": "p",
            "label": "l",
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": [-0.1 * place if place in drawn else 0.0 for place in range(len(tokens))],
            "reward": reward,
            "scores": reward,
            "truncated": truncated,
            "extra_logs": {},
        },
        max_len=12,
    )


def through_the_service(rows: list[Experience]) -> list[Experience]:
    """Stored, sent, received and made a row of again."""
    outcomes = np.array([float(row.scores) for row in rows])
    group = RolloutGroup.from_proto(stored(rows, outcomes, "p", 3, SAMPLING).to_proto())
    return [experience(group, index, "p", "l") for index in range(len(group))]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([fresh([5, 6, 7, 8], [(2, 4)], 1.0), fresh([5, 6, 1], [(2, 3)], 0.0)], id="one turn"),
        pytest.param(
            [
                fresh([5, 6, 7, 8, 9, 2, 3], [(2, 4), (5, 7)], 0.5),
                fresh([5, 6, 7, 4, 4, 4, 2, 4], [(2, 3), (6, 7)], 0.25, True),
            ],
            id="turns with an environment's answers between and behind",
        ),
        pytest.param([fresh([5, 6], [(1, 2)], 1.0)], id="a prompt of one token"),
        pytest.param([fresh(list(range(2, 20)), [(3, 18)], 1.0, True)], id="cut at the longest length"),
    ],
)
def test_a_row_comes_back_as_it_was(rows: list[Experience]) -> None:
    for before, after in zip(rows, through_the_service(rows), strict=True):
        for name in FIELDS:
            one, other = getattr(before, name), getattr(after, name)
            if one is None:
                assert other is None
            else:
                assert one.dtype == other.dtype and torch.equal(one, other), name
        for name in ("prompts", "labels", "images", "mm_train_inputs"):
            assert getattr(before, name) == getattr(after, name)


def test_rewards_that_are_integers_can_be_trained_on_beside_replayed_ones() -> None:
    row = fresh([5, 6, 1], [(2, 3)], 1)
    (replayed,) = through_the_service([row])
    row.info = replayed.info = {}
    joined = Experience.concat_experiences([row, replayed], 0)
    assert joined.rewards.tolist() == joined.scores.tolist() == [1.0, 1.0]


def test_rollouts_of_different_prompts_are_no_group() -> None:
    rows = [fresh([5, 6, 1], [(2, 3)], 1.0), fresh([5, 7, 1], [(2, 3)], 1.0)]
    with pytest.raises(AdapterError, match="rollouts of 'p': expected one prompt, got several"):
        stored(rows, np.ones(2), "p", 0, SAMPLING)
