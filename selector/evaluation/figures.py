"""How good predictions of pass rates are, against measured ones. A figure that is undefined is None; none is ever NaN.

p is the predicted pass rate of a question, m the measured one, from n trials. Questions carry equal weight except in
the log loss, which is per trial.

- Coverage. With the prediction's Beta posterior, the successes of n trials are beta-binomial. Coverage is the share of
  questions whose successes lie in the central 90 % of that distribution, binomial noise included. Where an interval's
  end falls into the probability of one count, the count is inside in proportion, so that honest intervals cover 90 %
  also for n = 1. Beyond ``_MOST_TRIALS`` trials the same rate of so many is judged: the noise no longer matters.
- Calibration error: as in ``selector.quality``, over ten bins of equal width in p, the mean over questions of
  |mean p - mean m| of the question's bin. Few questions make it positive by chance.
- Calibration slope: least squares of m on p. 1 = calibrated, below 1 = predictions too spread out. None where p hardly
  differs from question to question: any slope would do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln
from scipy.stats import rankdata

from selector.quality import CALIBRATION_BINS

COVERAGE = 0.9
_FEWEST = 3
_VARIATION = 1e-9
_SMALLEST_DEVIATION = 0.005
_SMALLEST_RATE = 1e-6
_MOST_TRIALS = 256


@dataclass(frozen=True)
class Measured:
    """What was measured of M questions: successes and trials, each (M,) float64, trials > 0."""

    successes: np.ndarray
    trials: np.ndarray

    @property
    def rate(self) -> np.ndarray:
        """(M,) measured pass rates."""
        return self.successes / self.trials

    def take(self, at: np.ndarray) -> Measured:
        """Of some questions."""
        return Measured(self.successes[at], self.trials[at])


@dataclass(frozen=True)
class Accuracy:
    """Figures of one set of predictions; see the module docstring."""

    questions: int
    pearson: float | None
    spearman: float | None
    mean_absolute_error: float | None
    log_loss: float | None
    calibration_slope: float | None
    calibration_error: float | None
    coverage: float | None


def accuracy(predicted: np.ndarray, measured: Measured, beta: tuple[np.ndarray, np.ndarray] | None) -> Accuracy:
    """All figures.

    Args:
        predicted: (M,) pass rates.
        beta: parameters (a, b), each (M,), of the posterior; None = the prediction has none.
    """
    if not len(predicted):
        return Accuracy(0, None, None, None, None, None, None, None)
    rate = measured.rate
    return Accuracy(
        questions=len(predicted),
        pearson=correlation(predicted, rate),
        spearman=correlation(rankdata(predicted), rankdata(rate)),
        mean_absolute_error=float(np.abs(predicted - rate).mean()),
        log_loss=log_loss(predicted, measured),
        calibration_slope=slope(predicted, rate),
        calibration_error=calibration_error(predicted, rate),
        coverage=None if beta is None else coverage(*beta, measured),
    )


def correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    """Pearson's; None with fewer than three pairs or without variation."""
    if len(left) < _FEWEST or np.ptp(left) <= _VARIATION or np.ptp(right) <= _VARIATION:
        return None
    left, right = left - left.mean(), right - right.mean()
    return float(np.clip((left @ right) / np.sqrt((left @ left) * (right @ right)), -1.0, 1.0))


def slope(predicted: np.ndarray, rate: np.ndarray) -> float | None:
    """Least-squares slope of the measured on the predicted rate."""
    if len(predicted) < _FEWEST or predicted.std() < _SMALLEST_DEVIATION:
        return None
    centred = predicted - predicted.mean()
    return float((centred @ rate) / (centred @ centred))


def log_loss(predicted: np.ndarray, measured: Measured) -> float | None:
    """Per trial, in nats; None without a trial."""
    losses = trial_losses(predicted, measured)
    return float(losses.sum() / measured.trials.sum()) if len(losses) else None


def trial_losses(predicted: np.ndarray, measured: Measured) -> np.ndarray:
    """(M,) summed over each question's trials."""
    p = np.clip(predicted, _SMALLEST_RATE, 1.0 - _SMALLEST_RATE)
    failures = measured.trials - measured.successes
    losses: np.ndarray = -(measured.successes * np.log(p) + failures * np.log1p(-p))
    return losses


def calibration_error(predicted: np.ndarray, rate: np.ndarray) -> float | None:
    """Expected calibration error."""
    if not len(predicted):
        return None
    bins = np.minimum((predicted * CALIBRATION_BINS + _VARIATION).astype(np.int64), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=predicted - rate, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(predicted))


def coverage(a: np.ndarray, b: np.ndarray, measured: Measured) -> float | None:
    """Share of questions inside their central 90 % interval."""
    if not len(a):
        return None
    trials = np.minimum(np.round(measured.trials), _MOST_TRIALS).astype(np.int64)
    successes = np.clip(np.round(measured.rate * trials), 0, trials).astype(np.int64)
    inside = np.empty(len(a))
    for n in np.unique(trials):
        rows = np.flatnonzero(trials == n)
        inside[rows] = _inside(a[rows], b[rows], int(n), successes[rows])
    return float(inside.mean())


def _inside(a: np.ndarray, b: np.ndarray, n: int, successes: np.ndarray) -> np.ndarray:
    """(M,) share of the probability of each count that lies in the central interval of its beta-binomial."""
    k = np.arange(n + 1)
    choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    probability = np.exp(choose + betaln(a[:, None] + k, b[:, None] + n - k) - betaln(a, b)[:, None])
    probability /= probability.sum(axis=1, keepdims=True)
    rows = np.arange(len(a))
    own = probability[rows, successes]
    upper = probability.cumsum(axis=1)[rows, successes]
    lower = upper - own
    tail = (1.0 - COVERAGE) / 2.0
    overlap = np.minimum(upper, 1.0 - tail) - np.maximum(lower, tail)
    return np.clip(overlap, 0.0, None) / np.maximum(own, 1e-300)
