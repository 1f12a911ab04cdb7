"""Ways of predicting a run's next report from those before it, each with the rows of the table that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from selector.difficulty.estimate import Estimate, Estimator, OutcomeBatch, PoolFeatures
from selector.evaluation.draws import Draw
from selector.evaluation.questions import Questions
from selector.evaluation.replay_log import Report
from selector.evaluation.simple_rows import as_estimate, domain_block, embedding_block, prior_block, ridge, standardised

Predicted = tuple[np.ndarray, np.ndarray | None]
"""(M,) pass rates, and (M,) standard errors where the row has any."""

_KEPT_PER_STEP = 0.9
_RIDGE_ROWS = 1024
_RIDGE_COMPONENTS = 64
_FEWEST_ROWS = 8


class Predictor(Protocol):
    """Predicts each report before it is shown."""

    def predict(self, report: Report) -> Mapping[str, Predicted]:
        """Rows by name; sees no outcome of the report."""
        ...

    def observe(self, report: Report) -> None:
        """Take the report in."""
        ...


class ServicePredictor:
    """An estimator of the service, reported to as a run does; FUSED also gives what it would say of untried prompts."""

    def __init__(self, name: str, estimator: Estimator, features: PoolFeatures, population: str | None = None) -> None:
        """``population``: name of the row without own outcomes, None = no such row."""
        self._name = name
        self._estimator = estimator
        self._features = features
        self._population_row = population
        self._before: Estimate | None = None

    def predict(self, report: Report) -> Mapping[str, Predicted]:
        self._before = estimate = self._estimator.estimate(self._features, report.step)
        at = report.prompt
        rows: dict[str, Predicted] = {}
        if self._population_row is not None:
            rows[self._population_row] = (estimate.population[at], None)
        return {**rows, self._name: (1.0 - estimate.difficulty[at], estimate.standard_error[at])}

    def observe(self, report: Report) -> None:
        before = self._before or self._estimator.estimate(self._features, report.step)
        self._estimator.observe(
            OutcomeBatch(
                step=report.step,
                reference=report.reference,
                prompt=report.prompt,
                trials=report.trials,
                successes=report.successes,
                uniform=report.uniform,
                population=before.population[report.prompt],
            )
        )


class RunningMean:
    """CONSTANT: the mean of all outcomes so far, older ones worth 10 % less per step; and each prompt's last visit."""

    def __init__(self, size: int) -> None:
        self._successes, self._trials, self._step = 0.5, 1.0, 0
        self._last = np.full(size, np.nan)

    def predict(self, report: Report) -> Mapping[str, Predicted]:
        mean = np.full(len(report.prompt), self._successes / self._trials)
        last = self._last[report.prompt]
        return {"constant": (mean, None), "last value": (np.where(np.isnan(last), mean, last), None)}

    def observe(self, report: Report) -> None:
        kept = _KEPT_PER_STEP ** max(report.step - self._step, 0)
        self._step = max(self._step, report.step)
        self._successes = kept * self._successes + float(report.successes.sum())
        self._trials = kept * self._trials + float(report.trials.sum())
        self._last[report.prompt] = (report.successes + 0.5) / (report.trials + 1.0)


class RidgePredictor:
    """RIDGE on prior, surface features, domain and 64 principal components, refitted for every report.

    On the last visits of the 1024 prompts that were visited latest.
    """

    def __init__(self, questions: Questions) -> None:
        features = questions.features
        domain = domain_block(features.domain)
        known = np.concatenate([standardised(features.surface), domain], axis=1)
        self._blocks = [known] if questions.lengths is not None or domain.shape[1] else []
        if questions.has_prior:
            self._blocks.insert(0, prior_block(features.prior_rate, features.prior_trials))
        if features.embeddings is not None:
            block = embedding_block(features.embeddings)
            self._blocks.append(block @ np.linalg.eigh(block.T @ block)[1][:, ::-1][:, :_RIDGE_COMPONENTS])
        # By prompt, oldest visit first.
        self._visits: dict[int, tuple[float, float]] = {}

    @property
    def possible(self) -> bool:
        """Whether anything is known of the prompts."""
        return bool(self._blocks)

    def predict(self, report: Report) -> Mapping[str, Predicted]:
        at = report.prompt
        newest = list(self._visits.items())[-_RIDGE_ROWS:]
        if len(newest) < _FEWEST_ROWS:
            return {"ridge": (np.full(len(at), 0.5), np.full(len(at), 12.0**-0.5))}
        draw = Draw(
            number=0,
            reference=np.array([prompt for prompt, _ in newest], dtype=np.int32),
            trials=np.array([trials for _, (_, trials) in newest]),
            successes=np.array([successes for _, (successes, _) in newest]),
            unseen=np.zeros(0, dtype=np.int64),
            reports=(),
        )
        estimate = as_estimate(ridge(self._blocks, draw), draw)
        return {"ridge": (1.0 - estimate.difficulty[at], estimate.standard_error[at])}

    def observe(self, report: Report) -> None:
        columns = (report.prompt.tolist(), report.successes.tolist(), report.trials.tolist())
        for prompt, successes, trials in zip(*columns, strict=True):
            self._visits.pop(prompt, None)
            self._visits[prompt] = (successes, trials)


class Recorded:
    """What the service itself had predicted when it selected the prompts."""

    def predict(self, report: Report) -> Mapping[str, Predicted]:
        return {"as recorded": (report.recorded, None)}

    def observe(self, report: Report) -> None:
        """Nothing to learn: it is all recorded."""
