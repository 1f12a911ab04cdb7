"""Own evidence of a prompt that was away: it counts for less, in every place where it counts."""

from __future__ import annotations

import numpy as np
import pytest

from selector.difficulty.fused import FusedEstimator
from selector.difficulty.fused.forecast import Forecast
from selector.difficulty.fused.own_evidence import FORGETTING, OwnEvidence
from tests.difficulty.simulation import batch_of, features_of

_AGEING = 0.05


def _fold(evidence: OwnEvidence, step: int, prompt: int, successes: float, shift: float = 0.0) -> None:
    evidence.reserve(prompt + 1)
    one = np.array([prompt])
    evidence.fold(step, one, np.array([successes]), np.array([8.0]), np.array([shift]), _AGEING)


def test_an_absent_prompts_own_outcomes_weigh_less_and_less() -> None:
    """Its posterior widens and goes back to what is known of all."""
    estimator = FusedEstimator(0)
    rng = np.random.default_rng(0)
    rate = np.where(np.arange(200) < 100, 0.05, 0.95)
    estimator.observe(batch_of(0, np.arange(200), rng.binomial(8, rate), 8, population=np.full(200, 0.5)))
    soon, late, later = (estimator.estimate(features_of(200), step) for step in (1, 100, 1000))
    assert (soon.own_weight > late.own_weight + 0.1).all() and (late.own_weight > later.own_weight + 0.1).all()
    assert (soon.standard_error < late.standard_error).all() and (late.standard_error < later.standard_error).all()
    distance = [np.abs(estimate.difficulty - 0.5).mean() for estimate in (soon, late, later)]
    assert distance[0] > distance[1] + 0.05 > distance[2] + 0.1


def test_what_is_held_when_a_prompt_comes_back_has_aged() -> None:
    weights = []
    for first in (0, 59):
        estimator = FusedEstimator(0)
        for step in (first, 60):
            estimator.observe(batch_of(step, np.arange(1), np.array([4.0]), 8, population=np.array([0.5])))
        weights.append(estimator.estimate(features_of(1), 60).own_weight[0])
    assert weights[0] < weights[1] - 0.01


@pytest.mark.parametrize("steps", [(10, 30), (10, 11)])
def test_a_late_report_counts_as_if_it_had_come_in_time(steps: tuple[int, int]) -> None:
    in_time, late = OwnEvidence(), OwnEvidence()
    outcomes = dict(zip(steps, (1.0, 7.0), strict=True))
    for step in steps:
        _fold(in_time, step, 0, outcomes[step])
    for step in reversed(steps):
        _fold(late, step, 0, outcomes[step])
    for rate in range(len(FORGETTING)):
        np.testing.assert_allclose(in_time.under(rate, 1), late.under(rate, 1))


def test_a_late_report_moves_nothing_of_what_is_held() -> None:
    """Between two visits that are held already; drift is not applied to either of them again."""
    evidence = OwnEvidence()
    _fold(evidence, 10, 0, 1.0)
    _fold(evidence, 30, 0, 7.0, shift=0.5)
    held = [evidence.under(rate, 1)[0][0] for rate in range(len(FORGETTING))]
    _fold(evidence, 20, 0, 0.0, shift=0.5)
    assert [evidence.under(rate, 1)[0][0] for rate in range(len(FORGETTING))] == held
    assert evidence.last_step(1).tolist() == [30]
    # Eight trials, ten steps before the newest visit and forgotten once.
    added = 8 / (1 + _AGEING * 10 * 8)
    _fold(evidence, 20, 0, 0.0)
    twice, once = evidence.under(0, 1)[1][0], added / (1 + FORGETTING[0] * added)
    _fold(evidence, 20, 0, 0.0)
    assert evidence.under(0, 1)[1][0] - twice == pytest.approx(once)


def test_twins_age_between_their_visits_like_one_prompt() -> None:
    apart, together = OwnEvidence(), OwnEvidence()
    for step, twin, successes in ((0, 0, 7.0), (40, 1, 2.0)):
        _fold(apart, step, twin, successes)
        _fold(together, step, 0, successes, shift=0.0 if step == 0 else 0.4)
    for rate in range(len(FORGETTING)):
        shared = apart.shared(rate, _AGEING, np.zeros(2, dtype=np.int64), 2, lambda steps: 0.01 * steps)
        expected = together.under(rate, 1)
        np.testing.assert_allclose([shared.successes[1], shared.trials[1]], [expected[0][0], expected[1][0]])


def test_no_shift_turns_little_evidence_around() -> None:
    """Eight failures long ago, while everything got somewhat easier: hardly a success is held."""
    evidence = OwnEvidence()
    _fold(evidence, 0, 0, 0.0)
    _fold(evidence, 200, 0, 0.0, shift=1.2)
    successes, trials = evidence.under(0, 1)
    assert successes[0] / trials[0] < 0.05


def test_drift_and_recalibration_are_learned_from_what_is_left() -> None:
    size = (1, len(FORGETTING))
    forecast = Forecast(
        batch_of(30, np.arange(1), np.array([4.0]), 8),
        population=np.array([0.9]),
        warm=np.ones(1, dtype=bool),
        absence=np.array([30]),
        shift=np.zeros(1),
        successes=np.full(size, 2.0),
        trials=np.full(size, 8.0),
    )
    still, aged = (forecast.posterior(ageing, 0, 1.0) for ageing in (0.0, _AGEING))
    assert aged.concentration[0] == pytest.approx(1.0 + 8.0 / (1.0 + _AGEING * 30 * 8.0))
    assert aged.own_share[0] < still.own_share[0] and aged.mean[0] > still.mean[0]
