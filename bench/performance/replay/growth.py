"""How the cost of ours grows with the length of rollouts and with callers at once."""

from __future__ import annotations

from bench.performance.figures import Figure
from bench.performance.replay.serving import Settings


def growth(settings: Settings, rounds: int, *, quick: bool) -> list[Figure]:
    """Figures of ours."""
    return []
