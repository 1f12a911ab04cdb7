"""Run configurations that must be refused: every field out of range, unknown values, and fields that contradict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason
from tests.service.bad_input import Case, Stubs, check_refused, filled, refusal_of
from tests.service.running import InProcessService

_ENUM = 77
_NOT_A_SHARE = (-0.01, 1.01, math.nan, math.inf)
_NOT_POSITIVE = (0.0, -1.0, math.nan, math.inf)

_OUT_OF_RANGE: Mapping[str, tuple[Any, ...]] = {
    "preset": (_ENUM, -1),
    "group_size": (0, -1, 4097),
    "target_difficulty": _NOT_A_SHARE,
    "selection_temperature": (5e-324, *_NOT_POSITIVE),
    "seed": (-1,),
    "outcome_range": (
        [0.0],
        [0.0, 0.5, 1.0],
        [1.0, 1.0],
        [1.0, 0.0],
        [0.0, math.nan],
        [-math.inf, 0.0],
        [-1.7e308, 1.7e308],
    ),
    "on_nan": (_ENUM, -1),
    "reference.mode": (_ENUM, -1),
    "reference.size": (0, -1, 1_000_001),
    "reference.every_steps": (0, -1),
    "reference.fraction": _NOT_A_SHARE,
    "estimator.name": (_ENUM, -1),
    "estimator.tracker_decay": (0.0, *_NOT_A_SHARE),
    "estimator.embedding_components": (-1, 257),
    "estimator.shortlist": (-1,),
    "score": (_ENUM, -1),
    "score_temperature": (5e-324, *_NOT_POSITIVE),
    "score_evaluation": (_ENUM, -1),
    "cool_down_steps": (-1,),
    "replay.fresh_fraction": (0.0, *_NOT_A_SHARE),
    "replay.capacity_groups": (0, -1),
    "replay.capacity_bytes": (-1,),
    "replay.max_age_steps": (-1,),
    "replay.max_uses": (-1,),
    "replay.min_effective_sample_size": _NOT_A_SHARE,
    "sampling.temperature": _NOT_POSITIVE,
    "sampling.top_p": (0.0, *_NOT_A_SHARE),
    "sampling.top_k": (-2,),
    "sampling.log_prob_mode": (_ENUM, -1),
    "lease_steps": (-1,),
    "max_unselected_steps": (-1,),
    "review_fraction": _NOT_A_SHARE,
    "max_prompt_tokens": (-1,),
    "twin_similarity": _NOT_A_SHARE,
}

# Name -> (fields that do not go together, the one that is named, what the message holds).
_CONTRADICTIONS: Mapping[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "near-target-score-temperature": (
        {"score": 3, "score_temperature": 0.5},
        "score_temperature",
        ("NEAR_TARGET", "selection_temperature"),
    ),
    "uniform-score-temperature": ({"score": 4, "score_temperature": 0.5}, "score_temperature", ("UNIFORM",)),
    "paper-score-temperature": ({"preset": 2, "score_temperature": 0.5}, "score_temperature", ("NEAR_TARGET",)),
    "dedicated-fraction": ({"reference": {"mode": 2, "fraction": 0.1}}, "reference.fraction", ("DEDICATED",)),
    "no-references-fraction": ({"reference": {"mode": 3, "fraction": 0.1}}, "reference.fraction", ("NONE",)),
    "paper-fraction": ({"preset": 2, "reference": {"fraction": 0.1}}, "reference.fraction", ("DEDICATED",)),
    "in-batch-every-steps": ({"reference": {"every_steps": 2}}, "reference.every_steps", ("IN_BATCH",)),
    "strict-without-cool-down": (
        {"strict_cool_down": True, "cool_down_steps": 0},
        "strict_cool_down",
        ("cool_down_steps > 0",),
    ),
    "paper-strict": ({"preset": 2, "strict_cool_down": True}, "strict_cool_down", ("cool_down_steps > 0",)),
    "tracker-adapter": ({"estimator": {"name": 3, "adapter": "a"}}, "estimator.adapter", ("ATTENTION", "TRACKER")),
    "fused-decay": ({"estimator": {"tracker_decay": 0.5}}, "estimator.tracker_decay", ("TRACKER", "FUSED")),
    "tracker-components": (
        {"estimator": {"name": 3, "embedding_components": 4}},
        "estimator.embedding_components",
        ("FUSED", "TRACKER"),
    ),
    "sampling-without-mode": (
        {"sampling": {"temperature": 1.0}},
        "sampling.log_prob_mode",
        ("RAW", "PROCESSED"),
    ),
    "sampling-empty": ({"sampling": {}}, "sampling.log_prob_mode", ("RAW", "PROCESSED")),
}


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


def _case(name: str, config: dict[str, Any], field: str, *says: str, reason: Reason = Reason.INVALID_FIELD) -> Case:
    request = pb.CreateRunRequest(run_id="new", config=config)
    return Case(name, "CreateRun", request, f"config.{field}", reason, says)


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


CASES = [
    *[
        _case(f"{path}={value}", _nested(path, value), path, "expected", f"got {value}")
        for path, values in _OUT_OF_RANGE.items()
        for value in values
    ],
    *[
        _case(name, config, field, *says, reason=Reason.CONTRADICTORY_FIELDS)
        for name, (config, field, says) in _CONTRADICTIONS.items()
    ],
    _case(
        "unknown-adapter",
        {"estimator": {"name": 2, "adapter": "nobody"}},
        "estimator.adapter",
        "'nobody'",
        "the server has: none",
        reason=Reason.UNKNOWN_ADAPTER,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_refused_and_changes_nothing(stubs: Stubs, case: Case) -> None:
    check_refused(stubs, case)


def test_every_wrong_field_is_named_at_once(stubs: Stubs) -> None:
    config = {"group_size": 0, "review_fraction": 2.0, "replay": {"max_uses": -1}, "outcome_range": [1, 0]}
    request = pb.CreateRunRequest(run_id="new", config=config)
    refusal = refusal_of(lambda: stubs.call("CreateRun", request))
    wrong = {"config.group_size", "config.review_fraction", "config.replay.max_uses", "config.outcome_range"}
    assert {field for field, _ in refusal.violations} == wrong
    assert all(field in refusal.message for field in wrong)


def test_another_config_names_every_difference(stubs: Stubs) -> None:
    """What is compared is the configuration in effect, whichever fields were given."""
    stubs.call("CreateRun", pb.CreateRunRequest(run_id="compared", config={"preset": 2}))
    same = {"preset": 2, "score": 3, "replay": {"capacity_groups": 512}}
    assert not stubs.call("CreateRun", pb.CreateRunRequest(run_id="compared", config=same)).created
    other = {"preset": 2, "seed": 1, "replay": {"capacity_groups": 511}}
    refusal = refusal_of(lambda: stubs.call("CreateRun", pb.CreateRunRequest(run_id="compared", config=other)))
    assert refusal.reason == "RUN_EXISTS"
    assert refusal.violations == [
        ("config.seed", "the run has 0; got 1"),
        ("config.replay.capacity_groups", "the run has 512; got 511"),
    ]
    stubs.seen = []


@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
def test_a_setting_that_only_a_newer_client_knows_is_refused(stubs: Stubs, nested: bool) -> None:
    """Ignoring it would run another experiment than was asked for."""
    request = pb.CreateRunRequest(run_id="newer")
    part = request.config.replay if nested else request.config
    # Field 999, a varint of 1.
    part.MergeFromString(b"\xb8\x3e\x01")
    refusal = refusal_of(lambda: stubs.call("CreateRun", request))
    assert refusal.reason == "INVALID_FIELD"
    assert refusal.violations[0][0] == ("config.replay" if nested else "config")
    assert "999" in refusal.message
