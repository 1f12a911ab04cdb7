"""Own evidence of twins put together: each prompt of a group gets what all of them were tried for.

An estimator keeps evidence per prompt, and pools it only when it estimates: what was folded depends on no twins, so a
prompt that gets or loses a twin has what it would have had. The prompts of a group are added in order of their newest
visits; what is held by then has become older, as if it had been the visits before. Visits of two prompts that took
turns are thereby taken to have come one prompt after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Aged = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Evidence:
    """Successes, trials and step of the newest visit (-1 = none) of every prompt, each (N,)."""

    successes: np.ndarray
    trials: np.ndarray
    last_step: np.ndarray


def pooled(own: Evidence, first: np.ndarray | None, aged: Aged) -> Evidence:
    """Every prompt with its group's evidence.

    Args:
        own: of each prompt alone.
        first: (N,) int64 index of each prompt's first twin; None = there are no twins.
        aged: (successes, trials, steps), each (m,) -> the successes and trials that are left of them after a further
            visit so many steps later.
    """
    if first is None:
        return own
    grouped = np.bincount(first, minlength=len(first))[first] > 1
    visited = np.flatnonzero(grouped & (own.last_step >= 0))
    visited = visited[np.lexsort((visited, own.last_step[visited], first[visited]))]
    group = first[visited]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
    rank = np.arange(len(group)) - np.repeat(starts, np.diff(np.r_[starts, len(group)]))
    successes, trials, last_step = np.zeros(len(first)), np.zeros(len(first)), np.full(len(first), -1)
    for turn in range(int(rank.max(initial=-1)) + 1):
        prompt = visited[rank == turn]
        at = first[prompt]
        steps = np.where(last_step[at] >= 0, own.last_step[prompt] - last_step[at], 0)
        left = aged(successes[at], trials[at], steps)
        older = steps > 0
        successes[at] = np.where(older, left[0], successes[at]) + own.successes[prompt]
        trials[at] = np.where(older, left[1], trials[at]) + own.trials[prompt]
        last_step[at] = own.last_step[prompt]
    return Evidence(
        np.where(grouped, successes[first], own.successes),
        np.where(grouped, trials[first], own.trials),
        np.where(grouped, last_step[first], own.last_step),
    )
