"""ATTENTION: the paper's prediction from a reference set (arXiv 2506.05316, section 4.1).

``a_i = softmax_i(z_q . z_i / sqrt(h))``, ``d_q = sum_i a_i d_i``, then the adapter's calibration head, then a linear
recalibration by ordinary least squares, and the result clipped to [1e-4, 1 - 1e-4].

Who attends to whom. A prompt of the pool attends to the whole reference set, so a reference prompt asked about itself
attends to itself too, as in the paper. The authors fit the recalibration on such predictions, which see their own
labels; here it is fitted on leave-one-out predictions: reference i is predicted from the K - 1 others, by attention
and by the head's mean and spread alike. ``Estimate.population`` of a reference prompt is that leave-one-out
prediction; ``own_weight`` of a reference prompt is its attention to itself and 0 for all other prompts.

Where there is nothing to attend to, every prompt is predicted by the references' mean, as ``(1 + sum d_i)/(2 + K)``:
fewer than three references, references that do not differ, a run without embeddings. The same is predicted for a
single prompt without embedding; a reference without one takes part in the mean only. A recalibration whose slope would
be negative, or whose predictions do not differ, has slope 0 and predicts the plain mean.

The standard error of a prediction p is ``sqrt(rho p (1 - p))``, at least 0.02, where rho is the leave-one-out residual
variance less the mean binomial noise ``d (1 - d)/(n - 1)`` of the measured difficulties, relative to the mean of
``p (1 - p)``: a residual variance that is the same everywhere would be impossible near 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import UNIFORM_STANDARD_ERROR, Basis, Estimate, OutcomeBatch, PoolFeatures
from selector.difficulty.reference_set import ReferenceMode, References, ReferenceSet
from selector.difficulty.tiles import TILE_ROWS, LatestValue, TileProjectionCache

_MARGIN = 1e-4
_FEWEST_REFERENCES = 3
_SMALLEST_STANDARD_ERROR = 0.02
_UNIFORM_DISPERSION = 1.0 / 3.0
# float32 exp neither overflows, summed over any reference set, nor loses bits below this score; beyond it the largest
# score is subtracted first. Bounded by the adapter's weights, so that no prompt's figures depend on another's.
_LARGEST_PLAIN_SCORE = 70.0
_VARIATION = 1e-12


@dataclass(frozen=True)
class _LeaveOneOut:
    """What each attending reference is predicted from the others, before recalibration, and its attention to itself."""

    difficulty: np.ndarray
    own_weight: np.ndarray


@dataclass(frozen=True)
class _Line:
    """The recalibration ``clip(intercept + slope x)``."""

    slope: float
    intercept: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.clip(self.intercept + self.slope * values, _MARGIN, 1.0 - _MARGIN)


@dataclass(frozen=True)
class _Attention:
    """A reference set ready to be attended to.

    Attributes:
        references: the K attending references.
        tiles: the projected pool, each (2048, h).
        covered: (N,) bool, prompts with an embedding.
        as_query: (K, h) query side of the references.
        as_reference: (K, h) their reference side.
    """

    adapter: Adapter
    references: References
    tiles: list[np.ndarray]
    covered: np.ndarray
    as_query: np.ndarray
    as_reference: np.ndarray


class AttentionEstimator:
    """The paper's attention over the references chosen by ``mode``; without adapter, on layer-normalised embeddings."""

    def __init__(self, adapter: Adapter | None, reference_size: int, mode: ReferenceMode) -> None:
        self._adapter = adapter
        self._set = ReferenceSet(mode, reference_size)
        self._step = -1
        self._untrained: LatestValue[Adapter] = LatestValue()
        self._covered: LatestValue[np.ndarray] = LatestValue()
        self._pool: LatestValue[TileProjectionCache] = LatestValue()
        self._reference_side: LatestValue[np.ndarray] = LatestValue()

    def observe(self, batch: OutcomeBatch) -> None:
        """Fold one report: those of its groups that qualify join the reference set."""
        self._set.observe(batch)
        if len(batch.prompt):
            self._step = max(self._step, batch.step)

    def forget(self, prompts: np.ndarray) -> None:
        """Take these prompts out of the reference set."""
        self._set.forget(prompts)

    def estimate(self, features: PoolFeatures, step: int) -> Estimate:
        """Predicted difficulty of every prompt; ``step`` does not matter.

        Raises:
            ValueError: the embeddings are not of the adapter's width.
        """
        size = features.size
        references = self._references(features)
        if not len(references):
            half = np.full(size, 0.5)
            return Estimate(
                step=self._step,
                difficulty=half,
                standard_error=np.full(size, UNIFORM_STANDARD_ERROR),
                own_weight=np.zeros(size),
                basis=np.full(size, Basis.NONE, dtype=np.uint8),
                population=half.copy(),
            )
        attention = self._attention(features, references)
        mean = _smoothed_mean(references)
        difficulty = np.full(size, mean)
        own_weight = np.zeros(size)
        if attention is None:
            rest = difficulty.copy()
            dispersion = _dispersion(references, difficulty[references.prompt])
        else:
            attending = attention.references
            alone = _leave_one_out(attention)
            line = _fit(alone.difficulty, attending.difficulty)
            attended = _attend(attention)
            if attention.adapter.head is not None:
                measured = attending.difficulty
                attended = attention.adapter.head(attended, measured.mean(), measured.std())
            difficulty[attention.covered] = line(attended)[attention.covered]
            rest = difficulty.copy()
            rest[attending.prompt] = line(alone.difficulty)
            own_weight[attending.prompt] = alone.own_weight
            dispersion = _dispersion(attending, rest[attending.prompt])
        spread = np.sqrt(dispersion * difficulty * (1.0 - difficulty))
        return Estimate(
            step=self._step,
            difficulty=difficulty,
            standard_error=np.maximum(spread, _SMALLEST_STANDARD_ERROR),
            own_weight=own_weight,
            basis=np.full(size, Basis.POPULATION, dtype=np.uint8),
            population=1.0 - rest,
        )

    def references(self, features: PoolFeatures, step: int, prompt: int, limit: int) -> list[tuple[int, float, float]]:
        """The prompt's strongest references by attention; [] where the prediction is the references' mean."""
        references = self._references(features)
        attention = self._attention(features, references) if len(references) else None
        if attention is None or not attention.covered[prompt]:
            return []
        query = attention.tiles[prompt // TILE_ROWS][prompt % TILE_ROWS].astype(np.float64)
        scores = attention.as_reference.astype(np.float64) @ query / np.sqrt(len(query))
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        strongest = np.argsort(-weights, kind="stable")[:limit]
        attending = attention.references
        return [(int(attending.prompt[i]), float(weights[i]), float(attending.difficulty[i])) for i in strongest]

    def copy(self) -> AttentionEstimator:
        """Independent state; the caches, which are functions of their keys, stay shared."""
        other = AttentionEstimator.__new__(AttentionEstimator)
        other.__dict__.update(self.__dict__)
        other._set = self._set.copy()
        return other

    def _references(self, features: PoolFeatures) -> References:
        references = self._set.current()
        return references.take(references.prompt < features.size)

    def _adapter_for(self, width: int) -> Adapter:
        adapter = self._adapter or self._untrained.get(width, lambda: Adapter.untrained(width))
        if adapter.input_width != width:
            raise ValueError(f"embeddings: the adapter takes width {adapter.input_width}, got {width}")
        return adapter

    def _attention(self, features: PoolFeatures, references: References) -> _Attention | None:
        """None where the prediction is the references' mean for all prompts."""
        embeddings = features.embeddings
        if embeddings is None:
            return None
        width = embeddings.shape[1]
        adapter = self._adapter_for(width)
        covered = self._covered.get((features.version, embeddings.shape), lambda: np.asarray(embeddings.any(axis=1)))
        attending = references.take(covered[references.prompt])
        if len(attending) < _FEWEST_REFERENCES or np.ptp(attending.difficulty) <= _VARIATION:
            return None
        projected = self._pool.get(width, lambda: TileProjectionCache(adapter.query)).get(features.version, embeddings)
        key = (features.version, embeddings.shape, attending.prompt.tobytes())
        as_reference = self._reference_side.get(key, lambda: adapter.reference(embeddings[attending.prompt]))
        places = zip(attending.prompt // TILE_ROWS, attending.prompt % TILE_ROWS, strict=True)
        as_query = np.stack([projected[tile][row] for tile, row in places])
        return _Attention(adapter, attending, projected, covered, as_query, as_reference)


def _leave_one_out(attention: _Attention) -> _LeaveOneOut:
    """float64, in blocks of rows, so that a large reference pass needs no K x K matrix at once."""
    measured = attention.references.difficulty
    keys = attention.as_reference.astype(np.float64).T / np.sqrt(attention.as_reference.shape[1])
    others = np.empty(len(measured))
    own_weight = np.empty(len(measured))
    for start in range(0, len(measured), TILE_ROWS):
        rows = np.arange(start, min(start + TILE_ROWS, len(measured)))
        scores = attention.as_query[rows].astype(np.float64) @ keys
        own = scores[rows - start, rows].copy()
        scores[rows - start, rows] = -np.inf
        largest = scores.max(axis=1)
        weights = np.exp(scores - largest[:, None])
        total = weights.sum(axis=1)
        others[rows] = weights @ measured / total
        own_weight[rows] = expit(own - largest - np.log(total))
    if attention.adapter.head is not None:
        count = len(measured) - 1
        mean = (measured.sum() - measured) / count
        square = ((measured**2).sum() - measured**2) / count
        others = attention.adapter.head(others, mean, np.sqrt(np.maximum(square - mean**2, 0.0)))
    return _LeaveOneOut(others, own_weight)


def _attend(attention: _Attention) -> np.ndarray:
    """``sum_i a_i d_i`` of every prompt, (N,) float64, from float32 products."""
    keys = np.ascontiguousarray(attention.as_reference.T) / np.float32(np.sqrt(attention.as_reference.shape[1]))
    measured = attention.references.difficulty
    sums_of = np.stack([measured, np.ones_like(measured)]).astype(np.float32)
    scores = np.empty((TILE_ROWS, keys.shape[1]), dtype=np.float32)
    difficulty = np.empty(len(attention.tiles) * TILE_ROWS)
    for index, tile in enumerate(attention.tiles):
        np.matmul(tile, keys, out=scores)
        if attention.adapter.largest_score > _LARGEST_PLAIN_SCORE:
            scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        sums = (sums_of @ scores.T).astype(np.float64)
        difficulty[index * TILE_ROWS : (index + 1) * TILE_ROWS] = sums[0] / sums[1]
    return difficulty[: len(attention.covered)]


def _smoothed_mean(references: References) -> float:
    return float((1.0 + references.difficulty.sum()) / (2.0 + len(references)))


def _fit(predicted: np.ndarray, measured: np.ndarray) -> _Line:
    """Ordinary least squares of ``measured`` on ``predicted`` with slope >= 0."""
    centred = predicted - predicted.mean()
    variation = float(centred @ centred)
    slope = float(centred @ measured) / variation if variation > _VARIATION else 0.0
    slope = max(slope, 0.0)
    return _Line(slope, float(measured.mean() - slope * predicted.mean()))


def _dispersion(references: References, predicted: np.ndarray) -> float:
    """Variance of the true difficulty around its prediction p, relative to p (1 - p), in [0, 1]."""
    measured = references.difficulty
    if len(measured) < _FEWEST_REFERENCES:
        return _UNIFORM_DISPERSION
    # Two degrees of freedom go into the line.
    residual = float(((measured - predicted) ** 2).sum()) / (len(measured) - 2)
    noise = float((measured * (1.0 - measured) / np.maximum(references.trials - 1.0, 1.0)).mean())
    return float(np.clip((residual - noise) / (predicted * (1.0 - predicted)).mean(), 0.0, 1.0))
