"""Several ways of doing the same, in turns: round after round, each time in another order."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bench.performance.figures import Figure


@dataclass
class Times:
    """Seconds of each round.

    Attributes:
        wall: of the clock.
        cpu: of this process, all threads.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def in_turns(ways: Mapping[str, Callable[[int], object]], rounds: int, warm_up: int = 1) -> dict[str, Times]:
    """Times of each way.

    Args:
        ways: called with the number of the round, so that they can do other work each time; those of one round get the
            same number. Rounds of the warm-up are numbered from 0 too.
        warm_up: rounds before, whose times are dropped.
    """
    found = {name: Times() for name in ways}
    random = np.random.default_rng(0)
    names = list(ways)
    for number in range(warm_up + rounds):
        random.shuffle(names)
        for name in names:
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name](number)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number >= warm_up:
                found[name].wall.append(wall)
                found[name].cpu.append(cpu)
    return found


def compared(
    name: str,
    baseline: list[float],
    ours: list[float],
    against: str,
    *,
    work: float = 1.0,
    unit: str = "s",
    rate: bool = False,
    must: float | None = None,
    **detail: object,
) -> Figure:
    """A figure from the seconds of rounds run in turns.

    Args:
        work: what a round does, in the unit's own measure: seconds are divided by it, or it by the seconds.
        rate: whether the figure is work per second.
    """
    ratios = [theirs / mine for theirs, mine in zip(baseline, ours, strict=True)]

    def value(seconds: list[float]) -> float:
        middle = statistics.median(seconds)
        return work / middle if rate else middle / work

    return Figure(
        name,
        value(baseline),
        value(ours),
        statistics.median(ratios),
        unit,
        against,
        (min(ratios), max(ratios)),
        must,
        {"rounds": len(ours), **detail},
    )
