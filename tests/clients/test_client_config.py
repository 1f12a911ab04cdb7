"""A run's configuration from a mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients import run_config
from selector.v1 import run_pb2


def test_names_numbers_and_sections() -> None:
    config = run_config(
        {
            "preset": "paper",
            "group_size": np.int64(16),
            "seed": 0,
            "outcome_range": (-1, np.float32(1)),
            "clip_outcomes": True,
            "on_nan": "ON_NAN_DROP_ROLLOUT",
            "score": "Score_Near-Target",
            "reference": {"mode": "in_batch", "fraction": 0.25},
            "estimator": {"name": run_pb2.ESTIMATOR_NAME_TRACKER, "adapter": "a"},
            "replay": {"fresh_fraction": 1, "informative_only": False},
            "sampling": run_pb2.SamplingSettings(temperature=1.0),
            "lease_steps": None,
        }
    )
    assert config == run_pb2.RunConfig(
        preset="PRESET_PAPER",
        group_size=16,
        seed=0,
        outcome_range=[-1, 1],
        clip_outcomes=True,
        on_nan="ON_NAN_DROP_ROLLOUT",
        score="SCORE_NEAR_TARGET",
        reference=run_pb2.ReferenceConfig(mode="REFERENCE_MODE_IN_BATCH", fraction=0.25),
        estimator=run_pb2.EstimatorConfig(name="ESTIMATOR_NAME_TRACKER", adapter="a"),
        replay=run_pb2.ReplayConfig(fresh_fraction=1, informative_only=False),
        sampling=run_pb2.SamplingSettings(temperature=1.0),
    )


@pytest.mark.parametrize("spelling", ["LEARNABLE", "learnable", "SCORE_LEARNABLE", "score_learnable", " Learnable "])
def test_every_spelling_of_an_enum(spelling: str) -> None:
    assert run_config({"score": spelling}).score == run_pb2.SCORE_LEARNABLE


def test_every_enum_value_can_be_named() -> None:
    for name, number in run_pb2.EstimatorName.items():
        if number:
            short = name.removeprefix("ESTIMATOR_NAME_").lower()
            assert run_config({"estimator": {"name": short}}).estimator.name == number


def test_a_message_passes_through_and_none_is_all_defaults() -> None:
    message = run_pb2.RunConfig(group_size=4)
    assert run_config(message) is message
    assert run_config(None) == run_config({}) == run_pb2.RunConfig()


def test_a_section_that_is_there_but_empty_is_there() -> None:
    assert run_config({"sampling": {}}).HasField("sampling")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"group_sise": 8}, "config.group_sise: no such field (did you mean 'group_size'?)"),
        ({"replay": {"fresh_frac": 1}}, "config.replay.fresh_frac: no such field (did you mean 'fresh_fraction'"),
        ({"zzz": 1}, "config.zzz: no such field; known: preset, group_size"),
        ({"score": "learnabel"}, "NEAR_TARGET, UNIFORM, got 'learnabel' (did you mean 'LEARNABLE'?)"),
        ({"score": 99}, "config.score: expected one of"),
        ({"score": True}, "config.score: expected one of"),
        ({"estimator": "fused"}, "config.estimator: expected a mapping of fields, got 'fused'"),
        ({"estimator": {"name": "paper"}}, "config.estimator.name: expected one of FUSED"),
        ({"group_size": "8"}, "config.group_size: expected a whole number, got '8'"),
        ({"group_size": 8.5}, "config.group_size: expected a whole number, got 8.5"),
        ({"group_size": True}, "config.group_size: expected a whole number, got True"),
        ({"group_size": 2**40}, "config.group_size: expected a whole number that fits into 32 bits"),
        ({"clip_outcomes": 1}, "config.clip_outcomes: expected True or False, got 1"),
        ({"seed": [1]}, "config.seed: expected a whole number, got [1]"),
        ({"outcome_range": 1.0}, "config.outcome_range: expected a list of numbers, got 1.0"),
        ({"outcome_range": "01"}, "config.outcome_range: expected a list of numbers, got the string '01'"),
        ({"outcome_range": [0, "x"]}, "config.outcome_range[1]: expected a number, got 'x'"),
        ({"outcome_range": [0, True]}, "config.outcome_range[1]: expected a number, got True"),
        ({"target_difficulty": "0.5"}, "config.target_difficulty: expected a number, got '0.5'"),
        ({"estimator": {"adapter": "\ud800"}}, "config.estimator.adapter: expected text that UTF-8 can hold"),
        ({5: 1}, "config[5]: no such field"),
        ({"\ud800": 1}, "config['\\ud800']: no such field"),
        ([("group_size", 8)], "config: expected a mapping of fields"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_path(config: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        run_config(config)
    assert message in str(caught.value)
