"""From a request to a batch: who can be chosen now, how many, and what is said about those who are missing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from selector.config import RunConfig
from selector.estimates import Answer
from selector.events import TRAIN, SelectionEvent, SelectionFacts
from selector.neighbours.groups import of_any_member, one_each
from selector.noise import noise_key, uniforms
from selector.open_selections import NEVER
from selector.pool import Pool
from selector.requests import Batch, SelectRequest
from selector.selection.choose import Window, choose_reference, choose_train
from selector.selection.part import Candidates
from selector.state import RunState

# ShortfallReason of the protocol.
POOL_TOO_SMALL, EXCLUDED, LEASED, COOLING_DOWN = 1, 2, 3, 4


def replay_share(config: RunConfig, allowed: float, request: SelectRequest) -> int:
    """Groups of the batch that replay should fill, if the buffer can.

    Args:
        allowed: part of what the configuration says, see ``RunState.replay_allowed``.
    """
    if request.purpose != TRAIN or request.fresh_only or request.round > 0:
        return 0
    # 1e-9 forgives a product such as 0.9 x 10 that comes out a hair below the integer.
    share = int((1.0 - config.replay.fresh_fraction) * request.batch_size + 1e-9)
    # Without a single group there would be nothing to measure, and so no way back.
    return min(share, max(int(allowed * share), 1))


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

    Twins (``selector.neighbours.twins``) are one question under several ids. A lease and the cool-down of one hold all
    of them, and before anything is chosen, each group's eligible prompts draw the one that stands for them: a batch
    never holds two. The reported probability is that of the draw times that of being chosen.

    Args:
        excluded: indices of prompts that must not be chosen.
        answer: the estimate of the whole pool.
        replay_groups: groups of the batch that replay fills.
    """
    step, training = request.step, request.purpose == TRAIN
    active = pool.active()
    first = pool.first_twins()
    leased = state.leased(step)
    if training:
        # A further round of a step is for other prompts, reported or not.
        leased = leased | (state.last_selected == step)
    held = {EXCLUDED: np.zeros(len(pool), dtype=bool), LEASED: of_any_member(leased, first)}
    held[EXCLUDED][excluded] = True
    eligible = active & ~held[EXCLUDED] & ~held[LEASED]
    window = reference_window(config, state, step) if training else None
    drawn_from = None
    if first is not None:
        # Within a window the same prompt stands for its group, as its noise stays the same.
        key = ("twin", step, request.round) if window is None else ("twin", window.start)
        eligible, drawn_from = one_each(eligible, first, uniforms(noise_key(config.seed, *key), 0, len(pool)))
    if training:
        count = request.batch_size - replay_groups
        cooling = state.cooling(step)
        if window is not None:
            cooling = cooling | (state.last_selected >= window.start)
        cooling = of_any_member(cooling, first)
        if config.strict_cool_down:
            held[COOLING_DOWN] = of_any_member(state.cooling(step), first)
        candidates = Candidates(eligible, cooling, state.last_selected)
        choice = choose_train(config, answer.estimate, candidates, count, step, request.round, window)
    else:
        count = request.batch_size or config.reference.size
        choice = choose_reference(config, eligible, count, step, request.round)

    shortfall = count - len(choice.prompt)
    reason = _shortfall_reason(count, active, choice.prompt, held, first) if shortfall else 0
    estimate, at = answer.estimate, choice.prompt
    probability = choice.probability if drawn_from is None else choice.probability / drawn_from[at]
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
        probability=probability,
        arm=choice.arm,
        facts=facts,
    )


def batch_of(pool: Pool, event: SelectionEvent, shard_index: int, shard_count: int) -> Batch:
    """One shard of a selection; over all shards every figure adds up to the whole."""
    part = slice(shard_index, None, shard_count)
    facts = event.facts
    shortfall = shard_share(facts.shortfall, shard_index, shard_count)
    return Batch(
        prompt_ids=list(map(pool.prompt_ids.__getitem__, event.prompt[part].tolist())),
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


def _shortfall_reason(
    wanted: int, active: np.ndarray, chosen: np.ndarray, held: Mapping[int, np.ndarray], first: np.ndarray | None
) -> int:
    """What holds most of the active prompts back that were not chosen; twins count as one prompt."""
    missing = active.copy()
    missing[chosen] = False
    if first is not None:
        # Those whose twin was chosen could not have been.
        missing &= ~np.isin(first, first[chosen])
        groups = np.unique(first[active])
    else:
        groups = np.flatnonzero(active)
    counts = {reason: int((missing & mask).sum()) for reason, mask in held.items()}
    if len(groups) < wanted or not any(counts.values()):
        return POOL_TOO_SMALL
    return max(counts, key=lambda reason: counts[reason])
