"""Simple predictions from references, as controls: what the service has to beat. All are judged like estimators.

Each is fitted on the observed pass rates of K references and predicts all N questions and, leaving each reference out,
the references themselves. A prediction p has the standard error ``sqrt(rho p (1 - p))`` with rho from the left-out
residuals, less binomial noise, as ATTENTION's (``selector.difficulty.attention``).

Ridge regressions are linear, on columns standardised over all questions, with a free intercept; the penalty has the
smallest squared left-out error. Where several blocks of columns meet, so has the weight of the embeddings among them.
Nearest neighbours are by cosine, their number likewise, and their mean goes through a line fitted on left-out means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from selector.difficulty.estimate import Basis, Estimate
from selector.evaluation.draws import Draw

_MARGIN = 0.01
_PENALTIES = np.geomspace(1e-2, 1e4, 19)
_WEIGHTS = (0.1, 0.3, 1.0, 3.0)
_NEIGHBOURS = (2, 4, 8, 16, 32, 64, 128)
_TILE = 2048
_VARIATION = 1e-9
_SMALLEST_STANDARD_ERROR = 0.02
_PRIOR_TRIALS = 8.0


@dataclass(frozen=True)
class Fit:
    """Predicted pass rates: (N,) of all questions, and (K,) of the references, each without itself."""

    rate: np.ndarray
    left_out: np.ndarray


def constant(size: int, draw: Draw) -> Fit:
    """The references' mean, as ``(1 + successes)/(2 + trials)``."""
    successes, trials = draw.successes.sum(), draw.trials.sum()
    alone = (1.0 + successes - draw.successes) / (2.0 + trials - draw.trials)
    return Fit(np.full(size, (1.0 + successes) / (2.0 + trials)), alone)


def ridge(blocks: Sequence[np.ndarray], draw: Draw) -> Fit:
    """Ridge on blocks of columns, each (N, P); all but the first are weighted as a whole."""
    best: Fit | None = None
    weights = _WEIGHTS if len(blocks) > 1 else (1.0,)
    for weight in weights:
        columns = np.concatenate([blocks[0], *(weight * block for block in blocks[1:])], axis=1)
        fit = _ridge(columns, draw)
        if best is None or _squared_error(fit, draw) < _squared_error(best, draw):
            best = fit
    assert best is not None
    return Fit(_clipped(best.rate), _clipped(best.left_out))


def neighbours(embeddings: np.ndarray, draw: Draw) -> Fit:
    """Mean of the nearest references; questions without embedding get the mean of all."""
    norm = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.maximum(norm, 1e-12)
    keys = unit[draw.reference]
    most = min(_NEIGHBOURS[-1], len(keys) - 1)
    counts = [k for k in _NEIGHBOURS if k <= most]
    if not counts:
        return constant(len(embeddings), draw)
    own = np.arange(len(keys))
    alone = _nearest_means(keys, keys, draw.rate, most, own)
    means = np.concatenate(
        [
            _nearest_means(unit[start : start + _TILE], keys, draw.rate, most, None)
            for start in range(0, len(unit), _TILE)
        ]
    )
    best: Fit | None = None
    for k in counts:
        fit = _through_line(means[:, k - 1], alone[:, k - 1], draw)
        if best is None or _squared_error(fit, draw) < _squared_error(best, draw):
            best = fit
    assert best is not None
    rate = np.where(norm[:, 0] > 0.0, best.rate, draw.rate.mean())
    return Fit(_clipped(rate), _clipped(best.left_out))


def as_estimate(fit: Fit, draw: Draw) -> Estimate:
    """What an estimator would answer."""
    size = len(fit.rate)
    spread = np.sqrt(_dispersion(fit, draw) * fit.rate * (1.0 - fit.rate))
    return Estimate(
        step=len(draw.reports) - 1,
        difficulty=1.0 - fit.rate,
        standard_error=np.maximum(spread, _SMALLEST_STANDARD_ERROR),
        own_weight=np.zeros(size),
        basis=np.full(size, Basis.POPULATION, dtype=np.uint8),
        population=fit.rate,
    )


