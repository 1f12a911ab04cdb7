"""Every row on every draw of references, judged on the questions that were none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.evaluation.draws import counts, draw_references
from selector.evaluation.figures import Accuracy, Measured, accuracy
from selector.evaluation.picks import Picks, picks
from selector.evaluation.questions import Questions
from selector.evaluation.rates import ModelRates
from selector.evaluation.rows import Row, rows_for

FEWEST_QUESTIONS = 10
FEWEST_UNSEEN = 5


@dataclass(frozen=True)
class Plan:
    """What to evaluate.

    Attributes:
        references: K, at least one; at least ``FEWEST_UNSEEN`` questions stay unseen.
        draws: of references, > 0.
        seed: of the draws.
        config: of the run that the service would have; its group size, target and score count.
        batch: prompts picked at a time.
    """

    references: int
    draws: int
    seed: int
    config: RunConfig
    batch: int


@dataclass(frozen=True)
class Record:
    """One row on one draw.

    Attributes:
        predicted: (M,) pass rates of the unseen questions.
        measured: (M,) what was measured of them.
        seconds: of fitting and predicting.
    """

    row: str
    draw: int
    accuracy: Accuracy
    picks: Picks
    predicted: np.ndarray
    measured: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Summary:
    """One row over all draws: mean and standard deviation of each figure, None where it is undefined in all draws.

    A correlation that is undefined in some draws only counts as 0 there.
    """

    row: str
    control: bool
    prior: bool
    mean: dict[str, float | None]
    spread: dict[str, float | None]
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """All rows in the order of the table, and all records."""

    summaries: tuple[Summary, ...]
    records: tuple[Record, ...]

    def of(self, row: str) -> Summary | None:
        """A row by name, if there is one."""
        return next((summary for summary in self.summaries if summary.row == row), None)


FIGURES = (*(field.name for field in fields(Accuracy) if field.name != "questions"), "in_band", "informative")
"""Names of the figures of a summary."""


def evaluate(
    plan: Plan,
    questions: Questions,
    model: ModelRates,
    adapter: Adapter | None,
    progress: Callable[[str], None],
    only: Collection[str] | None = None,
) -> Evaluation:
    """Evaluate all rows, or those with a name in ``only``.

    Args:
        questions: those that the model was run on, all N of them.
        model: their measured rates, (N,).
        progress: called with a row's name when it begins on a draw; see ``work``.
    """
    measured = Measured(counts(model.rate, model.trials), model.trials)
    rows = [row for row in rows_for(questions, measured, plan.references, adapter) if only is None or row.name in only]
    records: list[Record] = []
    for number in range(plan.draws):
        draw = draw_references(model.rate, model.trials, plan.references, plan.config.group_size, plan.seed, number)
        unseen = measured.take(draw.unseen)
        count = min(plan.batch, max(1, len(draw.unseen) // 2))
        for row in rows:
            progress(row.name)
            began = time.perf_counter()
            estimate = row.predict(draw)
            seconds = time.perf_counter() - began
            predicted = 1.0 - estimate.difficulty[draw.unseen]
            a, b = estimate.beta()
            interval = (a[draw.unseen], b[draw.unseen]) if row.has_interval else None
            records.append(
                Record(
                    row=row.name,
                    draw=number,
                    accuracy=accuracy(predicted, unseen, interval),
                    picks=picks(plan.config, estimate, draw.unseen, measured, count, number),
                    predicted=predicted,
                    measured=unseen.rate,
                    seconds=seconds,
                )
            )
    return Evaluation(tuple(_summary(row, records) for row in rows), tuple(records))


def work(plan: Plan, questions: Questions, adapter: Adapter | None) -> int:
    """How often ``progress`` will be called."""
    nothing = Measured(np.zeros(questions.features.size), np.ones(questions.features.size))
    return plan.draws * len(rows_for(questions, nothing, plan.references, adapter))


def figures(record: Record) -> dict[str, float | None]:
    """The figures of a record by name, in the order of ``FIGURES``."""
    found = {name: getattr(record.accuracy, name) for name in FIGURES if hasattr(record.accuracy, name)}
    return {**found, "in_band": record.picks.in_band, "informative": record.picks.informative}


def _summary(row: Row, records: Sequence[Record]) -> Summary:
    own = [record for record in records if record.row == row.name]
    columns = {name: [figures(record)[name] for record in own] for name in FIGURES}
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    for name in ("pearson", "spearman"):
        # A draw after which all predictions are equal tells nothing apart: leaving it out would flatter the row.
        if known[name]:
            known[name] += [0.0] * (len(own) - len(known[name]))
    return Summary(
        row=row.name,
        control=row.control,
        prior=row.prior,
        mean={name: float(np.mean(values)) if values else None for name, values in known.items()},
        spread={name: float(np.std(values, ddof=1)) if len(values) > 1 else None for name, values in known.items()},
        seconds=float(np.mean([record.seconds for record in own])),
    )
