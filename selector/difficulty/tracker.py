"""TRACKER: one Beta posterior per prompt from the prompt's own outcomes, older visits decayed.

In the spirit of MoPPS (arXiv 2507.04632): uniform prior Beta(1, 1), and a fixed share of the evidence kept from one
visit of a prompt to the next, so that after visits 1..v with s_j successes in n_j trials the posterior is
``Beta(1 + sum_j decay^(v-j) s_j, 1 + sum_j decay^(v-j) (n_j - s_j))``. It is blind to prompts never tried.

Twins have one posterior, from what all of them were tried for (``twin_evidence``).

A report of a step older than the prompt's newest visit enters with weight ``decay`` and decays nothing, as if it had
been part of the visit before the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from selector.difficulty.estimate import Basis, Estimate, OutcomeBatch, PoolFeatures
from selector.difficulty.growing import GrowingArray
from selector.difficulty.twin_evidence import Evidence, pooled

_PRIOR = 1.0


class TrackerEstimator:
    """The decayed Beta posterior of each prompt; ``decay`` in (0, 1] is the share kept per further visit."""

    def __init__(self, decay: float) -> None:
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay must lie in (0, 1], got {decay}")
        self._decay = decay
        self._step = -1
        self._successes = GrowingArray(0.0, np.float64)
        self._trials = GrowingArray(0.0, np.float64)
        self._last_step = GrowingArray(-1, np.int64)

    def observe(self, batch: OutcomeBatch) -> None:
        """Fold one report: decay once per new visit, then add."""
        if not len(batch.prompt):
            return
        prompt = batch.prompt
        rows = int(prompt.max()) + 1
        for column in (self._successes, self._trials, self._last_step):
            column.reserve(rows)
        last_step = self._last_step.data[prompt]
        kept = np.where(batch.step > last_step, self._decay, 1.0)
        entering = np.where(batch.step < last_step, self._decay, 1.0)
        successes, trials = self._successes.data, self._trials.data
        successes[prompt] = kept * successes[prompt] + entering * batch.successes
        trials[prompt] = kept * trials[prompt] + entering * batch.trials
        self._last_step.data[prompt] = np.maximum(last_step, batch.step)
        self._step = max(self._step, batch.step)

    def forget(self, prompts: np.ndarray) -> None:
        """Return these prompts to the prior."""
        for column in (self._successes, self._trials, self._last_step):
            column.reset(prompts)

    def estimate(self, features: PoolFeatures, step: int) -> Estimate:
        """Posterior mean and standard deviation of every prompt; ``step`` does not matter."""
        size = features.size
        own = Evidence(self._successes.rows(size), self._trials.rows(size), self._last_step.rows(size))
        evidence = pooled(own, features.first_twin, lambda held, tried, _: (self._decay * held, self._decay * tried))
        trials = evidence.trials
        concentration = 2.0 * _PRIOR + trials
        rate = (_PRIOR + evidence.successes) / concentration
        return Estimate(
            step=self._step,
            difficulty=1.0 - rate,
            standard_error=np.sqrt(rate * (1.0 - rate) / (concentration + 1.0)),
            own_weight=trials / concentration,
            basis=np.where(trials > 0.0, Basis.OWN, Basis.NONE).astype(np.uint8),
            population=np.full(size, 0.5),
        )

    def references(self, features: PoolFeatures, step: int, prompt: int, limit: int) -> list[tuple[int, float, float]]:
        """Always empty: no other prompt takes part."""
        return []

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "successes": self._successes.data,
            "trials": self._trials.data,
            "last_step": self._last_step.data,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]
        self._successes.load(state["successes"])
        self._trials.load(state["trials"])
        self._last_step.load(state["last_step"])

    def copy(self) -> TrackerEstimator:
        other = TrackerEstimator(self._decay)
        other._step = self._step
        other._successes = self._successes.copy()
        other._trials = self._trials.copy()
        other._last_step = self._last_step.copy()
        return other
