"""Which seeds are for what. A seed decides a training's selections, rollouts and minibatches.

Whatever is chosen by looking at results is chosen on the seeds for tuning: the optimiser's settings, and every default
of the service. The seeds for reporting are used for the report, and for nothing that is decided.
"""

from __future__ import annotations

TUNING = range(1000, 1100)
REPORTING = range(0, 100)


def reporting(count: int) -> tuple[int, ...]:
    """The first ``count`` seeds for reporting. Raises ValueError when there are not that many."""
    return _first(REPORTING, count)


def tuning(count: int) -> tuple[int, ...]:
    """The first ``count`` seeds for tuning. Raises ValueError when there are not that many."""
    return _first(TUNING, count)


def _first(seeds: range, count: int) -> tuple[int, ...]:
    if not 1 <= count <= len(seeds):
        raise ValueError(f"seeds: expected 1 to {len(seeds)}, got {count}")
    return tuple(seeds[:count])
