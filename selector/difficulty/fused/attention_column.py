"""The adapter's attention as one column of the population model.

References are the prompts visited last, with their own evidence. The column is what attention says beyond the
references' mean, ``logit(1 - d_q) - logit(1 - mean)``: the calibration head is an affine map of it, which the
regression fits anew on this run's outcomes, so the adapter is never trusted as it is.

A reference gets what the others alone say, beyond the mean of the others alone. Without the latter the column would
tell a reference's own outcome with the sign turned: what is left of a sum without d_i falls as d_i rises.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logit

from selector.difficulty.adapter import Adapter
from selector.difficulty.attending import Attending
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.kernel import NUMPY, Kernel
from selector.difficulty.reference_set import References

ATTENTION_SLOPE = 0.5
"""What a logit of attention is worth to a pool without priors, before any outcome tells; the heads of trained adapters
give it 0.65 to 0.9."""

_MARGIN = 1e-3


class AttentionColumn:
    """Computes the column; a function of its arguments alone, so that copies of an estimator share it."""

    def __init__(self, adapter: Adapter, size: int, kernel: Kernel = NUMPY) -> None:
        """``size``: the most references attended to; ``kernel``: see ``selector.difficulty.attending``."""
        self._attending = Attending(adapter, kernel=kernel)
        self._size = size

    def __call__(
        self, features: PoolFeatures, prompt: np.ndarray, last_step: np.ndarray, rate: np.ndarray, trials: np.ndarray
    ) -> np.ndarray | None:
        """(N,) logits, NaN for prompts without embedding; None where there is nothing to attend to.

        Args:
            prompt: (R,) visited prompts; the other columns are theirs.
            last_step: (R,) of their newest visit.
            rate: (R,) success rates.
            trials: (R,) evidence behind them.
        """
        newest = np.argsort(-last_step, kind="stable")[: self._size]
        newest = newest[np.argsort(prompt[newest], kind="stable")]
        references = References(prompt[newest], 1.0 - rate[newest], trials[newest])
        attention = self._attending.to(features, references)
        if attention is None:
            return None
        measured = attention.references.difficulty
        column = _beyond(attention.difficulty(), measured.mean())
        others = (measured.sum() - measured) / (len(measured) - 1)
        column[attention.references.prompt] = _beyond(attention.left_out().difficulty, others)
        return np.where(attention.covered, column, np.nan)


def _beyond(difficulty: np.ndarray, mean: np.ndarray | float) -> np.ndarray:
    """In logit of success."""
    inside = np.clip(difficulty, _MARGIN, 1.0 - _MARGIN)
    result: np.ndarray = logit(np.clip(mean, _MARGIN, 1.0 - _MARGIN)) - logit(inside)
    return result
