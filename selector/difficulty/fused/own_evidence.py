"""Own evidence of each prompt, forgotten slowly, in parallel for a grid of forgetting rates.

A new visit first forgets, then adds: with n trials of evidence, ``n -> n / (1 + c n)`` and the successes likewise, as
if the true rate's variance had grown by a fixed amount since the last visit. A sparsely visited prompt keeps nearly
all it has, a constantly visited one settles near ``sqrt(trials per visit / c)`` trials. Time ages it alike: a prompt
that was not visited for k steps is left ``n / (1 + s k n)`` trials (``left_after``).

Evidence is held as of the prompt's newest visit: when a new visit comes, the older evidence's mean is first moved by
the population's drift since (in logit space). A report of an earlier step than the newest visit enters as if it alone
had come before that visit, aged by the steps between and then forgotten once, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import expit, logit

from selector.difficulty.growing import GrowingArray
from selector.difficulty.twin_evidence import Evidence, pooled

FORGETTING = np.geomspace(0.002, 0.3, 6)
"""Grid of c, the variance growth per visit."""


def left_after(trials: np.ndarray, steps: np.ndarray, ageing: float | np.ndarray) -> np.ndarray:
    """The share of these trials that is left after so many steps, for a variance growth of ``ageing`` per step."""
    return 1.0 / (1.0 + ageing * steps * trials)


class OwnEvidence:
    """Discounted successes and trials of each prompt under each forgetting rate of ``FORGETTING`` (C of them)."""

    def __init__(self) -> None:
        self._successes = GrowingArray(0.0, np.float64, (len(FORGETTING),))
        self._trials = GrowingArray(0.0, np.float64, (len(FORGETTING),))
        self._last_step = GrowingArray(-1, np.int64)

    def last_step(self, count: int) -> np.ndarray:
        """(count,) int64 newest visit of each of the first ``count`` prompts, -1 = never visited."""
        return self._last_step.rows(count)

    def under(self, rate: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Successes and trials, each (count,), under one forgetting rate, as of each prompt's newest visit."""
        return self._successes.rows(count)[:, rate], self._trials.rows(count)[:, rate]

    def shared(
        self,
        rate: int,
        ageing: float,
        first: np.ndarray | None,
        count: int,
        drift: Callable[[np.ndarray], np.ndarray],
    ) -> Evidence:
        """Evidence of the first ``count`` prompts under one forgetting rate, that of twins put together.

        Args:
            ageing: the variance growth per step between the visits of twins. What is returned is as of the newest
                visit; absence since then is the caller's.
            first: (count,) index of each prompt's first twin; None = there are no twins.
            drift: the logit shift over a number of steps.
        """

        def aged(successes: np.ndarray, trials: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            left = left_after(trials, steps, ageing)
            kept = left / (1.0 + FORGETTING[rate] * left * trials)
            return kept * _moved(successes, trials, drift(steps)), kept * trials

        return pooled(Evidence(*self.under(rate, count), self.last_step(count)), first, aged)

    def reserve(self, rows: int) -> None:
        """Hold at least this many prompts."""
        for column in (self._successes, self._trials, self._last_step):
            column.reserve(rows)

    def of(self, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Successes (M, C), trials (M, C) and newest visit (M,) of these prompts, which must be held."""
        return self._successes.data[prompt], self._trials.data[prompt], self._last_step.data[prompt]

    def fold(
        self,
        step: int,
        prompt: np.ndarray,
        successes: np.ndarray,
        trials: np.ndarray,
        drift: np.ndarray,
        ageing: float,
    ) -> None:
        """Add a report of M held prompts; ``drift`` (M,) is the logit shift since each one's last visit."""
        held_successes, held_trials, last_step = self.of(prompt)
        between = np.abs(step - last_step)[:, None]
        new = (step > last_step)[:, None]
        late = (step < last_step)[:, None]
        # Moved before it is aged: of little evidence the half success and failure would be all there is to move.
        left = left_after(held_trials, between, ageing)
        moved = np.where(new, left * _moved(held_successes, held_trials, drift[:, None]), held_successes)
        held = np.where(new, left * held_trials, held_trials)
        kept = np.where(new, 1.0 / (1.0 + FORGETTING * held), 1.0)
        arriving = trials[:, None]
        left = left_after(arriving, between, ageing)
        entering = np.where(late, left / (1.0 + FORGETTING * left * arriving), 1.0)
        self._successes.data[prompt] = kept * moved + entering * successes[:, None]
        self._trials.data[prompt] = kept * held + entering * arriving
        self._last_step.data[prompt] = np.maximum(last_step, step)

    def forget(self, prompts: np.ndarray) -> None:
        """Drop all evidence of these prompts."""
        for column in (self._successes, self._trials, self._last_step):
            column.reset(prompts)

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {
            "successes": self._successes.data,
            "trials": self._trials.data,
            "last_step": self._last_step.data,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._successes.load(state["successes"])
        self._trials.load(state["trials"])
        self._last_step.load(state["last_step"])

    def copy(self) -> OwnEvidence:
        other = OwnEvidence()
        other._successes = self._successes.copy()
        other._trials = self._trials.copy()
        other._last_step = self._last_step.copy()
        return other


def _moved(successes: np.ndarray, trials: np.ndarray, drift: np.ndarray) -> np.ndarray:
    """Successes after a shift of their rate by ``drift`` in logit space; half a success and failure keep it finite."""
    rate = (successes + 0.5) / (trials + 1.0)
    shifted = expit(logit(rate) + drift)
    return np.clip(successes + (trials + 1.0) * (shifted - rate), 0.0, trials)
