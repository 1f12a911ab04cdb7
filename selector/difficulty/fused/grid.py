"""Choosing how fast own evidence is forgotten and how much the population's prediction weighs, by prequential loss.

Every outcome is predicted before it is folded, under every combination of ageing s, forgetting rate c and concentration
kappa; the combination with the smallest discounted beta-binomial log loss is used. Prompts without own evidence have
their own choice of kappa, since for them s and c play no part. Both start from a weak preference, so that a few
outcomes do not decide. All combinations are tried on evidence that was aged, between the visits it comes from, with
the s of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from selector.difficulty.fused.forecast import Forecast, posterior
from selector.difficulty.fused.newton import same_shape
from selector.difficulty.fused.own_evidence import FORGETTING, left_after

CONCENTRATIONS = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""Grid of kappa, the number of trials the population's prediction is worth."""

AGEING = np.geomspace(0.0005, 0.128, 5)
"""Grid of s, the variance growth per step."""

_PREFERRED_AGEING = 0.002
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


class Warm(NamedTuple):
    """What is used for prompts with own evidence: s, the index of c in ``FORGETTING``, and kappa."""

    ageing: float
    rate: int
    kappa: float


class PrequentialGrid:
    """Discounted losses: (S, C, K) over s, c and kappa for warm prompts, (K,) for cold ones."""

    def __init__(self) -> None:
        concentration = np.log(CONCENTRATIONS)
        forgetting = np.log(FORGETTING / _PREFERRED_FORGETTING)
        warm = (concentration - np.log(_PREFERRED_WARM)) ** 2
        ageing = np.log(AGEING / _PREFERRED_AGEING)
        self._warm_preference = _PREFERENCE * (
            0.25 * ageing[:, None, None] ** 2 + 0.25 * forgetting[:, None] ** 2 + warm
        )
        self._cold_preference = _PREFERENCE * (concentration - np.log(_PREFERRED_COLD)) ** 2
        self._warm = np.zeros((len(AGEING), len(FORGETTING), len(CONCENTRATIONS)))
        self._cold = np.zeros(len(CONCENTRATIONS))

    @property
    def warm(self) -> Warm:
        """The choice for prompts with own evidence."""
        ageing, rate, kappa = np.unravel_index(np.argmin(self._warm + self._warm_preference), self._warm.shape)
        return Warm(float(AGEING[ageing]), int(rate), float(CONCENTRATIONS[kappa]))

    @property
    def cold(self) -> float:
        """Kappa for prompts without own evidence."""
        return float(CONCENTRATIONS[np.argmin(self._cold + self._cold_preference)])

    def learn(self, kept: float, forecast: Forecast) -> None:
        """Discount by ``kept`` and add one report's losses."""
        warm, cold = forecast.take(forecast.warm), forecast.take(~forecast.warm)
        outcome = (warm.batch.successes[:, None, None], warm.batch.trials[:, None, None])
        for ageing, losses in zip(AGEING, self._warm, strict=True):
            left = left_after(warm.trials, warm.absence[:, None], ageing)
            cells = posterior(
                warm.population[:, None, None],
                (left * warm.successes)[:, :, None],
                (left * warm.trials)[:, :, None],
                CONCENTRATIONS,
            )
            mean = cells.moved_mean(warm.shift[:, None, None])
            losses *= kept
            losses += beta_binomial_loss(mean, cells.concentration, *outcome).sum(axis=0)
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
