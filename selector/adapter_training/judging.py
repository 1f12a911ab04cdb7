"""How well an adapter predicts models it was not trained on: loss and correlation, on fixed reference sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from selector.adapter_training.data import RatedQuestions
from selector.adapter_training.minibatches import FEWEST_MEASURED

Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(Q, w) queries, (K, w) references and their (K, M) difficulties, NaN = not measured, to logits (Q, M)."""

_DRAWS = 4
_SPREAD = 1e-6


@dataclass(frozen=True)
class Judgement:
    """Means over data sets, models and draws of the reference set; NaN when there is nothing to judge.

    Attributes:
        loss: binary cross-entropy in nats.
        pearson: predicted against measured difficulty, over the draws in which both vary.
        constant_loss: loss of predicting the references' mean difficulty.
    """

    loss: float
    pearson: float
    constant_loss: float

    @property
    def empty(self) -> bool:
        """Nothing was there to be judged."""
        return math.isnan(self.loss)


class Judge:
    """Judges predictions on the same reference sets each time, drawn once."""

    def __init__(self, data: Sequence[RatedQuestions], references: int, seed: int, device: torch.device) -> None:
        """
        Args:
            data: all their models and questions are judged on; half of a small data set serves as references.
            references: K.
            seed: of the draws.
        """
        random = np.random.default_rng([seed, 2])
        self._cases: list[tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]] = []
        for questions in data:
            embeddings = torch.from_numpy(questions.embeddings).to(device)
            count = min(references, questions.size // 2)
            for _ in range(_DRAWS):
                order = random.permutation(questions.size)
                chosen = order[:count]
                rest = order[count:]
                rest = rest[~np.isin(questions.group[rest], questions.group[chosen])]
                columns = np.flatnonzero(np.isfinite(questions.difficulty[chosen]).sum(axis=0) >= FEWEST_MEASURED)
                measured, truth = (questions.difficulty[np.ix_(rows, columns)] for rows in (chosen, rest))
                if truth.size:
                    self._cases.append((embeddings[rest], embeddings[chosen], measured, truth))

    def __call__(self, predict: Predict) -> Judgement:
        """Judge; a network has to be in evaluation mode."""
        losses: list[float] = []
        constant: list[float] = []
        correlations: list[float] = []
        for queries, references, measured, truth in self._cases:
            with torch.no_grad():
                known = torch.from_numpy(measured).to(queries)
                logits = predict(queries, references, known).cpu().double().numpy()
            mean = np.clip(np.nanmean(measured, axis=0), 1e-4, 1.0 - 1e-4).astype(np.float64)
            for column in range(truth.shape[1]):
                present = np.isfinite(truth[:, column])
                actual = truth[present, column].astype(np.float64)
                if not len(actual):
                    continue
                own = logits[present, column]
                if not np.isfinite(own).all():
                    return Judgement(math.nan, math.nan, math.nan)
                losses.append(float(np.mean(np.logaddexp(0.0, own) - actual * own)))
                level = np.log(mean[column]) - np.log1p(-mean[column])
                constant.append(float(np.mean(np.logaddexp(0.0, level) - actual * level)))
                if np.ptp(actual) > _SPREAD and np.ptp(own) > _SPREAD:
                    predicted = 1.0 / (1.0 + np.exp(-own))
                    correlations.append(float(np.corrcoef(predicted, actual)[0, 1]))
        return Judgement(_mean(losses), _mean(correlations), _mean(constant))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
