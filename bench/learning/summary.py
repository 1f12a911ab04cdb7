"""What the records say: arms against uniform by mixture and base policy, and whether live metrics foretell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from bench.learning.ratios import Cost, Interval, cost, interval
from bench.learning.records import LIVE, Record
from selector.testbed.arms import UNIFORM
from selector.testbed.record import ArmRun, mean_or_none

# What is over all mixtures is called.
ALL = "all"

# Fewer arms give no correlation worth printing.
_FEWEST_ARMS = 4


@dataclass(frozen=True)
class Summary:
    """One arm on one mixture from one base policy, over its seeds.

    Attributes:
        reached: seeds that got to uniform's final accuracy; the others enter the ratios as lower bounds.
        rollouts, steps, cpu_seconds, half_generation: ratios to uniform with the same seed, see ``ratios.Cost``.
        accuracy: final, mean of the last three evaluations.
        accuracy_gain: that minus uniform's with the same seed.
        informative_share, coverage: means over seeds, see ``ArmRun``.
        live: means of the service's metrics at the end, by name; None where the service had none.
    """

    setting: str
    base: str
    arm: str
    seeds: int
    reached: int
    rollouts: Interval
    steps: Interval
    cpu_seconds: Interval
    half_generation: Interval
    accuracy: Interval
    accuracy_gain: Interval
    informative_share: float
    coverage: float
    live: dict[str, float | None]


def summaries(records: Sequence[Record]) -> list[Summary]:
    """One per arm, mixture and base policy, in order of first appearance; seeds without uniform are left out."""
    cells: dict[tuple[str, str, str], list[_Pair]] = {}
    for pair in _pairs(records):
        cells.setdefault((pair.record.setting, pair.record.base, pair.record.run.arm), []).append(pair)
    return [_summary(*cell, pairs) for cell, pairs in cells.items()]


def overall(records: Sequence[Record]) -> list[Summary]:
    """One per arm over all mixtures and base policies, every seed of each a pair of its own."""
    arms: dict[str, list[_Pair]] = {}
    for pair in _pairs(records):
        arms.setdefault(pair.record.run.arm, []).append(pair)
    return [_summary(ALL, "", arm, pairs) for arm, pairs in arms.items()]


@dataclass(frozen=True)
class _Pair:
    record: Record
    control: ArmRun


def _pairs(records: Sequence[Record]) -> list[_Pair]:
    controls = {
        (record.setting, record.base, record.run.seed): record.run
        for record in records
        if record.run.arm == UNIFORM.name
    }
    keys = [(record.setting, record.base, record.run.seed) for record in records]
    return [_Pair(record, controls[key]) for record, key in zip(records, keys, strict=True) if key in controls]


def _summary(setting: str, base: str, arm: str, pairs: Sequence[_Pair]) -> Summary:
    runs = [pair.record.run for pair in pairs]
    costs = [cost(pair.record.run, pair.control) for pair in pairs]
    gains = [pair.record.run.final_accuracy - pair.control.final_accuracy for pair in pairs]
    return Summary(
        setting=setting,
        base=base,
        arm=arm,
        seeds=len(costs),
        reached=sum(each.reached for each in costs),
        rollouts=_over(costs, "rollouts"),
        steps=_over(costs, "steps"),
        cpu_seconds=_over(costs, "cpu_seconds"),
        half_generation=_over(costs, "half_generation"),
        accuracy=interval([run.final_accuracy for run in runs]),
        accuracy_gain=interval(gains),
        informative_share=float(np.mean([run.informative_share for run in runs])),
        coverage=float(np.mean([run.coverage for run in runs])),
        live={name: mean_or_none([pair.record.live.get(name) for pair in pairs]) for name in LIVE},
    )


@dataclass(frozen=True)
class Foretelling:
    """How well a live metric ranks arms by the rollouts they will take: Spearman's correlation over the arms of each
    mixture and base policy, its mean, smallest and largest. -1 = the higher the metric, the fewer the rollouts.
    """

    metric: str
    cells: int
    mean: float
    smallest: float
    largest: float


def foretelling(found: Sequence[Summary]) -> list[Foretelling]:
    """By live metric, the one that tells most first; oracles, whose choices the service does not see, are left out."""
    rows = []
    for name in LIVE:
        correlations = []
        for cell in dict.fromkeys((each.setting, each.base) for each in found):
            pairs = [
                (value, each.rollouts.mean)
                for each in found
                if (each.setting, each.base) == cell and not each.arm.startswith("oracle")
                if (value := each.live[name]) is not None
            ]
            if len(pairs) >= _FEWEST_ARMS and len({value for value, _ in pairs}) > 1:
                correlations.append(float(spearmanr(*zip(*pairs, strict=True)).statistic))
        if correlations:
            rows.append(
                Foretelling(name, len(correlations), float(np.mean(correlations)), min(correlations), max(correlations))
            )
    return sorted(rows, key=lambda row: -abs(row.mean))


def _over(costs: Sequence[Cost], name: str) -> Interval:
    return interval([getattr(each, name) for each in costs])
