"""From raw outcomes to outcomes in [0, 1]: what counts, what is left out, and what is refused.

Status codes are those of RolloutStatus. ABORTED and UNSCORABLE rollouts are left out; NaN and infinite outcomes are
refused or dropped as the run says; the rest is mapped linearly from outcome_range to [0, 1], outside of which it is
refused or clipped as the run says. Reported outcomes and those of replayed groups obey the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.config import RunConfig
from selector.errors import FieldViolation

ABORTED, UNSCORABLE = 3, 4


@dataclass(frozen=True)
class OutcomeRules:
    """What a run says about raw outcomes.

    Attributes:
        outcome_range: raw outcomes mapped to 0 and 1.
        clip_outcomes: outcomes outside the range are clipped instead of refused.
        drop_nan: a rollout with a NaN or infinite outcome does not count, instead of being refused.
    """

    outcome_range: tuple[float, float] = (0.0, 1.0)
    clip_outcomes: bool = False
    drop_nan: bool = False


@dataclass(frozen=True)
class MappedOutcomes:
    """Outcomes that count, (n,) float64 in [0, 1], and how many were left out or clipped."""

    outcomes: np.ndarray
    skipped: int
    dropped: int
    clipped: int


def map_outcomes(
    config: RunConfig, raw: np.ndarray, statuses: np.ndarray, path: str
) -> MappedOutcomes | FieldViolation:
    """``map_by_rules`` with the rules of a run's configuration."""
    rules = OutcomeRules(config.outcome_range, config.clip_outcomes, config.on_nan == "DROP_ROLLOUT")
    return map_by_rules(rules, raw, statuses, path)


def map_by_rules(
    rules: OutcomeRules, raw: np.ndarray, statuses: np.ndarray, path: str
) -> MappedOutcomes | FieldViolation:
    """Map one group's outcomes, or say which one is wrong.

    Args:
        raw: (n,) float64.
        statuses: (n,) integers, or empty.
        path: field path of the outcomes, for the violation.
    """
    low, high = rules.outcome_range
    positions: np.ndarray | None = None
    if len(statuses):
        positions = np.flatnonzero((statuses != ABORTED) & (statuses != UNSCORABLE))
        raw = raw[positions]
    skipped = len(statuses) - len(raw) if len(statuses) else 0
    # Mostly all is well, which takes two looks; a NaN makes both extremes NaN, which compare false.
    if len(raw) and raw.min() >= low and raw.max() <= high:
        return MappedOutcomes((raw - low) / (high - low), skipped, 0, 0)
    if positions is None:
        positions = np.arange(len(raw))

    finite = np.isfinite(raw)
    dropped = int(len(raw) - finite.sum())
    if dropped and not rules.drop_nan:
        at = int(np.argmin(finite))
        return FieldViolation(f"{path}[{positions[at]}]", f"expected a finite outcome; got {raw[at]}")
    raw, positions = raw[finite], positions[finite]

    outside = (raw < low) | (raw > high)
    clipped = int(outside.sum())
    if clipped and not rules.clip_outcomes:
        at = int(np.argmax(outside))
        return FieldViolation(
            f"{path}[{positions[at]}]", f"expected an outcome in outcome_range [{low:g}, {high:g}]; got {raw[at]:g}"
        )
    return MappedOutcomes((np.clip(raw, low, high) - low) / (high - low), skipped, dropped, clipped)
