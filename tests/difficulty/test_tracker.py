"""TRACKER against its closed form."""

import numpy as np
import pytest

from selector.difficulty import Basis
from selector.difficulty.tracker import TrackerEstimator
from tests.difficulty.simulation import batch_of, features_of


@pytest.mark.parametrize("decay", [0.5, 0.7, 1.0])
def test_posterior_is_the_decayed_sum_of_visits(decay: float) -> None:
    rng = np.random.default_rng(0)
    estimator = TrackerEstimator(decay)
    visits = [(step, rng.integers(1, 17), rng.random()) for step in (0, 3, 4, 9, 20)]
    for step, trials, share in visits:
        estimator.observe(batch_of(step, [2], [share * trials], trials))
    weights = decay ** np.arange(len(visits))[::-1]
    n = float(sum(w * t for w, (_, t, _) in zip(weights, visits, strict=True)))
    s = float(sum(w * t * x for w, (_, t, x) in zip(weights, visits, strict=True)))

    estimate = estimator.estimate(features_of(4), 21)
    a, b = estimate.beta()
    np.testing.assert_allclose([a[2], b[2]], [1 + s, 1 + n - s], rtol=1e-9)
    np.testing.assert_allclose([a[0], b[0]], [1, 1], rtol=1e-9)
    np.testing.assert_allclose(estimate.own_weight, [0, 0, n / (n + 2), 0])
    assert estimate.basis.tolist() == [Basis.NONE, Basis.NONE, Basis.OWN, Basis.NONE]
    assert estimate.step == 20


def test_several_reports_of_one_visit_decay_once() -> None:
    split, whole = TrackerEstimator(0.6), TrackerEstimator(0.6)
    for estimator in (split, whole):
        estimator.observe(batch_of(1, [0], [3.0], 8))
    split.observe(batch_of(2, [0], [1.0], 4))
    split.observe(batch_of(2, [0], [2.0], 4))
    whole.observe(batch_of(2, [0], [3.0], 8))
    features = features_of(1)
    assert split.estimate(features, 2).difficulty == whole.estimate(features, 2).difficulty


def test_a_late_report_counts_as_part_of_the_visit_before_the_newest() -> None:
    late, ordered = TrackerEstimator(0.6), TrackerEstimator(0.6)
    late.observe(batch_of(7, [0], [4.0], 8))
    late.observe(batch_of(5, [0], [8.0], 8))
    ordered.observe(batch_of(5, [0], [8.0], 8))
    ordered.observe(batch_of(7, [0], [4.0], 8))
    features = features_of(1)
    np.testing.assert_allclose(late.estimate(features, 7).difficulty, ordered.estimate(features, 7).difficulty)
    assert late.estimate(features, 7).step == 7


@pytest.mark.parametrize("decay", [0.0, 1.5, float("nan")])
def test_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        TrackerEstimator(decay)
