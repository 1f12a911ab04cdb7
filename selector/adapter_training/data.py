"""Measured difficulties of many models on the questions of one data set: what an adapter is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.adapter_training.errors import TrainingDataError
from selector.evaluation.rates import listed

FEWEST_QUESTIONS = 32
"""Questions of a data set below which no reference set and queries can be drawn from it."""

_VARIATION = 1e-6


@dataclass(frozen=True)
class RatedQuestions:
    """N questions and M models.

    Attributes:
        name: of the data set, for people.
        embeddings: (N, w) float32, finite.
        group: (N,) int64, equal for questions with equal text, which must not be split between learning and judging.
        models: M names.
        difficulty: (N, M) float32, one minus the pass rate; NaN where a model was not run.
    """

    name: str
    embeddings: np.ndarray
    group: np.ndarray
    models: tuple[str, ...]
    difficulty: np.ndarray

    @property
    def size(self) -> int:
        """Number of questions, N."""
        return len(self.embeddings)

    def take(self, questions: np.ndarray, models: np.ndarray) -> RatedQuestions:
        """The given rows and columns, by index."""
        return RatedQuestions(
            self.name,
            self.embeddings[questions],
            self.group[questions],
            tuple(self.models[i] for i in models),
            self.difficulty[np.ix_(questions, models)],
        )


def rated_questions(
    name: str, texts: Sequence[str], embeddings: np.ndarray, models: Sequence[str], pass_rate: np.ndarray
) -> RatedQuestions:
    """Check what was read and make it trainable. Models that ``unusable`` names are left out: they teach nothing.

    Args:
        texts: N questions.
        embeddings: (N, w).
        models: M distinct names.
        pass_rate: (N, M) in [0, 1], NaN where a model was not run.

    Raises:
        TrainingDataError: too few questions, no model that varies, or values that are no pass rates or embeddings.
    """
    if len(texts) < FEWEST_QUESTIONS:
        raise TrainingDataError(f"{name}: expected at least {FEWEST_QUESTIONS} questions; got {len(texts)}")
    broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(broken):
        raise TrainingDataError(f"{name}: the embedding of question {broken[0]} holds NaN or infinite numbers")
    rates = np.asarray(pass_rate, dtype=np.float32)
    for index, model in enumerate(models):
        column = rates[:, index]
        outside = np.flatnonzero(np.isinf(column) | (column < 0.0) | (column > 1.0))
        if len(outside):
            value = column[outside[0]]
            raise TrainingDataError(f"{name}: {model}: expected pass rates in [0, 1]; got {value} at row {outside[0]}")
    left_out = unusable(models, rates)
    useless = {model for names in left_out.values() for model in names}
    kept = np.array([i for i, model in enumerate(models) if model not in useless], dtype=np.int64)
    if not len(kept):
        reasons = "; ".join(f"{reason}: {listed(names)}" for reason, names in left_out.items())
        raise TrainingDataError(f"{name}: no model can be trained on or judged with: {reasons}")
    _, group = np.unique(np.asarray(texts, dtype=object), return_inverse=True)
    return RatedQuestions(
        name,
        np.ascontiguousarray(embeddings, dtype=np.float32),
        group.astype(np.int64),
        tuple(models[i] for i in kept),
        1.0 - rates[:, kept],
    )


def unusable(models: Sequence[str], pass_rate: np.ndarray) -> dict[str, list[str]]:
    """Why nothing can be learned from models -> their names; ``pass_rate`` as of ``rated_questions``."""
    few, alike = [], []
    for index, model in enumerate(models):
        present = pass_rate[np.isfinite(pass_rate[:, index]), index]
        if len(present) < FEWEST_QUESTIONS:
            # Neither references nor queries could be drawn.
            few.append(model)
        elif np.ptp(present) <= _VARIATION:
            alike.append(model)
    reasons = {
        f"models with pass rates of fewer than {FEWEST_QUESTIONS} questions": few,
        "models whose pass rates hardly differ between questions": alike,
    }
    return {reason: names for reason, names in reasons.items() if names}
