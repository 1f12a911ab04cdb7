"""Runs with a recorded history, made by folding real reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selector.metric_families import AGE_BOUNDS, TIMES_SAMPLED_BOUNDS, ReplayMetrics, RunMetrics
from selector.quality import Distribution, QualityWindow

UNSPECIFIED, TARGETED, UNIFORM, REVIEW = range(4)


@dataclass(frozen=True)
class Group:
    """One group as reported: outcomes in [0, 1] that counted."""

    outcomes: Sequence[float]
    arm: int = TARGETED
    predicted: float = math.nan


@dataclass(frozen=True)
class Report:
    """One report: groups by prompt."""

    step: int
    groups: Mapping[int, Group] = field(default_factory=dict)
    reference: bool = False


def fold(window: QualityWindow, report: Report) -> None:
    """Fold a report, groups in the order given."""
    groups = report.groups.values()
    window.observe(
        step=report.step,
        reference=report.reference,
        prompt=np.array(list(report.groups), dtype=np.int32),
        arm=np.array([g.arm for g in groups], dtype=np.uint8),
        predicted=np.array([g.predicted for g in groups], dtype=np.float64),
        trials=np.array([len(g.outcomes) for g in groups], dtype=np.float64),
        successes=np.array([sum(g.outcomes) for g in groups], dtype=np.float64),
        minimum=np.array([min(g.outcomes, default=0.0) for g in groups], dtype=np.float64),
        maximum=np.array([max(g.outcomes, default=0.0) for g in groups], dtype=np.float64),
    )


def folded(reports: Sequence[Report], capacity_groups: int = 4096) -> QualityWindow:
    """A window with all reports folded."""
    window = QualityWindow(capacity_groups)
    for report in reports:
        fold(window, report)
    return window


def training_history(seed: int, steps: int = 20, group_size: int = 8) -> list[Report]:
    """A run whose targeted prompts are near difficulty 1/2 and whose uniform and reference draws are of all kinds."""
    rng = np.random.Generator(np.random.Philox(seed))
    rates = rng.beta(0.4, 0.4, size=400)
    mixed = np.flatnonzero((rates > 0.25) & (rates < 0.75))
    reports = []
    for step in range(steps):
        targeted = rng.choice(mixed, 24, replace=False)
        uniform = rng.choice(np.setdiff1d(np.arange(400), targeted), 8, replace=False)
        groups = {
            int(q): Group(
                rng.binomial(1, rates[q], group_size).astype(float).tolist(),
                TARGETED if i < len(targeted) else UNIFORM,
                float(np.clip(1 - rates[q] + rng.normal(0, 0.1), 0, 1)),
            )
            for i, q in enumerate([*targeted, *uniform])
        }
        reports.append(Report(step, groups))
        if step % 5 == 0:
            drawn = rng.choice(400, 16, replace=False)
            references = {int(q): Group(rng.binomial(1, rates[q], group_size).astype(float).tolist()) for q in drawn}
            reports.append(Report(step, references, reference=True))
    return reports


def run_metrics(run_id: str, reports: Sequence[Report] = (), **changes: object) -> RunMetrics:
    """What a run with these reports exposes; ``changes`` replaces single fields."""
    last_step = max((r.step for r in reports), default=-1)
    fields: dict[str, object] = {
        "run_id": run_id,
        "last_active": 1.7e9 + last_step,
        "last_step": last_step,
        "quality": folded(reports).summary(),
        "active_prompts": 380,
        "retired_prompts": 15,
        "ineligible_prompts": 5,
        "coverage": 0.75,
        "max_steps_since_selected": 12,
        "starved_prompts": 3,
        "open_leases": 7,
        "estimate_age_steps": 1,
        "reference_due": False,
        "degraded_selections": 2,
        "dropped_rollouts": 1,
        "clipped_outcomes": 4,
        "skipped_rollouts": 6,
        "late_reports": 9,
        "shortfalls": {"leased": 5, "pool_too_small": 1},
        "embedded_prompts": 390,
        "largest_domain_share": 0.25,
        "effective_sample_size": 0.7,
        "max_importance_weight": 3.5,
        "clip_fraction": 0.01,
        "replay": ReplayMetrics(
            groups=5,
            bytes=12_345,
            tombstone_bytes=678,
            ages=Distribution.of(np.array([0, 1, 3, 4, 100]), AGE_BOUNDS),
            times_sampled=Distribution.of(np.array([0, 0, 0, 2, 7]), TIMES_SAMPLED_BOUNDS),
            pushed_groups=40,
            sampled_groups=21,
            evictions={"capacity": 30, "age": 5},
            refusals={"positive_log_prob": 2},
        ),
    }
    return RunMetrics(**{**fields, **changes})  # type: ignore[arg-type]
