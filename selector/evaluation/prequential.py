"""Every report of a history predicted from the reports before it, by every predictor, in total and by stage.

Stages of a prompt's visit: the first; or by how many steps it was absent. Quarters are of the steps of training. For
the stage ``never seen`` half of the prompts, drawn by the seed, are hidden in a second pass: their reports are
predicted and never shown, whatever the visit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Basis, Estimate
from selector.evaluation.figures import Accuracy, Measured, accuracy
from selector.evaluation.predictors import Predictor, Recorded, RidgePredictor, RunningMean, ServicePredictor
from selector.evaluation.questions import Questions
from selector.evaluation.replay_log import ReplayLog, Report
from selector.evaluation.service_rows import fresh_estimator
from selector.noise import noise_key, uniforms

STAGES = (
    "all",
    "first",
    "absent 1-10",
    "absent 11-30",
    "absent >30",
    "quarter 1",
    "quarter 2",
    "quarter 3",
    "quarter 4",
    "never seen",
    "unselected",
)
"""``unselected``: the uniform arm and reference passes, whose prompts were not chosen by a prediction."""

FUSED, RECORDED = "fused", "as recorded"
_HIDDEN = 0.5
_REFERENCES = 256


@dataclass(frozen=True)
class History:
    """Where each visit of a history stands, V visits in order.

    Attributes:
        prompt: (V,) int64.
        measured: of each visit.
        absence: (V,) steps since the visit before, -1 = the first, 0 = at or before the newest step seen.
        quarter: (V,) 1 to 4.
        unselected: (V,) bool.
    """

    prompt: np.ndarray
    measured: Measured
    absence: np.ndarray
    quarter: np.ndarray
    unselected: np.ndarray

    def of_stage(self, stage: str) -> np.ndarray:
        """(V,) bool: visits of a stage other than ``never seen``."""
        masks = {
            "all": np.ones(len(self.prompt), dtype=bool),
            "first": self.absence < 0,
            "absent 1-10": (self.absence >= 1) & (self.absence <= 10),
            "absent 11-30": (self.absence >= 11) & (self.absence <= 30),
            "absent >30": self.absence > 30,
            "unselected": self.unselected,
            **{f"quarter {number}": self.quarter == number for number in range(1, 5)},
        }
        return masks[stage]


@dataclass(frozen=True)
class StageFigures:
    """One row at one stage."""

    row: str
    stage: str
    trials: int
    accuracy: Accuracy


def prequential(
    log: ReplayLog, questions: Questions, adapter: Adapter | None, seed: int, progress: Callable[[str], None]
) -> list[StageFigures]:
    """All rows at all stages that have visits.

    Args:
        progress: called with the step before each report; see ``work``.
    """
    past = history(log)
    hidden = uniforms(noise_key(seed, "hidden"), 0, len(log.ids)) < _HIDDEN
    shown = follow(log, predictors(log, questions, adapter), np.zeros(len(hidden), dtype=bool), progress)
    blind = follow(log, predictors(log, questions, adapter), hidden, progress)
    figures = []
    for row in shown:
        for stage in STAGES:
            unseen = stage == "never seen"
            if unseen and row == RECORDED:
                continue
            rate, error = (blind if unseen else shown)[row]
            visits = hidden[past.prompt] if unseen else past.of_stage(stage)
            visits = visits & np.isfinite(rate)
            if visits.any():
                figures.append(_figures(row, stage, rate[visits], error[visits], past.measured.take(visits)))
    return figures


def work(log: ReplayLog) -> int:
    """How often ``progress`` will be called."""
    return 2 * len(log.reports)


def history(log: ReplayLog) -> History:
    """The visits of a log, in order."""
    last = np.full(len(log.ids), -1, dtype=np.int64)
    steps = np.array([report.step for report in log.reports])
    first, span = int(steps.min()), int(steps.max() - steps.min()) + 1
    absence, quarter = [], []
    for report in log.reports:
        before = last[report.prompt]
        absence.append(np.where(before < 0, -1, np.maximum(report.step - before, 0)))
        quarter.append(np.full(len(report.prompt), 1 + 4 * (report.step - first) // span))
        last[report.prompt] = np.maximum(before, report.step)
    successes = np.concatenate([report.successes for report in log.reports])
    trials = np.concatenate([report.trials for report in log.reports])
    return History(
        prompt=np.concatenate([report.prompt for report in log.reports]).astype(np.int64),
        measured=Measured(successes, trials),
        absence=np.concatenate(absence),
        quarter=np.concatenate(quarter),
        unselected=np.concatenate([report.uniform for report in log.reports]),
    )


def predictors(log: ReplayLog, questions: Questions, adapter: Adapter | None) -> list[Predictor]:
    """Every way of predicting that the log allows, none of which has seen anything yet."""
    features = questions.features
    found: list[Predictor] = [RunningMean(len(log.ids))]

    def service(name: str, estimator: str, trained: Adapter | None = None, population: str | None = None) -> None:
        fresh = fresh_estimator(estimator, _REFERENCES, trained)
        found.append(ServicePredictor(name, fresh, features, population))

    service("tracker", "TRACKER")
    if questions.embedded:
        service("attention, untrained", "ATTENTION")
        if adapter is not None:
            service("attention, trained", "ATTENTION", adapter)
    ridge = RidgePredictor(questions)
    if ridge.possible:
        found.append(ridge)
    service(FUSED, "FUSED", population="population only")
    if adapter is not None:
        service("fused, adapter", "FUSED", adapter)
    if any(np.isfinite(report.recorded).any() for report in log.reports):
        found.append(Recorded())
    return found


def follow(
    log: ReplayLog, ways: Sequence[Predictor], hidden: np.ndarray, progress: Callable[[str], None]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By row, pass rate and standard error (NaN = none) of every visit, (V,) each; hidden prompts are never shown."""
    rates: dict[str, list[np.ndarray]] = {}
    errors: dict[str, list[np.ndarray]] = {}
    for report in log.reports:
        progress(f"step {report.step}")
        visible = _take(report, ~hidden[report.prompt])
        for predictor in ways:
            for row, (rate, error) in predictor.predict(report).items():
                rates.setdefault(row, []).append(rate)
                errors.setdefault(row, []).append(np.full(len(rate), np.nan) if error is None else error)
            if len(visible.prompt):
                predictor.observe(visible)
    return {row: (np.concatenate(rates[row]), np.concatenate(errors[row])) for row in rates}


def _take(report: Report, kept: np.ndarray) -> Report:
    return Report(
        step=report.step,
        reference=report.reference,
        prompt=report.prompt[kept],
        trials=report.trials[kept],
        successes=report.successes[kept],
        uniform=report.uniform[kept],
        recorded=report.recorded[kept],
    )


def _figures(row: str, stage: str, rate: np.ndarray, error: np.ndarray, measured: Measured) -> StageFigures:
    beta = None
    if np.isfinite(error).all():
        size = len(rate)
        basis = np.full(size, Basis.OWN, dtype=np.uint8)
        beta = Estimate(0, 1.0 - rate, error, np.zeros(size), basis, rate).beta()
    return StageFigures(row, stage, int(measured.trials.sum()), accuracy(rate, measured, beta))
