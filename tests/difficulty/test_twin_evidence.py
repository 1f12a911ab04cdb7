"""Evidence of twins put together is what one prompt with all of their visits would have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from selector.difficulty.estimate import Estimate, Estimator, OutcomeBatch, PoolFeatures
from selector.difficulty.registry import make_estimator
from tests.difficulty.simulation import features_of

_SIZE = 6
# Prompts 1, 3 and 4 are one question.
_FIRST = np.array([0, 1, 2, 1, 1, 5])


def _features(first: np.ndarray | None) -> PoolFeatures:
    return features_of(_SIZE, first_twin=first)


def _estimator(name: str) -> Estimator:
    return make_estimator(
        name, adapter=None, reference_mode="NONE", reference_size=8, tracker_decay=0.7, embedding_components=0
    )


def _observe(estimator: Estimator, step: int, outcomes: dict[int, tuple[float, float]]) -> None:
    count = len(outcomes)
    estimator.observe(
        OutcomeBatch(
            step=step,
            reference=False,
            prompt=np.array(list(outcomes), dtype=np.int32),
            trials=np.array([trials for _, trials in outcomes.values()]),
            successes=np.array([successes for successes, _ in outcomes.values()]),
            uniform=np.ones(count, dtype=bool),
            population=np.full(count, 0.5),
        )
    )


@pytest.mark.parametrize("name", ["TRACKER", "FUSED"])
def test_visits_of_twins_count_like_visits_of_one_prompt(name: str) -> None:
    visits = [(0, (6.0, 8.0)), (2, (1.0, 8.0)), (5, (2.0, 4.0))]
    apart, together = _estimator(name), _estimator(name)
    for (step, outcome), twin in zip(visits, (1, 4, 3), strict=True):
        # The prompt that all is put on has no twin; the rest of the pool is the same.
        _observe(apart, step, {twin: outcome, 5: (3.0, 8.0)})
        _observe(together, step, {1: outcome, 5: (3.0, 8.0)})
    shared, alone = apart.estimate(_features(_FIRST), 7), together.estimate(_features(None), 7)
    for prompt in (1, 3, 4):
        assert shared.difficulty[prompt] == shared.difficulty[1]
        assert shared.standard_error[prompt] == shared.standard_error[1]
    # What FUSED learns about forgetting and drift comes from each prompt's own visits, and so differs a little.
    tolerance = 1e-12 if name == "TRACKER" else 0.03
    assert shared.difficulty[1] == pytest.approx(alone.difficulty[1], abs=tolerance)
    assert shared.own_weight[1] == pytest.approx(alone.own_weight[1], abs=tolerance)


@pytest.mark.parametrize("name", ["TRACKER", "FUSED"])
def test_prompts_without_twins_and_pools_without_any_are_left_alone(name: str) -> None:
    estimator = _estimator(name)
    _observe(estimator, 0, {0: (6.0, 8.0), 5: (1.0, 8.0)})
    none, some = (estimator.estimate(_features(first), 3) for first in (None, _FIRST))
    itself = estimator.estimate(_features(np.arange(_SIZE)), 3)
    for field in Estimate.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(none, field), getattr(itself, field))
        np.testing.assert_array_equal(getattr(none, field), getattr(some, field))


def test_the_population_is_told_of_a_question_once() -> None:
    """And what it says of a question is said without that question's own outcomes, whichever id they came under."""
    features = _features(_FIRST)
    lengths = np.random.default_rng(0).normal(size=_SIZE)
    lengths[[3, 4]] = lengths[1]
    features = replace(features, signals={"length": lengths})
    low, high = _estimator("FUSED"), _estimator("FUSED")
    for estimator, outcome in ((low, (0.0, 8.0)), (high, (8.0, 8.0))):
        _observe(estimator, 0, {0: (4.0, 8.0), 2: (6.0, 8.0), 5: (3.0, 8.0), 4: outcome})
    estimates = [estimator.estimate(features, 1) for estimator in (low, high)]
    for estimate in estimates:
        assert len(set(estimate.population[[1, 3, 4]].tolist())) == 1
    # Its own outcomes, all wrong or all right, would move it by far more.
    assert abs(estimates[0].population[3] - estimates[1].population[3]) < 0.25
    assert estimates[0].difficulty[3] - estimates[1].difficulty[3] > 0.5
