"""Priors that were imported after registration; they stand over the ones that prompts were registered with.

They are part of what a run's log is folded into: a rewind takes back those that belong to a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from selector.difficulty.estimate import PoolFeatures
from selector.pool import extended

AS_REGISTERED = -1
"""Instead of a number of trials: the prior that the prompt was registered with holds."""


class ImportedPriors:
    """The imported priors of a run's prompts.

    Attributes:
        version: grows with every change.
        rate: (N,) float64 success rate under another model; of no meaning without trials.
        trials: (N,) int32 behind it, 0 = the prompt has no prior, AS_REGISTERED.
    """

    def __init__(self) -> None:
        self.version = 0
        self.rate = np.zeros(0)
        self.trials = np.zeros(0, dtype=np.int32)

    def grow(self, count: int) -> None:
        """Make room for more prompts."""
        self.rate = extended(self.rate, count, 0.0)
        self.trials = extended(self.trials, count, AS_REGISTERED)

    def put(self, prompt: np.ndarray, rate: np.ndarray, trials: np.ndarray) -> None:
        """Set the priors of these prompts."""
        self.rate[prompt] = rate
        self.trials[prompt] = trials
        self.version += 1

    def forget(self, prompt: np.ndarray) -> None:
        """The priors that these prompts were registered with hold again."""
        self.put(prompt, np.zeros(len(prompt)), np.full(len(prompt), AS_REGISTERED))

    def over(self, features: PoolFeatures) -> PoolFeatures:
        """The pool's columns with the imported priors in them."""
        imported = self.trials != AS_REGISTERED
        if not imported.any():
            return features
        rate = np.where(self.trials > 0, self.rate, np.nan)
        return replace(
            features,
            prior_rate=np.where(imported, rate, features.prior_rate),
            prior_trials=np.where(imported, self.trials.astype(np.float64), features.prior_trials),
        )

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {"version": self.version, "rate": self.rate, "trials": self.trials}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.version = state["version"]
        self.rate, self.trials = state["rate"].copy(), state["trials"].copy()
