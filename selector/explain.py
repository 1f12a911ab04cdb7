"""One prompt of a run, explained: what happened to it, what is predicted and why, and why it was not selected."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from selector.batches import reference_window
from selector.difficulty.estimate import Estimate
from selector.events import SelectionEvent
from selector.history import OutcomeRecord, PromptHistory, SelectionRecord
from selector.neighbours.groups import twins_of
from selector.open_selections import NEVER
from selector.pool import ACTIVE, INELIGIBLE, RETIRED
from selector.predictor.predictor import PredictorLost, References
from selector.refusals import predictor_lost
from selector.run import Run
from selector.selection.scores import log_weights
from selector.storage.runs import history_changed


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
    twin_prompt_ids: list[str]


def explain(run: Run, history: PromptHistory, references: Future[References]) -> Explanation:
    """Explain a prompt whose history has been read.

    Args:
        references: ``Run.references`` of it, which is done.

    Raises:
        ServiceError: HISTORY_CHANGED when the run has been rewound or made anew since; STARTING when what computes
            estimates was lost.
    """
    if (run.row.id, run.row.rewind_epoch) != (history.run, history.epoch):
        raise history_changed()
    at = history.prompt
    step = max(run.state.last_step, 0)
    estimate = run.undegraded_estimate(step)
    try:
        strongest = references.result(0)
    except (PredictorLost, TimeoutError) as error:
        raise predictor_lost() from error
    rank = _rank(run, estimate, at)
    return Explanation(
        prompt_id=run.pool.prompt_ids[at],
        status=int(run.pool.status[at]),
        status_reason=run.pool.status_reasons[at],
        predicted_difficulty=float(estimate.difficulty[at]),
        standard_error=float(estimate.standard_error[at]),
        basis=int(estimate.basis[at]),
        own_weight=float(estimate.own_weight[at]),
        references=[(run.pool.prompt_ids[i], weight, difficulty) for i, weight, difficulty in strongest],
        outcomes=history.outcomes,
        selections=history.selections,
        not_selected_because=_why_not(run, at, rank),
        score_rank=rank,
        domain=run.pool.domain_names[at],
        text=run.pool.texts[at],
        twin_prompt_ids=[run.pool.prompt_ids[i] for i in twins_of(run.pool.first_twins(), at)],
    )


def _rank(run: Run, estimate: Estimate, at: int) -> int:
    """Rank of the prompt's score among the active prompts, from 1; 0 when it is not active."""
    active = run.pool.active()
    if not active[at]:
        return 0
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
    twins = twins_of(run.pool.first_twins(), at).tolist()
    chosen = next((i for i in twins if i in latest.prompt), None)
    if chosen is not None:
        return f"its twin {run.pool.prompt_ids[chosen]!r} was in the batch"
    for prompt in [at, *twins]:
        held = _held(run, prompt, latest)
        if held:
            return f"{'it' if prompt == at else f'its twin {run.pool.prompt_ids[prompt]!r}'} {held}"
    active = int((run.pool.status == ACTIVE).sum())
    return f"others ranked higher then, or it was excluded by the caller; by now its score ranks {rank} of {active}"


def _held(run: Run, at: int, latest: SelectionEvent) -> str:
    """What a prompt's own selections held back from the latest one: it, and its twins."""
    leased = int(run.state.open.leased_at[at])
    if leased != NEVER and run.state.leased(latest.step)[at]:
        return f"was selected at step {leased} and has not been reported yet"
    last = int(run.state.last_selected[at])
    if last == latest.step:
        return "was selected in an earlier round of the step"
    window = reference_window(run.config, run.state, latest.step)
    if window is not None and window.start <= last < latest.step:
        return f"was already chosen in this reference window: selected at step {last}"
    if last != NEVER and last < latest.step and latest.step - last <= run.config.cool_down_steps:
        return f"is cooling down: selected at step {last}, cool_down_steps {run.config.cool_down_steps}"
    return ""
