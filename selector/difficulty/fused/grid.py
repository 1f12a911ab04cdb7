"""Choosing how fast own evidence is forgotten and how much the population's prediction weighs, by prequential loss.

Every outcome is predicted before it is folded, under every combination of forgetting rate c and concentration kappa;
the combination with the smallest discounted beta-binomial log loss is used. Prompts without own evidence have their
own choice of kappa, since for them c plays no part. Both start from a weak preference, so that a few outcomes do not
decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import gammaln

from selector.difficulty.fused.forecast import Forecast, posterior
from selector.difficulty.fused.newton import same_shape
from selector.difficulty.fused.own_evidence import FORGETTING

CONCENTRATIONS = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""Grid of kappa, the number of trials the population's prediction is worth."""

_PREFERRED_FORGETTING = 0.005
_PREFERRED_WARM = 1.0
_PREFERRED_COLD = 2.0
# Nats per squared log distance from the preferred value.
_PREFERENCE = 1.0


def beta_binomial_loss(
    mean: np.ndarray, concentration: np.ndarray, successes: np.ndarray, trials: np.ndarray
) -> np.ndarray:
    """-log of the beta-binomial likelihood, without its binomial coefficient; fractional successes are allowed."""
    a, b = mean * concentration, (1.0 - mean) * concentration
    failures = trials - successes
    return (
        gammaln(concentration + trials)
        - gammaln(concentration)
        - (gammaln(a + successes) - gammaln(a))
        - (gammaln(b + failures) - gammaln(b))
    )


class PrequentialGrid:
    """Discounted losses: (C, K) over forgetting rates and concentrations for warm prompts, (K,) for cold ones."""

    def __init__(self) -> None:
        concentration = np.log(CONCENTRATIONS)
        forgetting = np.log(FORGETTING / _PREFERRED_FORGETTING)
        warm = (concentration - np.log(_PREFERRED_WARM)) ** 2
        self._warm_preference = _PREFERENCE * (0.25 * forgetting[:, None] ** 2 + warm)
        self._cold_preference = _PREFERENCE * (concentration - np.log(_PREFERRED_COLD)) ** 2
        self._warm = np.zeros((len(FORGETTING), len(CONCENTRATIONS)))
        self._cold = np.zeros(len(CONCENTRATIONS))

    @property
    def warm(self) -> tuple[int, float]:
        """Index into ``FORGETTING``, and kappa, for prompts with own evidence."""
        rate, concentration = np.unravel_index(np.argmin(self._warm + self._warm_preference), self._warm.shape)
        return int(rate), float(CONCENTRATIONS[concentration])

    @property
    def cold(self) -> float:
        """Kappa for prompts without own evidence."""
        return float(CONCENTRATIONS[np.argmin(self._cold + self._cold_preference)])

    def learn(self, kept: float, forecast: Forecast) -> None:
        """Discount by ``kept`` and add one report's losses."""
        warm, cold = forecast.take(forecast.warm), forecast.take(~forecast.warm)
        cells = posterior(
            warm.population[:, None, None], warm.successes[:, :, None], warm.trials[:, :, None], CONCENTRATIONS
        )
        mean = cells.moved_mean(warm.shift[:, None, None])
        outcome = (warm.batch.successes[:, None, None], warm.batch.trials[:, None, None])
        self._warm = kept * self._warm + beta_binomial_loss(mean, cells.concentration, *outcome).sum(axis=0)
        outcome = (cold.batch.successes[:, None], cold.batch.trials[:, None])
        loss = beta_binomial_loss(cold.population[:, None], CONCENTRATIONS, *outcome)
        self._cold = kept * self._cold + loss.sum(axis=0)

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {"warm": self._warm, "cold": self._cold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._warm = same_shape(state["warm"], self._warm)
        self._cold = same_shape(state["cold"], self._cold)

    def copy(self) -> PrequentialGrid:
        other = PrequentialGrid()
        other._warm = self._warm.copy()
        other._cold = self._cold.copy()
        return other
