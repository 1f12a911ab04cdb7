"""The discounted Newton iteration against a full fit."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from selector.difficulty.fused.newton import DiscountedNewton


def _batches(count: int, theta: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        columns, offset = rng.normal(size=(40, 2)), 0.3 * rng.normal(size=40)
        trials = rng.integers(1, 9, 40).astype(np.float64)
        batches.append(
            (columns, offset, rng.binomial(trials.astype(int), expit(offset + columns @ theta)) * 1.0, trials)
        )
    return batches


def test_agrees_with_the_penalised_maximum_likelihood() -> None:
    centre, precision = np.array([0.0, 1.0]), np.array([5.0, 5.0])
    batches = _batches(30, np.array([0.4, 0.7]), 0)
    online = DiscountedNewton(centre, precision, np.full(2, 10.0))
    assert online.value.tolist() == [0.0, 1.0]
    for batch in batches:
        online.update(1.0, *batch)
    columns, offset, successes, trials = (np.concatenate(parts) for parts in zip(*batches, strict=True))

    def objective(theta: np.ndarray) -> float:
        eta = offset + columns @ theta
        fit = trials * np.logaddexp(0, eta) - successes * eta
        return float(fit.sum() + 0.5 * (precision * (theta - centre) ** 2).sum())

    np.testing.assert_allclose(online.value, minimize(objective, centre).x, atol=0.01)


def test_discount_lets_it_follow_a_change() -> None:
    kept = {}
    for discount in (0.8, 1.0):
        online = DiscountedNewton(np.zeros(2), np.ones(2), np.full(2, 10.0))
        for batch in _batches(30, np.array([-0.5, 0.5]), 1) + _batches(15, np.array([0.5, -0.5]), 2):
            online.update(discount, *batch)
        kept[discount] = online.value
    np.testing.assert_allclose(kept[0.8], [0.5, -0.5], atol=0.2)
    assert np.abs(kept[1.0]).max() < 0.4


def test_a_step_is_bounded_where_the_curvature_vanishes() -> None:
    online = DiscountedNewton(np.array([1.0]), np.array([1.0]), np.array([0.2]))
    online.update(1.0, np.full((50, 1), 12.0), np.zeros(50), np.zeros(50), np.full(50, 8.0))
    assert 0.75 < online.value[0] < 1.0
