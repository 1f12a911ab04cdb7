"""Runs as messages."""

from __future__ import annotations

import numpy as np

from selector.open_selections import NEVER
from selector.pool import ACTIVE, INELIGIBLE, RETIRED
from selector.run import Run
from selector.service.config_messages import config_message
from selector.v1 import run_pb2


def run_message(run: Run) -> run_pb2.Run:
    """Config, counts, last step and state of a run."""
    state, pool = run.state, run.pool
    active = pool.active()
    step = max(state.last_step, 0)
    replay = run.replay.stats()
    space = run.row.space
    return run_pb2.Run(
        run_id=run.row.run_id,
        config=config_message(run.config),
        state=run_pb2.RUN_STATE_READY if active.any() else run_pb2.RUN_STATE_EMPTY,
        pool=run_pb2.PoolCounts(
            registered=len(pool),
            active=int(active.sum()),
            retired=int((pool.status == RETIRED).sum()),
            ineligible=int((pool.status == INELIGIBLE).sum()),
            selected=int((state.last_selected != NEVER).sum()),
            never_selected=int(((state.last_selected == NEVER) & (pool.status == ACTIVE)).sum()),
            leased=int(np.count_nonzero(state.leased(step))),
            registered_after_start=len(pool) - (state.pool_size_at_start or len(pool)),
            replaced=len(state.replaced),
        ),
        last_step=state.last_step,
        selections=state.selections,
        outcome_groups=state.outcome_groups,
        outcome_rollouts=state.outcome_rollouts,
        replay_groups=replay.live_groups,
        replay_bytes=replay.live_bytes,
        reference_due=state.reference_due(state.last_selection_step + 1),
        created_unix_seconds=run.row.created,
        forked_from=run.row.forked_from,
        forked_at_step=run.row.forked_at,
        encoder="client" if space.startswith("client ") else space,
        embedding_width=run.row.width,
    )
