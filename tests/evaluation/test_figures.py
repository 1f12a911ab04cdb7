"""Figures against their definitions: by hand, by simulation and by enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from selector.evaluation.figures import Measured, accuracy, calibration_error, correlation, coverage, log_loss, slope
from selector.evaluation.picks import informative_chance


@pytest.mark.parametrize("trials", [1, 8, 128, 2000])
def test_honest_intervals_cover_ninety_percent(trials: int) -> None:
    rng = np.random.default_rng(trials)
    a, b = rng.uniform(0.3, 5.0, (2, 4000))
    rate = rng.beta(a, b)
    measured = Measured(rng.binomial(trials, rate).astype(float), np.full(4000, float(trials)))
    assert coverage(a, b, measured) == pytest.approx(0.9, abs=0.015)


def test_intervals_that_claim_too_much_cover_less() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 3.0, (2, 3000))
    measured = Measured(rng.binomial(64, rng.beta(a, b)).astype(float), np.full(3000, 64.0))
    narrow, wide = coverage(8 * a, 8 * b, measured), coverage(a / 4, b / 4, measured)
    assert narrow is not None and wide is not None
    assert narrow < 0.7
    assert wide > 0.92


def test_log_loss_is_per_trial() -> None:
    measured = Measured(np.array([1.0, 0.0]), np.array([3.0, 1.0]))
    expected = -(np.log(0.5) * 3 + np.log(0.8)) / 4
    assert log_loss(np.array([0.5, 0.2]), measured) == pytest.approx(expected)
    assert np.isfinite(log_loss(np.array([0.0, 1.0]), measured) or np.inf)


def test_slope_and_correlation() -> None:
    predicted = np.array([0.1, 0.4, 0.7, 0.8])
    assert slope(predicted, 0.2 + 0.5 * predicted) == pytest.approx(0.5)
    assert correlation(predicted, 0.2 + 0.5 * predicted) == pytest.approx(1.0)
    assert correlation(predicted, 1.0 - predicted) == pytest.approx(-1.0)


def test_calibration_error_by_hand() -> None:
    predicted = np.array([0.12, 0.18, 0.55, 1.0])
    rate = np.array([0.0, 0.1, 0.55, 0.5])
    assert calibration_error(predicted, rate) == pytest.approx((0.2 + 0.0 + 0.5) / 4)


def test_undefined_figures_are_none() -> None:
    same = np.full(5, 0.5)
    found = accuracy(same, Measured(np.arange(5.0), np.full(5, 4.0)), None)
    assert (found.pearson, found.spearman, found.calibration_slope, found.coverage) == (None, None, None, None)
    assert found.mean_absolute_error == pytest.approx(0.3)
    nothing = accuracy(np.zeros(0), Measured(np.zeros(0), np.zeros(0)), (np.zeros(0), np.zeros(0)))
    assert (nothing.questions, nothing.log_loss, nothing.mean_absolute_error) == (0, None, None)


@pytest.mark.parametrize(
    ("successes", "trials", "size"), [(0, 6, 4), (1, 6, 4), (3, 6, 4), (5, 6, 4), (6, 6, 4), (2, 3, 8)]
)
def test_the_chance_of_an_informative_group_is_that_of_all_groups_that_could_have_been(
    successes: int, trials: int, size: int
) -> None:
    outcomes = [1] * successes + [0] * (trials - successes)
    groups = list(combinations(outcomes, min(size, trials)))
    expected = np.mean([len(set(group)) > 1 for group in groups])
    measured = Measured(np.array([float(successes)]), np.array([float(trials)]))
    assert informative_chance(measured, size)[0] == pytest.approx(expected)
