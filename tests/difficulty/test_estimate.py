"""The Beta distribution an estimate stands for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from selector.difficulty import Estimate


def _estimate(difficulty: np.ndarray, standard_error: np.ndarray) -> Estimate:
    size = len(difficulty)
    return Estimate(0, difficulty, standard_error, np.zeros(size), np.ones(size, np.uint8), np.full(size, 0.5))


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.95))
def test_beta_has_the_mean_and_standard_error(difficulty: float, share: float) -> None:
    standard_error = share * np.sqrt(difficulty * (1 - difficulty))
    a, b = _estimate(np.array([difficulty]), np.array([standard_error])).beta()
    np.testing.assert_allclose(beta.mean(a, b), 1 - difficulty, rtol=1e-9)
    np.testing.assert_allclose(beta.std(a, b), standard_error, rtol=1e-6)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1e6))
def test_beta_is_positive_and_finite_whatever_is_asked(difficulty: float, standard_error: float) -> None:
    a, b = _estimate(np.array([difficulty]), np.array([standard_error])).beta()
    for parameter in (a, b):
        assert np.isfinite(parameter).all() and (parameter > 0).all()
    np.testing.assert_allclose(a / (a + b), 1 - difficulty, atol=1e-8)
