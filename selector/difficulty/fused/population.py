"""The population model: success rates of prompts from what is known about them besides their own outcomes.

A logistic ridge fitted from scratch by a fixed number of Newton steps, so that it is a pure function of its rows. One
row per prompt with own evidence, at most 8192, the most recently visited. The strength of the ridge, of ``PENALTIES``,
and whether embeddings, or texts at all, have a say are what predicts best by approximate leave-one-out log likelihood
(one Newton step per row, in closed form): dozens of columns that tell nothing, or nothing that a prior does not tell,
cost more than a ridge makes good. Work is bounded by about ``60 * 8192 P^2`` multiplications for P columns, and P
multiplications per prompt of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import expit, log_expit, logit

from selector.difficulty.fused.design import PopulationDesign, Source

PENALTIES = (256.0, 64.0, 16.0, 4.0, 1.0)
"""Ridge strengths in nats per squared coefficient of a standardised column, tried from strong to weak."""

_LARGEST_ROWS = 8192
_FIRST_STEPS = 6
_FURTHER_STEPS = 2
_LARGEST_CHANGE = 3.0
# Rounding only: any lower bound would leave a share of a row's own outcome in what is predicted without it.
_LARGEST_LEVERAGE = 1.0 - 1e-9
_LARGEST_DEVIATION = 5.0
# The intercept is free; one pseudo-trial at rate 1/2 keeps it finite while all outcomes are equal.
_PSEUDO_TRIALS = 1.0
_PSEUDO_RATE = 0.5


@dataclass(frozen=True)
class PopulationRows:
    """Evidence the model is fitted on.

    Attributes:
        prompt: (R,) indices into the pool.
        rate: (R,) observed success rate in [0, 1].
        weight: (R,) effective number of trials.
        offset: (R,) known part of the logit at the time of the evidence, relative to now.
    """

    prompt: np.ndarray
    rate: np.ndarray
    weight: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class _Fit:
    coefficients: np.ndarray
    left_out: np.ndarray
    score: float


def newest_rows(last_step: np.ndarray) -> np.ndarray:
    """Indices of the visited prompts (``last_step`` >= 0), at most 8192, newest first where more are visited."""
    visited = np.flatnonzero(last_step >= 0)
    if len(visited) <= _LARGEST_ROWS:
        return visited
    newest = np.argsort(-last_step[visited], kind="stable")[:_LARGEST_ROWS]
    return np.sort(visited[newest])


def fit_population(design: PopulationDesign, rows: PopulationRows) -> np.ndarray:
    """Logit of every prompt's success rate, (N,) float64.

    A prompt among the rows is predicted from the others (approximate leave-one-out), so that its own outcomes are not
    counted here and again as own evidence.
    """
    fits = [(fit, used) for used in _choices(design.source) for fit in _fits(design, rows, used)]
    best, used = max(fits, key=lambda found: found[0].score)
    coefficients = np.zeros(len(used), dtype=np.float32)
    coefficients[used] = best.coefficients
    logits = (design.columns @ coefficients).astype(np.float64)
    logits[rows.prompt] = best.left_out
    return logits


def _choices(source: np.ndarray) -> list[np.ndarray]:
    """Sets of columns to fit, (P,) bool: all, and fewer and fewer of what texts tell, as long as something is left."""
    found = [np.ones(len(source), dtype=bool)]
    for largest in (Source.TEXT, Source.GIVEN):
        used = source <= largest
        if 1 < used.sum() < found[-1].sum():
            found.append(used)
    return found


def _fits(design: PopulationDesign, rows: PopulationRows, used: np.ndarray) -> Iterator[_Fit]:
    """A fit for each of ``PENALTIES``, on some of the columns."""
    columns, centre = design.columns[rows.prompt][:, used].astype(np.float64), design.centre[used]
    total = rows.weight.sum() + _PSEUDO_TRIALS
    coefficients = centre.copy()
    coefficients[0] = logit(float((rows.weight @ rows.rate + _PSEUDO_TRIALS * _PSEUDO_RATE) / total))
    steps = _FIRST_STEPS
    for penalty in PENALTIES:
        fit = _newton(columns, rows, centre, coefficients, penalty, steps)
        coefficients, steps = fit.coefficients, _FURTHER_STEPS
        yield fit


def _newton(
    columns: np.ndarray,
    rows: PopulationRows,
    centre: np.ndarray,
    coefficients: np.ndarray,
    penalty: float,
    steps: int,
) -> _Fit:
    ridge = np.full(len(centre), penalty)
    ridge[0] = 0.0
    for _ in range(steps):
        factor, gradient, _ = _system(columns, rows, centre, coefficients, ridge)
        change = cho_solve(factor, gradient)
        largest = float(np.abs(columns @ change).max(initial=abs(change[0])))
        coefficients = coefficients + change * min(1.0, _LARGEST_CHANGE / max(largest, _LARGEST_CHANGE))
    factor, _, curvature = _system(columns, rows, centre, coefficients, ridge)
    linear = columns @ coefficients
    spread = np.square(solve_triangular(factor[0], columns.T, lower=True)).sum(axis=0)
    leverage = np.minimum(curvature * spread, _LARGEST_LEVERAGE)
    residual = rows.weight * (rows.rate - expit(linear + rows.offset))
    left_out = linear - spread * residual / (1.0 - leverage)
    left_out = np.clip(left_out, coefficients[0] - _LARGEST_DEVIATION, coefficients[0] + _LARGEST_DEVIATION)
    then = left_out + rows.offset
    score = rows.weight @ (rows.rate * log_expit(then) + (1.0 - rows.rate) * log_expit(-then))
    return _Fit(coefficients, left_out, float(score))


def _system(
    columns: np.ndarray, rows: PopulationRows, centre: np.ndarray, coefficients: np.ndarray, ridge: np.ndarray
) -> tuple[tuple[np.ndarray, bool], np.ndarray, np.ndarray]:
    """Factorised Hessian, gradient, and each row's curvature, of the penalised log likelihood."""
    rate = expit(columns @ coefficients + rows.offset)
    curvature = rows.weight * np.maximum(rate * (1.0 - rate), 1e-6)
    pseudo = float(expit(coefficients[0]))
    gradient = columns.T @ (rows.weight * (rows.rate - rate)) - ridge * (coefficients - centre)
    gradient[0] += _PSEUDO_TRIALS * (_PSEUDO_RATE - pseudo)
    hessian = (columns * curvature[:, None]).T @ columns + np.diag(ridge)
    hessian[0, 0] += _PSEUDO_TRIALS * max(pseudo * (1.0 - pseudo), 1e-6)
    return cho_factor(hessian, lower=True), gradient, curvature
