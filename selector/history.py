"""What happened to the prompts of a run: reported groups and selections, from the run's events.

Events are read in pages, and nothing is held between them (``RunStore.events``): readers may take their time, and need
not keep the run from changing. What is appended after a reader has begun is left out; a rewind or the end of the run
ends it with HISTORY_CHANGED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE
from selector.errors import ServiceError
from selector.events import REPORT, SELECTION, EventRow, ReportEvent, SelectionEvent
from selector.run import Run
from selector.v1.reasons import Reason


@dataclass(frozen=True)
class OutcomeRecord:
    """One reported group; ``outcomes`` (n,) float64 in [0, 1]."""

    step: int
    purpose: int
    outcomes: np.ndarray
    difficulty: float
    informative: bool
    predicted_difficulty: float
    arm: int


@dataclass(frozen=True)
class SelectionRecord:
    """One selection of a prompt."""

    step: int
    purpose: int
    round: int
    arm: int
    probability: float
    predicted_difficulty: float
    standard_error: float


@dataclass(frozen=True)
class PromptHistory:
    """The newest records of a prompt, oldest first.

    Attributes:
        run, epoch: internal id and rewind epoch of the run that they were read from.
        prompt: index into the pool.
    """

    run: int
    epoch: int
    prompt: int
    outcomes: list[OutcomeRecord]
    selections: list[SelectionRecord]


def prompt_history(run: Run, prompt_id: str, limit: int) -> PromptHistory:
    """The newest ``limit`` records of each kind.

    Raises:
        ServiceError: PROMPT_NOT_FOUND, HISTORY_CHANGED.
    """
    at = run.pool.index.get(prompt_id)
    if at is None:
        raise ServiceError(
            Reason.PROMPT_NOT_FOUND,
            f"prompt_id: there is no prompt {prompt_id!r} in run {run.row.run_id!r}",
            metadata={"prompt_id": prompt_id},
        )
    row = run.row
    outcomes = deque((record for _, record in outcome_records(run, at)), maxlen=limit)
    selections = deque((record for _, record in selection_records(run, at)), maxlen=limit)
    return PromptHistory(row.id, row.rewind_epoch, at, list(outcomes), list(selections))


def outcome_records(run: Run, only: int | None = None) -> Iterator[tuple[int, OutcomeRecord]]:
    """(prompt index, record) of every reported group that counted, in order; of one prompt if ``only`` is set."""
    for row in _events(run, REPORT):
        event = ReportEvent.from_row(row)
        places = np.flatnonzero((event.count > 0) & _wanted(event.prompt, only))
        bounds = event.starts()
        for i in places.tolist():
            outcomes = event.outcomes[bounds[i] : bounds[i + 1]]
            yield (
                int(event.prompt[i]),
                OutcomeRecord(
                    step=event.step,
                    purpose=event.purpose,
                    outcomes=outcomes,
                    difficulty=float(1.0 - outcomes.mean()),
                    informative=bool(np.ptp(outcomes) > INFORMATIVE_TOLERANCE),
                    predicted_difficulty=float(event.predicted[i]),
                    arm=int(event.arm[i]),
                ),
            )


def selection_records(run: Run, only: int | None = None) -> Iterator[tuple[int, SelectionRecord]]:
    """(prompt index, record) of every selection, in order; of one prompt if ``only`` is set."""
    for row in _events(run, SELECTION):
        event = SelectionEvent.from_row(row)
        for i in np.flatnonzero(_wanted(event.prompt, only)).tolist():
            yield (
                int(event.prompt[i]),
                SelectionRecord(
                    step=event.step,
                    purpose=event.purpose,
                    round=event.round,
                    arm=int(event.arm[i]),
                    probability=float(event.probability[i]),
                    predicted_difficulty=float(event.difficulty[i]),
                    standard_error=float(event.standard_error[i]),
                ),
            )


def _events(run: Run, kind: str) -> Iterator[EventRow]:
    row, next_seq = run.row, run.state.next_seq
    return run.store.events(row.id, [kind], before_seq=next_seq, epoch=row.rewind_epoch)


def _wanted(prompts: np.ndarray, only: int | None) -> np.ndarray:
    return np.ones(len(prompts), dtype=bool) if only is None else prompts == only
