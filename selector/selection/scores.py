"""Scores: how much a prompt is worth training on, as log-weights already divided by their temperature.

With p the success rate and G the group size:

    LEARNABLE    log E[p (1 - p)^2] / T        tilted to the harder side
    INFORMATIVE  log E[1 - p^G - (1 - p)^G] / T  the chance that a group's outcomes differ (DOTS, 2506.05316, s. 3)
    NEAR_TARGET  -|d - alpha| / tau             at the predicted difficulty d (DOTS, eq. for P(q))
    UNIFORM      0

E is over the posterior, a Beta with the estimate's mean and standard error, in closed form; under THOMPSON it is one
draw per prompt instead. Plugging in the mean would be wrong: an unknown prompt's mean is 0.5, its rate is not.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate

# Keeps log-weights finite for prompts that are surely solved or surely out of reach.
_SMALLEST = 1e-300
_ROUNDING = 1e-12


def log_weights(config: RunConfig, estimate: Estimate, uniforms: np.ndarray | None) -> np.ndarray:
    """Score of every prompt, divided by its temperature.

    Args:
        config: gives score, evaluation, temperatures, target and group size.
        estimate: of the whole pool.
        uniforms: (N,) in (0, 1), one per prompt, for THOMPSON; unused otherwise.

    Returns:
        (N,) float64, finite.
    """
    if config.score == "UNIFORM":
        return np.zeros(len(estimate.difficulty))
    if config.score == "NEAR_TARGET":
        return -np.abs(estimate.difficulty - config.target_difficulty) / config.selection_temperature
    successes, failures = estimate.beta()
    if config.score_evaluation == "THOMPSON":
        if uniforms is None:
            raise ValueError("THOMPSON needs one uniform per prompt")
        rate = betaincinv(successes, failures, uniforms)
        value = _learnable(rate) if config.score == "LEARNABLE" else _informative(rate, config.group_size)
    elif config.score == "LEARNABLE":
        value = expected_learnable(successes, failures)
    else:
        value = expected_informative(successes, failures, config.group_size)
    return np.log(np.maximum(value, _SMALLEST)) / config.score_temperature


def largest_log_weight(config: RunConfig) -> float:
    """What no prompt's log-weight exceeds, but for rounding: the score's maximum over all success rates."""
    if config.score in ("UNIFORM", "NEAR_TARGET"):
        return 0.0
    # p (1 - p)^2 is largest at 1/3, 1 - p^G - (1 - p)^G at 1/2.
    largest = 4.0 / 27.0 if config.score == "LEARNABLE" else 1.0 - 2.0 ** (1 - config.group_size)
    return float(np.log(max(largest, _SMALLEST))) / config.score_temperature


def expected_learnable(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """E[p (1 - p)^2] for p ~ Beta(a, b), from the Beta's rising-factorial moments."""
    total = a + b
    return a * b * (b + 1) / (total * (total + 1) * (total + 2))


def expected_informative(a: np.ndarray, b: np.ndarray, group_size: int) -> np.ndarray:
    """E[1 - p^G - (1 - p)^G] for p ~ Beta(a, b), by E[p^G] = prod_i (a + i) / (a + b + i)."""
    all_right = np.ones_like(a)
    all_wrong = np.ones_like(a)
    for i in range(group_size):
        all_right *= (a + i) / (a + b + i)
        all_wrong *= (b + i) / (a + b + i)
    return _sure(1.0 - all_right - all_wrong)


def _sure(chance: np.ndarray) -> np.ndarray:
    """Chances below what rounding leaves of 1 - 1 are none."""
    return np.where(chance < _ROUNDING, 0.0, chance)


def _learnable(p: np.ndarray) -> np.ndarray:
    return p * (1 - p) ** 2


def _informative(p: np.ndarray, group_size: int) -> np.ndarray:
    return _sure(1.0 - p**group_size - (1 - p) ** group_size)
