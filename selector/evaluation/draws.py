"""Random references and what a trainer would have seen of them.

Draw d of seed s is fixed beforehand: a permutation of the questions by a generator seeded with (s, d). Its first K are
the references, so that more references contain the fewer; the others are what predictions are judged on.

A reference is rolled out G times. Where more trials were measured, G of them are drawn without replacement; where
fewer, all of them are what was seen. The references are reported in steps, as an untrained policy's first batches are:
``REPORT_GROUPS`` to a report, more where that would make more than ``MOST_REPORTS`` reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

REPORT_GROUPS = 64
MOST_REPORTS = 16


@dataclass(frozen=True)
class Draw:
    """K references and the M other questions.

    Attributes:
        number: of the draw, from 0.
        reference: (K,) int32 questions, in the order they are reported.
        trials, successes: (K,) float64 what was seen of each.
        unseen: (M,) int64 questions that are no references.
        reports: slices of the references, one per step.
    """

    number: int
    reference: np.ndarray
    trials: np.ndarray
    successes: np.ndarray
    unseen: np.ndarray
    reports: tuple[slice, ...]

    @property
    def rate(self) -> np.ndarray:
        """(K,) observed pass rate of the references."""
        return self.successes / self.trials


def draw_references(
    rate: np.ndarray, trials: np.ndarray, references: int, group_size: int, seed: int, number: int
) -> Draw:
    """Draw ``number`` of ``seed``.

    Args:
        rate: (N,) measured pass rate of every question.
        trials: (N,) trials behind it, > 0.
        references: K, less than N.
        group_size: G, rollouts per reference.
    """
    rng = np.random.default_rng([seed, number])
    order = rng.permutation(len(rate))
    chosen, rest = order[:references], np.sort(order[references:])
    measured = counts(rate, trials)[chosen]
    plenty = trials[chosen] > group_size
    # Only whole successes can be drawn without replacement; partial credit keeps its rate.
    whole = np.round(measured).astype(np.int64)
    drawn = rng.hypergeometric(
        whole, trials[chosen].astype(np.int64) - whole, np.minimum(trials[chosen], group_size).astype(np.int64)
    )
    groups = max(REPORT_GROUPS, -(-references // MOST_REPORTS))
    return Draw(
        number=number,
        reference=chosen.astype(np.int32),
        trials=np.where(plenty, float(group_size), trials[chosen]),
        successes=np.where(plenty, drawn.astype(np.float64), measured),
        unseen=rest,
        reports=tuple(slice(start, min(start + groups, references)) for start in range(0, references, groups)),
    )


def counts(rate: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Successes behind rates, made whole where only rounding keeps them from it."""
    successes = rate * trials
    whole = np.round(successes)
    return np.where(np.abs(successes - whole) <= 0.02, whole, successes)
