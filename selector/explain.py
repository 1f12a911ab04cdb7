"""One prompt of a run, explained: what happened to it, what is predicted and why, and why it was not selected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE
from selector.errors import ServiceError
from selector.events import REPORT, SELECTION, ReportEvent, SelectionEvent
from selector.open_selections import NEVER
from selector.pool import ACTIVE, INELIGIBLE, RETIRED
from selector.run import Run
from selector.selection.scores import log_weights
from selector.v1.reasons import Reason

_STRONGEST = 10


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
class Explanation:
    """Everything known about a prompt; fields as in ExplainPromptResponse."""

    prompt_id: str
    status: int
    status_reason: str
    predicted_difficulty: float
    standard_error: float
    basis: int
    own_weight: float
    references: list[tuple[str, float, float]]
    outcomes: list[OutcomeRecord]
    selections: list[SelectionRecord]
    not_selected_because: str
    score_rank: int
    domain: str
    text: str


def explain(run: Run, prompt_id: str, limit: int) -> Explanation:
    """Explain a prompt; the newest ``limit`` records of each kind, oldest first."""
    at = run.pool.index.get(prompt_id)
    if at is None:
        raise ServiceError(
            Reason.PROMPT_NOT_FOUND,
            f"prompt_id: there is no prompt {prompt_id!r} in run {run.row.run_id!r}",
            metadata={"prompt_id": prompt_id},
        )
    step = max(run.state.last_step, 0)
    estimate = run.estimate(step).estimate
    references = run.state.estimator.references(run.features(), step, at, _STRONGEST)
    outcomes = [record for index, record in outcome_records(run) if index == at]
    selections = [record for index, record in selection_records(run) if index == at]
    rank = _rank(run, at)
    return Explanation(
        prompt_id=prompt_id,
        status=int(run.pool.status[at]),
        status_reason=run.pool.status_reasons[at],
        predicted_difficulty=float(estimate.difficulty[at]),
        standard_error=float(estimate.standard_error[at]),
        basis=int(estimate.basis[at]),
        own_weight=float(estimate.own_weight[at]),
        references=[(run.pool.prompt_ids[i], weight, difficulty) for i, weight, difficulty in references],
        outcomes=outcomes[-limit:],
        selections=selections[-limit:],
        not_selected_because=_why_not(run, at, rank),
        score_rank=rank,
        domain=run.pool.domain_names[at],
        text=run.pool.texts[at],
    )


def outcome_records(run: Run) -> Iterator[tuple[int, OutcomeRecord]]:
    """(prompt index, record) of every reported group that counted, in order."""
    for row in run.store.events(run.row.id, [REPORT]):
        event = ReportEvent.from_row(row)
        bounds = event.starts()
        for i, prompt in enumerate(event.prompt):
            outcomes = event.outcomes[bounds[i] : bounds[i + 1]]
            if len(outcomes):
                yield (
                    int(prompt),
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


def selection_records(run: Run) -> Iterator[tuple[int, SelectionRecord]]:
    """(prompt index, record) of every selection, in order."""
    for row in run.store.events(run.row.id, [SELECTION]):
        event = SelectionEvent.from_row(row)
        for i, prompt in enumerate(event.prompt):
            yield (
                int(prompt),
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


def _rank(run: Run, at: int) -> int:
    """Rank of the prompt's score among the active prompts, from 1; 0 when it is not active."""
    active = run.pool.active()
    if not active[at]:
        return 0
    estimate = run.estimate(max(run.state.last_step, 0)).estimate
    # The median draw stands for a Thompson draw: a rank should not change from call to call.
    weights = log_weights(run.config, estimate, np.full(len(active), 0.5))
    return int((weights[active] > weights[at]).sum()) + 1


def _why_not(run: Run, at: int, rank: int) -> str:
    latest = run.state.latest_selection
    if latest is None:
        return "no batch has been selected yet"
    if at in latest.prompt:
        return ""
    status = run.pool.status[at]
    if status == RETIRED:
        return "it is retired"
    if status == INELIGIBLE:
        return f"it is ineligible: {run.pool.status_reasons[at]}"
    if at >= latest.facts.pool_size:
        return "it was registered after the latest selection"
    leased = int(run.state.open.leased_at[at])
    if leased != NEVER and run.state.leased(latest.step)[at]:
        return f"it was selected at step {leased} and has not been reported yet"
    last = int(run.state.last_selected[at])
    if last != NEVER and last < latest.step and latest.step - last <= run.config.cool_down_steps:
        return f"it is cooling down: selected at step {last}, cool_down_steps {run.config.cool_down_steps}"
    active = int((run.pool.status == ACTIVE).sum())
    return f"others ranked higher, or it was excluded by the caller: its score ranks {rank} of {active}"
