"""From a request to a batch: who can be chosen now, how many, and what is said about those who are missing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from selector.config import RunConfig
from selector.estimates import Answer
from selector.events import TRAIN, SelectionEvent, SelectionFacts
from selector.open_selections import NEVER
from selector.pool import Pool
from selector.requests import Batch, SelectRequest
from selector.selection.choose import Candidates, Window, choose_reference, choose_train
from selector.state import RunState

# ShortfallReason of the protocol.
POOL_TOO_SMALL, EXCLUDED, LEASED, COOLING_DOWN = 1, 2, 3, 4


def replay_share(config: RunConfig, request: SelectRequest) -> int:
    """Groups of the batch that replay should fill, if the buffer can."""
    if request.purpose != TRAIN or request.fresh_only or request.round > 0:
        return 0
    # 1e-9 forgives a product such as 0.9 x 10 that comes out a hair below the integer.
    return int((1.0 - config.replay.fresh_fraction) * request.batch_size + 1e-9)


def new_selection(
    config: RunConfig,
    state: RunState,
    pool: Pool,
    request: SelectRequest,
    excluded: np.ndarray,
    answer: Answer,
    replay_groups: int,
) -> SelectionEvent:
    """Choose a batch; nothing changes.

    Args:
        excluded: indices of prompts that must not be chosen.
        answer: the estimate of the whole pool.
        replay_groups: groups of the batch that replay fills.
    """
    step, training = request.step, request.purpose == TRAIN
    active = pool.active()
    held = {EXCLUDED: np.zeros(len(pool), dtype=bool), LEASED: state.leased(step)}
    held[EXCLUDED][excluded] = True
    if training:
        # A further round of a step is for other prompts, reported or not.
        held[LEASED] |= state.last_selected == step
    eligible = active & ~held[EXCLUDED] & ~held[LEASED]
    if training:
        count = request.batch_size - replay_groups
        window = reference_window(config, state, step)
        cooling = state.cooling(step)
        if config.strict_cool_down:
            held[COOLING_DOWN] = cooling
        if window is not None:
            cooling = cooling | (state.last_selected >= window.start)
        candidates = Candidates(eligible, cooling, state.last_selected)
        choice = choose_train(config, answer.estimate, candidates, count, step, request.round, window)
    else:
        count = request.batch_size or config.reference.size
        choice = choose_reference(config, eligible, count, step, request.round)

    shortfall = count - len(choice.prompt)
    missing = active.copy()
    missing[choice.prompt] = False
    reason = _shortfall_reason(count, active, missing, held) if shortfall else 0
    estimate, at = answer.estimate, choice.prompt
    facts = SelectionFacts(
        batch_size=count + replay_groups,
        replay_groups=replay_groups,
        shortfall=shortfall,
        shortfall_reason=reason,
        reference_due=state.reference_due(step + 1),
        estimate_step=estimate.step,
        degraded=answer.degraded,
        pool_size=len(pool),
    )
    return SelectionEvent(
        seq=state.next_seq,
        step=step,
        purpose=request.purpose,
        round=request.round,
        fingerprint=request.key.fingerprint,
        prompt=at.astype(np.int32),
        rollouts=np.full(len(at), config.group_size, dtype=np.int32),
        difficulty=estimate.difficulty[at],
        standard_error=estimate.standard_error[at],
        population=estimate.population[at],
        probability=choice.probability,
        arm=choice.arm,
        facts=facts,
    )


def batch_of(pool: Pool, event: SelectionEvent, shard_index: int, shard_count: int) -> Batch:
    """One shard of a selection; over all shards every figure adds up to the whole."""
    part = slice(shard_index, None, shard_count)
    facts = event.facts
    shortfall = shard_share(facts.shortfall, shard_index, shard_count)
    return Batch(
        prompt_ids=[pool.prompt_ids[i] for i in event.prompt[part]],
        difficulty=event.difficulty[part],
        standard_error=event.standard_error[part],
        probability=event.probability[part],
        arm=event.arm[part],
        rollouts=event.rollouts[part],
        replay_groups=shard_share(facts.replay_groups, shard_index, shard_count),
        shortfall=shortfall,
        shortfall_reason=facts.shortfall_reason if shortfall else 0,
        reference_due=facts.reference_due,
        estimate_step=facts.estimate_step,
        degraded=facts.degraded,
    )


def reference_window(config: RunConfig, state: RunState, step: int) -> Window | None:
    """The paper's selection window: ``every_steps`` steps from a reference pass, or from where one is overdue."""
    start = state.last_reference_step
    if config.reference.mode != "DEDICATED" or start == NEVER:
        return None
    every = config.reference.every_steps
    into = (step - start) % every
    return Window(max(step - into, 0), every - into)


def shard_share(total: int, index: int, count: int) -> int:
    """One shard's part of a number; over all shards the parts add up to it."""
    return total // count + (index < total % count)


def _shortfall_reason(wanted: int, active: np.ndarray, missing: np.ndarray, held: Mapping[int, np.ndarray]) -> int:
    """What holds most of the active prompts back that were not chosen."""
    counts = {reason: int((missing & mask).sum()) for reason, mask in held.items()}
    if int(active.sum()) < wanted or not any(counts.values()):
        return POOL_TOO_SMALL
    return max(counts, key=lambda reason: counts[reason])
