"""What is known of a report's prompts just before its outcomes are seen: the common ground of prequential learning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from selector.difficulty.estimate import OutcomeBatch
from selector.difficulty.fused.own_evidence import left_after


@dataclass(frozen=True)
class Forecast:
    """One report of M groups and the state it is predicted from; C forgetting rates.

    Attributes:
        batch: the report.
        population: (M,) the population model's rates, inside (0, 1).
        successes: (M, C) own evidence as of the last visit.
        trials: (M, C) own evidence as of the last visit.
        warm: (M,) bool, prompts visited before, possibly at this very step.
        absence: (M,) steps since the last visit, 0 for cold prompts and late reports.
        shift: (M,) expected movement in logit over the absence.
    """

    batch: OutcomeBatch
    population: np.ndarray
    successes: np.ndarray
    trials: np.ndarray
    warm: np.ndarray
    absence: np.ndarray
    shift: np.ndarray

    def take(self, kept: np.ndarray) -> Forecast:
        """The groups where the (M,) bool mask is True."""
        batch = OutcomeBatch(
            step=self.batch.step,
            reference=self.batch.reference,
            prompt=self.batch.prompt[kept],
            trials=self.batch.trials[kept],
            successes=self.batch.successes[kept],
            uniform=self.batch.uniform[kept],
            population=self.batch.population[kept],
        )
        columns = (self.population, self.successes, self.trials, self.warm, self.absence, self.shift)
        return Forecast(batch, *(column[kept] for column in columns))

    def posterior(self, ageing: float, rate: int, kappa: float) -> Posterior:
        """Under one ageing, forgetting rate (index) and concentration."""
        successes, trials = self.successes[:, rate], self.trials[:, rate]
        left = left_after(trials, self.absence, ageing)
        return posterior(self.population, left * successes, left * trials, kappa)


@dataclass(frozen=True)
class Posterior:
    """Beta posteriors: mean before drift, concentration, and the share of own evidence, of one shape."""

    mean: np.ndarray
    concentration: np.ndarray
    own_share: np.ndarray

    def moved(self, shift: np.ndarray) -> np.ndarray:
        """Logit of the mean after drift; the population's part is up to date, so only the own share moves."""
        return logit(self.mean) + shift * self.own_share

    def moved_mean(self, shift: np.ndarray) -> np.ndarray:
        """Mean after drift."""
        return expit(self.moved(shift))


def posterior(
    population: np.ndarray, successes: np.ndarray, trials: np.ndarray, kappa: float | np.ndarray
) -> Posterior:
    """``Beta(kappa m + a, kappa (1 - m) + b)`` for arguments that broadcast."""
    concentration = kappa + trials
    return Posterior((kappa * population + successes) / concentration, concentration, trials / concentration)


def effective_share(concentration: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """What share of a group's trials counts as independent, its rate having the posterior's spread."""
    return 1.0 / (1.0 + (trials - 1.0).clip(0.0) / (concentration + 1.0))
