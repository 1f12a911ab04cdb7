"""The reports of the newest step, put together: several reports of one step count as the one that they add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selector.difficulty.estimate import OutcomeBatch


def merged(batches: Sequence[OutcomeBatch]) -> OutcomeBatch:
    """One report with all outcomes of reports of the same step, by prompt.

    The prediction that a prompt's outcomes are judged by is that of its first report, made before any was seen. The
    result is the same however the outcomes were split into reports, and in whichever order these came.
    """
    prompt = np.concatenate([batch.prompt for batch in batches])
    distinct, first, place = np.unique(prompt, return_index=True, return_inverse=True)
    return OutcomeBatch(
        step=batches[0].step,
        reference=all(batch.reference for batch in batches),
        prompt=distinct,
        trials=_added([batch.trials for batch in batches], place, len(distinct)),
        successes=_added([batch.successes for batch in batches], place, len(distinct)),
        uniform=np.concatenate([batch.uniform for batch in batches])[first],
        population=np.concatenate([batch.population for batch in batches])[first],
    )


def _added(columns: Sequence[np.ndarray], place: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(place, weights=np.concatenate(columns), minlength=size)
