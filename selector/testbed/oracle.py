"""Choosing with exact difficulties: the ceiling for what any prediction can gain.

It is the DEFAULT preset's own rule (temperature, uniform share, cool-down) with a score of choice, run in the trainer
on the true difficulty of every prompt. The service never sees these selections, only the outcomes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from selector.config import resolve
from selector.difficulty.estimate import Basis, Estimate
from selector.selection.choose import choose_train
from selector.selection.part import Candidates

# Nothing is unknown, but a posterior needs a width.
_STANDARD_ERROR = 1e-4


class OracleSelector:
    """Remembers when each of N prompts was last chosen, for the cool-down."""

    def __init__(self, prompts: int, seed: int, score: str = "LEARNABLE") -> None:
        self._config = replace(resolve({"score": score}), seed=seed)
        self._last_selected = np.full(prompts, -1, dtype=np.int64)

    def choose(self, difficulty: np.ndarray, count: int, step: int) -> np.ndarray:
        """Positions (count,) of the prompts to roll out at ``step``, given true difficulties (N,)."""
        last = self._last_selected
        size = len(difficulty)
        estimate = Estimate(
            step=step,
            difficulty=difficulty,
            standard_error=np.full(size, _STANDARD_ERROR),
            own_weight=np.ones(size),
            basis=np.full(size, Basis.OWN, dtype=np.uint8),
            population=1.0 - difficulty,
        )
        cooling = (last >= 0) & (step - last <= self._config.cool_down_steps)
        candidates = Candidates(np.ones(size, dtype=bool), cooling, last)
        chosen = choose_train(self._config, estimate, candidates, count, step, 0, None).prompt
        self._last_selected[chosen] = step
        return chosen
