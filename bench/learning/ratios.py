"""How many rollouts an arm takes for what uniform ends with, and how sure that is.

Seeds are pairs: an arm with a seed is held against uniform with the same seed, base policy and mixture. A seed that
never reached uniform's final accuracy has no ratio, only a bound: at least all it rolled out over uniform's count. It
enters means and intervals with that bound, which flatters the arm, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.testbed.record import ArmRun

_RESAMPLES = 10_000
_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its interval: the percentiles of means of seeds drawn anew with replacement.

    ``low`` and ``high`` are None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None


def interval(values: Sequence[float]) -> Interval:
    """The mean's 95 % bootstrap interval; the same values always give the same."""
    found = np.asarray(values, dtype=np.float64)
    if len(found) < 2:
        return Interval(float(found.mean()), None, None)
    drawn = np.random.default_rng(0).integers(len(found), size=(_RESAMPLES, len(found)))
    low, high = np.quantile(found[drawn].mean(axis=1), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(found.mean()), float(low), float(high))


@dataclass(frozen=True)
class Cost:
    """What an arm with a seed took to reach uniform's final accuracy, over what uniform took.

    ``reached`` is False where it never got there; the ratios are then lower bounds.
    """

    reached: bool
    rollouts: float
    steps: float
    cpu_seconds: float
    half_generation: float


def cost(run: ArmRun, control: ArmRun) -> Cost:
    """Of one pair.

    ``half_generation`` prices a step as in LLM training where generating is half of uniform's step and updating the
    other half: rollouts generated and rollouts trained on, both in units of uniform's.
    """
    target = control.final_accuracy
    there, control_there = run.reached_at(target), control.reached_at(target)
    if control_there is None:
        # Cannot be: the mean of its last evaluations is what it is asked to reach.
        raise ValueError("uniform did not reach its own final accuracy")
    at = run.evaluations[-1] if there is None else there
    rollouts = at.rollouts / control_there.rollouts
    trained = at.trained_rollouts / control_there.trained_rollouts
    return Cost(
        there is not None,
        rollouts,
        at.step / control_there.step,
        at.cpu_seconds / control_there.cpu_seconds,
        (rollouts + trained) / 2,
    )
