"""The machine of ``tests.resume.machine``: a quick round, and long ones, also with processes that are killed."""

from __future__ import annotations

import pytest

from tests.resume.machine import ProcessMachine, ResumeMachine
from tests.resume.rounds import run

_MOST_ROUNDS = 6
# What has to happen for a round to say anything.
NEEDED = (
    *(f"estimator {name}" for name in ("FUSED", "ATTENTION", "TRACKER")),
    *(f"score {name}" for name in ("LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM")),
    *(f"reference {name}" for name in ("IN_BATCH", "DEDICATED", "NONE")),
    *(
        f"replay {name}"
        for name in (
            *("fresh_fraction", "capacity_groups", "capacity_bytes", "max_age_steps", "max_uses"),
            "min_effective_sample_size",
        )
    ),
    "replay informative_only",
    "replay newest_per_prompt",
    "clean rewind",
    "rewind after evictions",
    "rewind after replaced prompts",
    "rewind after signals",
    "rewind behind late operations",
    "rewind cut short",
    "rewind of samples",
    "steps taken again",
    "groups sampled",
    "prompts replaced",
    "late report",
    "late push",
    "selection ahead",
    "leases left to expire",
    "shortfall",
    "repeated calls",
    "id of a dropped call used again",
    "refused REQUEST_ID_REUSED",
    "refused REWIND_BEYOND_HISTORY",
    "refused SELECTION_DIFFERS",
    "forks",
    "forks that are stayed with",
    "restarts",
    "kills",
)


def test_the_service_agrees_with_a_model_that_is_never_interrupted() -> None:
    run(ResumeMachine, examples=4, rules=22, number=0)


@pytest.mark.slow
def test_a_long_round_in_which_everything_happens() -> None:
    ResumeMachine.counts.clear()
    missing = list(NEEDED)
    # What is rare comes in another round.
    for number in range(_MOST_ROUNDS):
        run(ResumeMachine, examples=25, rules=60, number=number)
        missing = [kind for kind in NEEDED if not ResumeMachine.counts[kind]]
        if not missing:
            break
    assert not missing, dict(ResumeMachine.counts)


@pytest.mark.slow
def test_processes_that_are_killed() -> None:
    run(ProcessMachine, examples=6, rules=60, number=0)