def standardised(columns: np.ndarray) -> np.ndarray:
    """(N, P) columns in units of their deviation, missing values and columns without variation 0."""
    columns = columns.astype(np.float64)
    present = np.isfinite(columns)
    count = np.maximum(present.sum(axis=0), 1)
    mean = np.where(present, columns, 0.0).sum(axis=0) / count
    centred = np.where(present, columns - mean, 0.0)
    deviation = np.sqrt((centred**2).sum(axis=0) / count)
    result: np.ndarray = np.where(deviation > _VARIATION, centred / np.maximum(deviation, _VARIATION), 0.0)
    return result


def embedding_block(embeddings: np.ndarray) -> np.ndarray:
    """(N, w) centred embeddings of total variance 9, as that of the nine surface features."""
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    variance = float((centred**2).sum(axis=1).mean())
    return centred * np.sqrt(9.0 / variance) if variance > _VARIATION else centred * 0.0


def domain_block(domain: np.ndarray) -> np.ndarray:
    """(N, D) one column per domain, centred and weighing as much as two surface features; D = 0 where all are alike."""
    codes = np.unique(domain)
    if len(codes) < 2:
        return np.zeros((len(domain), 0))
    columns = (domain[:, None] == codes).astype(np.float64)
    centred = columns - columns.mean(axis=0)
    block: np.ndarray = centred * np.sqrt(2.0 / (centred**2).sum(axis=1).mean())
    return block


def prior_block(rate: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """(N, 3): another model's rate, its logit, and whether it is known."""
    known = np.isfinite(rate)
    count = np.where(trials > 0, trials, _PRIOR_TRIALS)
    smooth = np.where(known, (np.where(known, rate, 0.5) * count + 0.5) / (count + 1.0), np.nan)
    return standardised(np.stack([smooth, logit(smooth), known.astype(np.float64)], axis=1))


def _ridge(columns: np.ndarray, draw: Draw) -> Fit:
    rows = columns[draw.reference]
    centre, mean = rows.mean(axis=0), draw.rate.mean()
    left, singular, right = np.linalg.svd(rows - centre, full_matrices=False)
    target = draw.rate - mean
    projected = left.T @ target
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for penalty in _PENALTIES * len(rows) / 100.0:
        shrunk = singular**2 / (singular**2 + penalty)
        fitted = left @ (shrunk * projected)
        # The intercept takes 1/K of every leverage.
        leverage = np.minimum((left**2) @ shrunk + 1.0 / len(rows), 0.999)
        left_out = draw.rate - (target - fitted) / (1.0 - leverage)
        error = float(((draw.rate - left_out) ** 2).mean())
        if best is None or error < best[0]:
            coefficients = right.T @ (singular / (singular**2 + penalty) * projected)
            best = (error, coefficients, left_out)
    assert best is not None
    return Fit(mean + (columns - centre) @ best[1], best[2])


def _nearest_means(
    queries: np.ndarray, keys: np.ndarray, rate: np.ndarray, most: int, own: np.ndarray | None
) -> np.ndarray:
    """(n, most): mean rate of each query's nearest 1, 2, … references; ``own`` are the queries' places among them."""
    similarity = queries @ keys.T
    if own is not None:
        similarity[own, own] = -np.inf
    nearest = np.argpartition(-similarity, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(similarity, nearest, axis=1), axis=1, kind="stable")
    nearest = np.take_along_axis(nearest, order, axis=1)
    means: np.ndarray = np.cumsum(rate[nearest], axis=1) / np.arange(1, most + 1)
    return means


def _through_line(means: np.ndarray, alone: np.ndarray, draw: Draw) -> Fit:
    centred = alone - alone.mean()
    variation = float(centred @ centred)
    slope = max(float(centred @ draw.rate) / variation, 0.0) if variation > _VARIATION else 0.0
    intercept = draw.rate.mean() - slope * alone.mean()
    return Fit(intercept + slope * means, intercept + slope * alone)


def _squared_error(fit: Fit, draw: Draw) -> float:
    return float(((draw.rate - fit.left_out) ** 2).mean())


def _clipped(rate: np.ndarray) -> np.ndarray:
    return np.clip(rate, _MARGIN, 1.0 - _MARGIN)


def _dispersion(fit: Fit, draw: Draw) -> float:
    """Variance of the true rate around its prediction p, relative to p (1 - p), in [0, 1]."""
    p = fit.left_out
    residual = _squared_error(fit, draw)
    noise = float((draw.rate * (1.0 - draw.rate) / np.maximum(draw.trials - 1.0, 1.0)).mean())
    return float(np.clip((residual - noise) / np.mean(p * (1.0 - p)), 0.0, 1.0))
