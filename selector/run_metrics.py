"""Everything a run shows to its watchers, read from its state at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from selector.metric_families import AGE_BOUNDS, TIMES_SAMPLED_BOUNDS, ReplayMetrics, RunMetrics
from selector.neighbours.groups import count_twins
from selector.open_selections import NEVER
from selector.pool import ACTIVE, INELIGIBLE, RETIRED
from selector.quality import Distribution
from selector.run import Run

_EVICTED = "evicted_"

SHORTFALL_REASONS = {1: "pool_too_small", 2: "excluded", 3: "leased", 4: "cooling_down", 5: "buffer_too_small"}


def run_metrics(run: Run, last_active: float) -> RunMetrics:
    """Figures of one run; the caller serialises with the run's other calls.

    Args:
        last_active: Unix seconds of the latest call for the run.
    """
    state, pool = run.state, run.pool
    active = pool.active()
    last_selected = state.last_selected[active]
    since = state.last_selection_step - last_selected
    limit = run.config.max_unselected_steps
    training = state.training
    return RunMetrics(
        run_id=run.row.run_id,
        last_active=last_active,
        last_step=state.last_step,
        quality=state.quality.summary(),
        active_prompts=int((pool.status == ACTIVE).sum()),
        retired_prompts=int((pool.status == RETIRED).sum()),
        ineligible_prompts=int((pool.status == INELIGIBLE).sum()),
        coverage=float((last_selected != NEVER).mean()) if len(last_selected) else None,
        # A prompt never selected has waited since before step 0, which NEVER = -1 counts as one more step.
        max_steps_since_selected=int(since.max()) if len(since) and state.selections else 0,
        starved_prompts=int((since > limit).sum()) if limit else 0,
        open_leases=int(np.count_nonzero(state.leased(max(state.last_step, 0)))),
        estimate_age_steps=max(state.last_step, 0) - max(state.evidence_step, 0),
        reference_due=state.reference_due(state.last_selection_step + 1),
        degraded_selections=state.degraded_selections,
        shortfalls={SHORTFALL_REASONS[reason]: count for reason, count in sorted(state.shortfalls.items())},
        dropped_rollouts=state.dropped_rollouts,
        clipped_outcomes=state.clipped_outcomes,
        skipped_rollouts=state.skipped_rollouts,
        late_reports=state.late_reports,
        replay=_replay_metrics(run),
        embedded_prompts=int((pool.embedding_row >= 0).sum()),
        twin_prompts=count_twins(pool.first_twins()),
        largest_domain_share=_largest_domain_share(run),
        replay_allowed=state.replay_allowed,
        effective_sample_size=training.effective_sample_size,
        max_importance_weight=training.max_importance_weight,
        clip_fraction=training.clip_fraction,
    )


def _replay_metrics(run: Run) -> ReplayMetrics:
    stats = run.replay.stats()
    return ReplayMetrics(
        groups=stats.live_groups,
        bytes=stats.live_bytes,
        tombstone_bytes=stats.tombstone_bytes,
        ages=_distribution(stats.ages, AGE_BOUNDS),
        times_sampled=_distribution(stats.times_sampled, TIMES_SAMPLED_BOUNDS),
        pushed_groups=stats.counters.get("stored", 0),
        sampled_groups=stats.counters.get("sampled_groups", 0),
        evictions={
            name.removeprefix(_EVICTED): count for name, count in stats.counters.items() if name.startswith(_EVICTED)
        },
        refusals=dict(run.refused_groups),
    )


def _distribution(counts: Mapping[int, int], bounds: Sequence[float]) -> Distribution:
    values = np.repeat(np.array(list(counts), dtype=np.float64), list(counts.values()))
    return Distribution.of(values, bounds)


def _largest_domain_share(run: Run) -> float | None:
    latest = run.state.latest_selection
    if latest is None or not len(latest.prompt):
        return None
    codes = run.pool.domain_codes()[latest.prompt]
    tagged = codes[codes >= 0]
    return float(np.bincount(tagged).max() / len(codes)) if len(tagged) else None
