"""Few-parameter logistic regressions followed through time: the drift of the population, the final recalibration.

Each batch's log likelihood is replaced by its quadratic expansion at the current parameters (one Newton step) and
added to the discounted sum of those before it; a fixed quadratic penalty holds the parameters near their centre.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit


class DiscountedNewton:
    """Parameters theta (k,) of ``logit p = offset + columns theta``, as of the newest batch."""

    def __init__(self, centre: np.ndarray, precision: np.ndarray, largest_step: np.ndarray) -> None:
        """Start at the centre.

        Args:
            centre: (k,) where theta starts and is pulled to.
            precision: (k,) strength of that pull, in nats per squared unit.
            largest_step: (k,) what a batch's gradient may move theta by at most: where predictions are near 0 or 1 and
                suddenly wrong, the curvature is tiny and a whole Newton step would land far beyond the optimum.
        """
        self._centre = centre
        self._precision = precision
        self._largest_step = largest_step
        self._information = np.zeros((len(centre), len(centre)))
        self._pull = np.zeros(len(centre))

    @property
    def value(self) -> np.ndarray:
        """Current theta, (k,)."""
        return self._centre + np.linalg.solve(self._information + np.diag(self._precision), self._pull)

    def update(
        self,
        kept: float,
        columns: np.ndarray,
        offset: np.ndarray,
        successes: np.ndarray,
        trials: np.ndarray,
    ) -> None:
        """Discount what is known by ``kept`` and add M observations: columns (M, k), the others (M,)."""
        theta = self.value
        rate = expit(offset + columns @ theta)
        gradient = columns.T @ (successes - trials * rate)
        information = (columns * (trials * rate * (1.0 - rate))[:, None]).T @ columns
        self._information = kept * self._information + information
        step = np.linalg.solve(self._information + np.diag(self._precision), gradient)
        gradient = gradient / max(1.0, float(np.max(np.abs(step) / self._largest_step)))
        self._pull = kept * self._pull + information @ (theta - self._centre) + gradient

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {"information": self._information, "pull": self._pull}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._information = same_shape(state["information"], self._information)
        self._pull = same_shape(state["pull"], self._pull)

    def copy(self) -> DiscountedNewton:
        other = DiscountedNewton(self._centre, self._precision, self._largest_step)
        other._information = self._information.copy()
        other._pull = self._pull.copy()
        return other


def same_shape(data: np.ndarray, held: np.ndarray) -> np.ndarray:
    """A copy of ``data``.

    Raises:
        ValueError: it is of another type or shape than what is held.
    """
    if data.dtype != held.dtype or data.shape != held.shape:
        raise ValueError(f"expected {held.dtype} {held.shape}; got {data.dtype} {data.shape}")
    return data.copy()
