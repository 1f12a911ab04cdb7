"""Estimators by the names a run's configuration uses."""

from __future__ import annotations

from typing import cast

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.attention import AttentionEstimator
from selector.difficulty.estimate import Estimator
from selector.difficulty.fused import AttentionColumn, FusedEstimator
from selector.difficulty.kernel import NUMPY, Kernel
from selector.difficulty.reference_set import ReferenceMode
from selector.difficulty.tracker import TrackerEstimator
from selector.neighbours.search import CPU

ESTIMATORS = ("FUSED", "ATTENTION", "TRACKER")


def make_estimator(
    name: str,
    *,
    adapter: Adapter | None,
    reference_mode: str,
    reference_size: int,
    tracker_decay: float,
    embedding_components: int,
    shortlist: int = 0,
    device: str = CPU,
    kernel: Kernel = NUMPY,
) -> Estimator:
    """A fresh estimator.

    Args:
        name: FUSED, ATTENTION or TRACKER.
        adapter: ATTENTION: None = untrained, layer norm only. FUSED: None = no attention.
        reference_mode: ATTENTION only; IN_BATCH, DEDICATED or NONE.
        reference_size: ATTENTION: K > 0, outside DEDICATED. FUSED with an adapter: K > 0.
        tracker_decay: TRACKER only; in (0, 1].
        embedding_components: FUSED only; >= 0.
        shortlist: ATTENTION only; the most references that a prompt attends to, 0 = all.
        device: where the shortlist is searched for, cpu or cuda.
        kernel: what attention is computed with.

    Raises:
        ValueError: unknown name, or a value out of range.
    """
    if name == "FUSED":
        column = None if adapter is None else AttentionColumn(adapter, reference_size, kernel)
        return FusedEstimator(embedding_components, column)
    if name == "ATTENTION":
        mode = cast(ReferenceMode, reference_mode)
        return AttentionEstimator(adapter, reference_size, mode, shortlist, device, kernel)
    if name == "TRACKER":
        return TrackerEstimator(tracker_decay)
    raise ValueError(f"estimator name must be one of {', '.join(ESTIMATORS)}, got {name!r}")


def estimator_of(config: RunConfig, adapter: Adapter | None, device: str = CPU, kernel: Kernel = NUMPY) -> Estimator:
    """A fresh estimator as a run's configuration has it; ``device`` and ``kernel`` as in ``make_estimator``."""
    return make_estimator(
        config.estimator.name,
        adapter=adapter,
        reference_mode=config.reference.mode,
        reference_size=config.reference.size,
        tracker_decay=config.estimator.tracker_decay,
        embedding_components=config.estimator.embedding_components,
        shortlist=config.estimator.shortlist,
        device=device,
        kernel=kernel,
    )
