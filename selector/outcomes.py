"""From raw outcomes to outcomes in [0, 1]: what counts, what is left out, and what is refused.

Status codes are those of RolloutStatus. ABORTED and UNSCORABLE rollouts are left out; NaN and infinite outcomes are
refused or dropped as the run says; the rest is mapped linearly from outcome_range to [0, 1], outside of which it is
refused or clipped as the run says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.config import RunConfig
from selector.errors import FieldViolation

ABORTED, UNSCORABLE = 3, 4


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
    """Map one group's outcomes, or say which one is wrong.

    Args:
        raw: (n,) float64.
        statuses: (n,) uint8, or empty.
        path: field path of the outcomes, for the violation.
    """
    low, high = config.outcome_range
    positions = np.arange(len(raw))
    if len(statuses):
        counts = (statuses != ABORTED) & (statuses != UNSCORABLE)
        raw, positions = raw[counts], positions[counts]
    skipped = len(statuses) - len(raw) if len(statuses) else 0

    finite = np.isfinite(raw)
    dropped = int(len(raw) - finite.sum())
    if dropped and config.on_nan == "REJECT":
        at = int(np.flatnonzero(~finite)[0])
        return FieldViolation(f"{path}[{positions[at]}]", f"expected a finite outcome; got {raw[at]}")
    raw, positions = raw[finite], positions[finite]

    outside = (raw < low) | (raw > high)
    clipped = int(outside.sum())
    if clipped and not config.clip_outcomes:
        at = int(np.flatnonzero(outside)[0])
        return FieldViolation(
            f"{path}[{positions[at]}]", f"expected an outcome in outcome_range [{low:g}, {high:g}]; got {raw[at]:g}"
        )
    return MappedOutcomes((np.clip(raw, low, high) - low) / (high - low), skipped, dropped, clipped)
