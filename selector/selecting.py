"""Selections of a run: chosen once for a step, purpose and round, written down, and given to whoever asks again.

The caller serialises all calls on a run, as ``selector.run`` says.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from selector.ahead import Chosen, basis, expected
from selector.batches import batch_of, new_selection, replay_share
from selector.difficulty.estimate import Estimate
from selector.estimates import Answer
from selector.events import TRAIN, SelectionEvent
from selector.refusals import selection_differs
from selector.replay.plans import SampleRequest
from selector.requests import Batch, SelectRequest
from selector.run import Run


def select(run: Run, request: SelectRequest, budget_s: float | None) -> Batch:
    """Select a batch, or return the one already selected for the same (step, purpose, round).

    Args:
        budget_s: seconds the estimate may take before the last one is used, None = any.
    """
    begun = _begun(run, request)
    if isinstance(begun, Batch):
        return begun
    return _chosen(run, request, begun, run.estimate(request.step, budget_s))


def select_unless_waiting(run: Run, request: SelectRequest) -> Batch | Future[Estimate]:
    """The same if the estimate is there; else what has to be waited for first, see ``Run.estimate_awaits``."""
    begun = _begun(run, request)
    if isinstance(begun, Batch):
        return begun
    if (awaited := run.estimate_awaits(request.step)) is not None:
        return awaited
    return _chosen(run, request, begun, run.estimate(request.step, 0.0))


def look_ahead(run: Run) -> Future[Estimate] | Batch | None:
    """Choose the next step's batch, if it can be told what that is; see ``selector.ahead``.

    Returns:
        What has to be waited for first, before it is tried again; or the batch that is held from now on; None = there
        was nothing to do.
    """
    run.reconcile()
    request = expected(run.config, run.state)
    if request is None:
        return None
    replay_groups = _replay_groups(run, request)
    of = basis(run.state, run.changes, run.pool, request, replay_groups)
    if of is None or run.ahead.has(of):
        return None
    if (awaited := run.estimate_awaits(request.step)) is not None:
        return awaited
    answer = run.estimate(request.step, 0.0)
    if answer.degraded:
        return None
    none = np.zeros(0, dtype=np.int64)
    chosen = Chosen.of(run.pool, new_selection(run.config, run.state, run.pool, request, none, answer, replay_groups))
    run.ahead.hold(of, chosen)
    return chosen.batch


@dataclass(frozen=True)
class _Open:
    """What is still to be chosen: indices (n,) of prompts that must not be, and groups that replay fills."""

    excluded: np.ndarray
    replay_groups: int


def _begun(run: Run, request: SelectRequest) -> Batch | _Open:
    """The batch if it has been chosen already."""
    run.reconcile()
    run.answered.check(request.key)
    event = _selected(run, request)
    if event is not None:
        if event.fingerprint != request.key.fingerprint:
            raise selection_differs(request, event)
        whole = run.latest.batch if run.latest is not None and run.latest.event is event else None
        return _part(run, request, event, whole)
    replay_groups = _replay_groups(run, request)
    chosen = run.ahead.take(basis(run.state, run.changes, run.pool, request, replay_groups))
    if chosen is not None:
        return _handed_out(run, request, chosen.for_request(run.state.next_seq, request.key))
    return _Open(run.indices(request.exclude_prompt_ids, "exclude_prompt_ids"), replay_groups)


def _chosen(run: Run, request: SelectRequest, begun: _Open, answer: Answer) -> Batch:
    groups = begun.replay_groups
    event = new_selection(run.config, run.state, run.pool, request, begun.excluded, answer, groups)
    return _handed_out(run, request, Chosen.of(run.pool, event))


def _handed_out(run: Run, request: SelectRequest, chosen: Chosen) -> Batch:
    event = chosen.event
    # Where nothing could be handed out nothing is recorded: the step is free for when prompts are registered.
    if len(event.prompt) or event.facts.replay_groups or run.pool.active().any():
        with run.store.transaction() as tx:
            tx.append_event(run.row.id, chosen.row)
            run.answered.remember(tx, request.key, None, request.step)
        run.apply(event)
        if event.purpose == TRAIN:
            run.latest = chosen
    return _part(run, request, event, chosen.batch)


def _part(run: Run, request: SelectRequest, event: SelectionEvent, whole: Batch | None) -> Batch:
    """The caller's shard of a selection; ``whole`` = all of it, if that is at hand."""
    if request.shard_count == 1 and whole is not None:
        return whole
    return batch_of(run.pool, event, request.shard_index, request.shard_count)


def _replay_groups(run: Run, request: SelectRequest) -> int:
    """Groups that replay fills: its share of the batch, or none, if the buffer cannot fill all of that."""
    share = replay_share(run.config, run.state.replay_allowed, request)
    if share and run.replay.eligible_count(SampleRequest(request.step, share)) < share:
        return 0
    return share


def _selected(run: Run, request: SelectRequest) -> SelectionEvent | None:
    """The selection that was answered for the same (step, purpose, round)."""
    latest = run.state.latest_selection
    key = (request.step, request.purpose, request.round)
    if latest is not None and (latest.step, latest.purpose, latest.round) == key:
        return latest
    if request.purpose == TRAIN and request.step > run.state.last_selection_step:
        return None
    row = run.store.find_selection(run.row.id, *key)
    return None if row is None else SelectionEvent.from_row(row)
