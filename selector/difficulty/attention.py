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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.difficulty.attending import Attending, Attention
from selector.difficulty.estimate import UNIFORM_STANDARD_ERROR, Basis, Estimate, OutcomeBatch, PoolFeatures
from selector.difficulty.kernel import NUMPY, Kernel
from selector.difficulty.reference_set import ReferenceMode, References, ReferenceSet
from selector.neighbours.search import CPU

_MARGIN = 1e-4
_FEWEST_REFERENCES = 3
_SMALLEST_STANDARD_ERROR = 0.02
_UNIFORM_DISPERSION = 1.0 / 3.0
_VARIATION = 1e-12


@dataclass(frozen=True)
class _Line:
    """The recalibration ``clip(intercept + slope x)``."""

    slope: float
    intercept: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.clip(self.intercept + self.slope * values, _MARGIN, 1.0 - _MARGIN)


class AttentionEstimator:
    """The paper's attention over the references chosen by ``mode``; without adapter, on layer-normalised embeddings."""

    def __init__(
        self,
        adapter: Adapter | None,
        reference_size: int,
        mode: ReferenceMode,
        shortlist: int = 0,
        device: str = CPU,
        kernel: Kernel = NUMPY,
    ) -> None:
        """``shortlist``, ``device``, ``kernel``: see ``selector.difficulty.attending``."""
        self._attending = Attending(adapter, shortlist, device, kernel)
        self._set = ReferenceSet(mode, reference_size)
        self._step = -1

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
        attention = self._attending.to(features, references)
        mean = _smoothed_mean(references)
        difficulty = np.full(size, mean)
        own_weight = np.zeros(size)
        if attention is None:
            rest = difficulty.copy()
            dispersion = _dispersion(references, difficulty[references.prompt])
        else:
            attending = attention.references
            left_out = attention.left_out()
            alone = _calibrated_alone(attention, left_out.difficulty)
            line = _fit(alone, attending.difficulty)
            attended = attention.difficulty()
            if attention.adapter.head is not None:
                measured = attending.difficulty
                attended = attention.adapter.head(attended, measured.mean(), measured.std())
            difficulty[attention.covered] = line(attended)[attention.covered]
            rest = difficulty.copy()
            rest[attending.prompt] = line(alone)
            own_weight[attending.prompt] = left_out.own_weight
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
        attention = self._attending.to(features, references) if len(references) else None
        if attention is None or not attention.covered[prompt]:
            return []
        weights = attention.weights(prompt)
        strongest = np.argsort(-weights, kind="stable")[:limit]
        attending = attention.references
        # Those beyond a shortlist have none.
        strongest = strongest[weights[strongest] > 0.0]
        return [(int(attending.prompt[i]), float(weights[i]), float(attending.difficulty[i])) for i in strongest]

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "references": self._set.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]
        self._set.load_state_dict(state["references"])

    def copy(self) -> AttentionEstimator:
        """Independent state; the caches, which are functions of their keys, stay shared."""
        other = AttentionEstimator.__new__(AttentionEstimator)
        other.__dict__.update(self.__dict__)
        other._set = self._set.copy()
        return other

    def _references(self, features: PoolFeatures) -> References:
        references = self._set.current()
        return references.take(references.prompt < features.size)


def _calibrated_alone(attention: Attention, left_out: np.ndarray) -> np.ndarray:
    """(K,) left-out attention through the head, which sees the mean and spread of the others alone."""
    head = attention.adapter.head
    if head is None:
        return left_out
    measured = attention.references.difficulty
    count = len(measured) - 1
    mean = (measured.sum() - measured) / count
    square = ((measured**2).sum() - measured**2) / count
    return head(left_out, mean, np.sqrt(np.maximum(square - mean**2, 0.0)))


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
