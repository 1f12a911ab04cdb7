"""What is learned from and what is judged on: models, and questions, that training never sees.

Three parts of a data set matter. Training models on training questions are learned from. Held-out models judge on the
training questions (*seen*: the pool's questions were rated by other models) and on held-out questions (*new*: neither
the model nor the questions were seen, as when another pool is trained on).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.adapter_training.data import FEWEST_QUESTIONS, RatedQuestions
from selector.adapter_training.errors import TrainingDataError

_DEFAULT_SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """Parts of the data sets, in their order; a part without models or questions is left out.

    Attributes:
        training: training models on training questions.
        seen: held-out models on training questions.
        new: held-out models on held-out questions.
        held_out: names of the held-out models.
    """

    training: tuple[RatedQuestions, ...]
    seen: tuple[RatedQuestions, ...]
    new: tuple[RatedQuestions, ...]
    held_out: tuple[str, ...]


def split(
    data: Sequence[RatedQuestions], held_out: Sequence[str] | int | None, question_share: float, seed: int
) -> Split:
    """Split data sets; a model is held out of all of them.

    Args:
        held_out: names of models, how many to draw, or None for a fifth of them.
        question_share: share in [0, 1) of each data set's questions to hold out; equal texts stay together. Data sets
            too small to spare that many keep all.
        seed: of both draws.

    Raises:
        TrainingDataError: unknown names, or no model left to train on or to judge with.
    """
    models = sorted({model for questions in data for model in questions.models})
    names = _held_out(models, held_out, seed)
    random = np.random.default_rng([seed, 1])
    training: list[RatedQuestions] = []
    seen: list[RatedQuestions] = []
    new: list[RatedQuestions] = []
    for questions in data:
        rows, spared = _questions(questions, question_share, random)
        judging = np.array([i for i, model in enumerate(questions.models) if model in names], dtype=np.int64)
        learning = np.setdiff1d(np.arange(len(questions.models)), judging)
        if len(learning):
            training.append(questions.take(rows, learning))
        if len(judging):
            seen.append(questions.take(rows, judging))
        if len(judging) and len(spared):
            new.append(questions.take(spared, judging))
    return Split(tuple(training), tuple(seen), tuple(new), tuple(sorted(names)))


def _held_out(models: Sequence[str], held_out: Sequence[str] | int | None, seed: int) -> set[str]:
    if len(models) < 2:
        raise TrainingDataError(
            f"expected pass rates of at least two models, one to train on and one to judge with; got {len(models)}"
        )
    if held_out is None:
        held_out = max(1, round(_DEFAULT_SHARE * len(models)))
    if isinstance(held_out, int):
        if not 1 <= held_out < len(models):
            raise TrainingDataError(f"held-out models: expected between 1 and {len(models) - 1}; got {held_out}")
        drawn = np.random.default_rng([seed, 0]).choice(len(models), held_out, replace=False)
        return {models[i] for i in drawn}
    unknown = sorted(set(held_out) - set(models))
    if unknown:
        raise TrainingDataError(f"held-out models: no usable model {unknown[0]!r}; there are: {', '.join(models)}")
    if not held_out:
        raise TrainingDataError("held-out models: expected at least one")
    if len(set(held_out)) == len(models):
        raise TrainingDataError("held-out models: all models are held out; there is none to train on")
    return set(held_out)


def _questions(questions: RatedQuestions, share: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out, both in order."""
    texts = np.unique(questions.group)
    drawn = random.permutation(texts)[: round(share * len(texts))]
    spared = np.isin(questions.group, drawn)
    if spared.sum() < FEWEST_QUESTIONS or (~spared).sum() < FEWEST_QUESTIONS:
        spared[:] = False
    return np.flatnonzero(~spared), np.flatnonzero(spared)
