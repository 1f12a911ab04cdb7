"""FUSED on histories whose true rates are known."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import betabinom, norm

from selector.difficulty import Basis, PoolFeatures
from selector.difficulty.fused import FusedEstimator
from selector.difficulty.fused.estimator import FORGETTING
from selector.difficulty.fused.grid import CONCENTRATIONS, PrequentialGrid, beta_binomial_loss
from selector.difficulty.fused.own_evidence import OwnEvidence
from selector.difficulty.tracker import TrackerEstimator
from tests.difficulty.simulation import (
    Record,
    World,
    batch_of,
    features_of,
    follow,
    log_loss,
    simulate,
)

SEEDS = (101, 102, 103)


@cache
def _followed(seed: int, drift: float) -> tuple[World, Record]:
    world = simulate(seed, drift=drift)
    return world, follow(FusedEstimator(0), world)


def _with(features: PoolFeatures, column: str, values: object) -> PoolFeatures:
    return replace(features, **{column: values})  # type: ignore[arg-type]


def _pooled(records: Sequence[Record], column: str) -> np.ndarray:
    return np.concatenate([part for record in records for part in getattr(record, column)])


def test_own_evidence_forgets_slowly_and_once_per_visit() -> None:
    evidence = OwnEvidence()
    evidence.reserve(2)
    still = np.zeros(1)
    expected = np.zeros((2, len(FORGETTING)))
    for step, parts in ((1, [(3, 8)]), (5, [(1, 2), (4, 6)]), (6, [(0, 8)])):
        expected /= 1 + FORGETTING * expected[1]
        for successes, trials in parts:
            evidence.fold(step, np.array([1]), np.array([float(successes)]), np.array([float(trials)]), still, 0.0)
            expected += np.array([[successes], [trials]])
    for rate in range(len(FORGETTING)):
        np.testing.assert_allclose([column[1] for column in evidence.under(rate, 2)], expected[:, rate])
        assert [column[0] for column in evidence.under(rate, 2)] == [0, 0]
    assert evidence.last_step(3).tolist() == [-1, 6, -1]


def test_own_evidence_is_carried_along_with_the_drift() -> None:
    evidence = OwnEvidence()
    evidence.reserve(3)
    prompt = np.arange(3)
    evidence.fold(0, prompt, np.array([0.0, 40.0, 80.0]), np.full(3, 80.0), np.zeros(3), 0.0)
    evidence.fold(9, prompt, np.zeros(3), np.full(3, 1e-9), np.full(3, 0.4), 0.0)
    successes, trials = evidence.under(0, 3)
    rate = successes / trials
    np.testing.assert_allclose(rate[1], expit(0.4), rtol=1e-2)
    assert 0 < rate[0] < 0.02 and rate[2] == pytest.approx(1.0)


def test_reports_of_one_visit_add_up() -> None:
    """A group reported in two parts says what the whole group says."""
    rng = np.random.default_rng(0)
    world = simulate(7, size=200, steps=20)
    split, whole = FusedEstimator(0), FusedEstimator(0)
    for batch in world.batches:
        whole.observe(batch)
        first = rng.hypergeometric(batch.successes.astype(int), (batch.trials - batch.successes).astype(int), 4)
        for successes, trials in ((first, 4.0), (batch.successes - first, 4.0)):
            split.observe(batch_of(batch.step, batch.prompt, successes, trials))
    estimates = [estimator.estimate(world.features, 20) for estimator in (split, whole)]
    seen = estimates[0].own_weight > 0
    np.testing.assert_array_equal(seen, estimates[1].own_weight > 0)
    difference = estimates[0].difficulty - estimates[1].difficulty
    assert np.abs(difference[seen]).mean() < 0.03


def test_known_rates_are_recovered_and_the_standard_error_is_right() -> None:
    """Rates that stand still. Even the slowest forgetting allows for some movement: of 96 trials it keeps about 61 and
    takes its standard error from those, so that errors are near 0.85 standard errors here. The pool's mean is followed
    closely: it may err by what one batch's mean errs by, of standard deviation 0.008."""
    size, squares, ratios = 400, [], []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rate = rng.beta(2, 2, size)
        estimator = FusedEstimator(0)
        for step in range(12):
            estimator.observe(batch_of(step, np.arange(size), rng.binomial(8, rate), 8))
        estimate = estimator.estimate(features_of(size), 12)
        error = (1 - estimate.difficulty) - rate
        assert abs(error.mean()) < 0.024
        squares.append((error**2).mean() / (rate * (1 - rate) / 96).mean())
        ratios.append(((error / estimate.standard_error) ** 2).mean())
    assert np.sqrt(np.mean(squares)) < 1.15
    assert 0.75 < np.sqrt(np.mean(ratios)) < 1.0


def test_cold_prompts_are_predicted_with_their_spread() -> None:
    """No features at all: a cold prompt is the population's mean, give or take the population's spread."""
    rng = np.random.default_rng(12)
    rate = rng.beta(3.0, 1.5, 1200)
    estimator = FusedEstimator(0)
    for step in range(12):
        prompt = np.arange(step * 50, step * 50 + 50)
        estimator.observe(batch_of(step, prompt, rng.binomial(8, rate[prompt]), 8))
    estimate = estimator.estimate(features_of(1200), 12)
    cold = np.arange(600, 1200)
    assert (estimate.basis[cold] == Basis.POPULATION).all() and (estimate.basis[:600] == Basis.OWN).all()
    assert np.abs(1 - estimate.difficulty[cold] - rate.mean()).max() < 0.05
    assert 0.8 < estimate.standard_error[cold].mean() / rate.std() < 1.25


@pytest.mark.parametrize("drift", [0.08, -0.08])
def test_drift_moves_absent_prompts_along(drift: float) -> None:
    """Half of the pool is left alone from step 20 on; the other half shows where everything is going."""
    rng = np.random.default_rng(13)
    size, half = 300, 150
    start = -drift * 20 + rng.normal(0, 0.7, size)
    estimator = FusedEstimator(0)
    features = features_of(size)
    for step in range(40):
        among = size if step < 20 else half
        prompt = np.sort(rng.choice(among, 40, replace=False))
        rate = expit(start + drift * step)
        population = estimator.estimate(features, step).population[prompt]
        estimator.observe(batch_of(step, prompt, rng.binomial(8, rate[prompt]), 8, population=population))
    absent = np.flatnonzero(estimator.estimate(features, 19).own_weight > 0)
    absent = absent[absent >= half]
    then, now = (1 - estimator.estimate(features, step).difficulty[absent] for step in (19, 40))
    moved = (logit(now) - logit(then)).mean()
    assert np.sign(moved) == np.sign(drift)
    assert 0.4 < moved / (drift * 21) < 1.4
    truth = expit(start + drift * 40)[absent]
    assert np.abs(now - truth).mean() < np.abs(then - truth).mean()


def test_own_outcomes_count_more_where_the_population_says_little() -> None:
    """Same rates; one history has features that tell them, the other features that tell nothing."""
    weights = []
    for told, untold in ((1.0, 0.0), (0.0, 2.0)):
        world = simulate(21, told=told, untold=untold, walk=0.0, steps=30)
        estimator = FusedEstimator(0)
        estimate = follow(estimator, world).last
        assert estimate is not None
        weights.append(estimate.own_weight[estimate.own_weight > 0].mean())
    assert weights[0] < weights[1] - 0.15


def test_forgetting_follows_how_fast_prompts_wander() -> None:
    """With single prompts wandering fast, less old evidence is kept, and least of prompts that are away for long."""
    left = []
    for walk in (0.0, 0.6):
        world = simulate(22, told=0.0, drift=0.0, walk=walk, start=0.0, steps=60)
        estimator = FusedEstimator(0)
        follow(estimator, world)
        ageing, rate, _ = estimator._grid.warm
        left.append([1 / (8 * ageing * steps + 8 * FORGETTING[rate] + 1) for steps in (5, 50)])
    (still_soon, still_late), (soon, late) = left
    assert soon < still_soon / 2 and late < still_late / 2
    assert late < soon / 2


def test_the_grid_finds_the_concentration_that_made_the_outcomes() -> None:
    rng = np.random.default_rng(3)
    mean = rng.uniform(0.2, 0.8, 4000)
    rate = rng.beta(8 * mean, 8 * (1 - mean))
    estimator = FusedEstimator(0)
    estimator.observe(batch_of(0, np.arange(4000), rng.binomial(8, rate), 8, population=mean))
    # A report of the next step: step 0 is over.
    estimator.observe(batch_of(1, np.arange(1), np.array([4.0]), 8, population=mean[:1]))
    assert estimator._grid.cold == 8.0
    assert PrequentialGrid().cold in CONCENTRATIONS


def test_beta_binomial_loss_is_the_likelihood() -> None:
    successes = np.arange(9.0)
    loss = beta_binomial_loss(np.full(9, 0.3), np.full(9, 2.5), successes, np.full(9, 8.0))
    expected = -betabinom.logpmf(successes, 8, 0.75, 1.75)
    binomial = -betabinom.logpmf(successes, 8, 1, 1) - beta_binomial_loss(
        np.full(9, 0.5), np.full(9, 2.0), successes, np.full(9, 8.0)
    )
    np.testing.assert_allclose(loss + binomial, expected)


def test_predicts_better_than_every_control() -> None:
    """Half of the pool unseen, three histories: prequential log loss per trial, and on prompts never tried."""
    worlds, fused = zip(*(_followed(seed, 0.03) for seed in SEEDS), strict=True)
    tracker = [follow(TrackerEstimator(0.7), world) for world in worlds]
    successes, trials = _pooled(fused, "successes"), _pooled(fused, "trials")
    loss = log_loss(_pooled(fused, "predicted"), successes, trials)
    constant = np.full(len(trials), successes.sum() / trials.sum())
    assert loss < log_loss(_pooled(tracker, "predicted"), successes, trials) - 0.01
    assert loss < log_loss(_pooled(fused, "population"), successes, trials) - 0.02
    assert loss < log_loss(constant, successes, trials) - 0.04
    cold = np.mean([record.cold for record in fused])
    assert cold < np.mean([record.cold for record in tracker]) - 0.1


@pytest.mark.parametrize("drift", [0.03, 0.06])
def test_predictions_are_calibrated_on_drifting_populations(drift: float) -> None:
    records = [_followed(seed, drift)[1] for seed in SEEDS]
    predicted, successes, trials = (_pooled(records, name) for name in ("predicted", "successes", "trials"))
    bins = np.digitize(predicted, np.quantile(predicted, np.linspace(0, 1, 11)[1:-1]))
    gaps = [
        abs(predicted[bins == b] @ trials[bins == b] - successes[bins == b].sum()) / trials.sum() for b in range(10)
    ]
    assert sum(gaps) < 0.03
    logits = logit(predicted)
    line = minimize(lambda t: log_loss(expit(t[0] + t[1] * logits), successes, trials), [0.0, 1.0]).x
    assert abs(line[0]) < 0.15 and 0.8 < line[1] < 1.25


def test_intervals_cover_the_truth() -> None:
    """90 % intervals of the whole pool, also the half that was never tried."""
    covered: list[np.ndarray] = []
    for seed in SEEDS:
        world, record = _followed(seed, 0.03)
        estimate = record.last
        assert estimate is not None
        error = (1 - estimate.difficulty) - world.rates[-1]
        covered.append(np.abs(error) < norm.ppf(0.95) * estimate.standard_error)
    share = np.stack(covered)
    assert 0.8 < share[:, : share.shape[1] // 2].mean() < 0.98
    assert 0.75 < share[:, share.shape[1] // 2 :].mean() < 0.98


def test_priors_speak_for_cold_prompts_before_and_after_outcomes() -> None:
    rng = np.random.default_rng(31)
    size = 400
    truth = rng.normal(-1.0, 1.5, size)
    prior_rate = rng.binomial(16, expit(truth + 1.0)) / 16.0
    prior_rate[-50:] = np.nan
    features = features_of(size, prior_rate=prior_rate, prior_trials=np.where(np.isnan(prior_rate), 0.0, 16.0))
    estimator = FusedEstimator(0)
    before = estimator.estimate(features, 0)
    assert before.basis.tolist() == [Basis.PRIOR] * 350 + [Basis.NONE] * 50
    assert np.corrcoef(before.difficulty[:350], -truth[:350])[0, 1] > 0.8
    assert (before.difficulty[350:] == 0.5).all()

    estimator.observe(batch_of(0, np.arange(100), rng.binomial(8, expit(truth[:100])), 8))
    after = estimator.estimate(features, 1)
    cold = np.arange(100, 350)
    assert (after.basis[cold] == Basis.PRIOR).all()
    assert np.corrcoef(after.difficulty[cold], -truth[cold])[0, 1] > 0.8
    bias = [abs((1 - e.difficulty[cold] - expit(truth[cold])).mean()) for e in (before, after)]
    assert bias[1] < 0.5 * bias[0]


@pytest.mark.parametrize("source", ["embeddings", "domain", "signals", "surface"])
def test_each_kind_of_feature_informs_cold_prompts(source: str) -> None:
    rng = np.random.default_rng(41)
    size = 600
    told = rng.integers(0, 4, size).astype(np.float64)
    truth = 1.2 * (told - 1.5)
    columns = {
        "embeddings": (np.outer(told, rng.normal(size=32)) + 0.3 * rng.normal(size=(size, 32))).astype(np.float32),
        "domain": told.astype(np.int32),
        "signals": {"perplexity": np.where(np.arange(size) % 50 == 0, np.nan, told)},
        "surface": np.where(np.arange(9) == 4, told[:, None], rng.normal(size=(size, 9))).astype(np.float32),
    }
    features = _with(features_of(size), source, columns[source])
    estimator = FusedEstimator(4)
    prompt = np.arange(200)
    estimator.observe(batch_of(0, prompt, rng.binomial(8, expit(truth[prompt])), 8))
    estimate = estimator.estimate(features, 1)
    cold = np.arange(201, 600)
    assert np.corrcoef(estimate.difficulty[cold], -truth[cold])[0, 1] > 0.9


def test_population_rate_of_a_prompt_does_not_see_its_own_outcomes() -> None:
    """Features without meaning and few prompts: the population's rate must not echo each prompt's own result."""
    correlations = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        successes = 8.0 * rng.integers(0, 2, 60)
        features = features_of(60, surface=rng.normal(size=(60, 9)).astype(np.float32))
        estimator = FusedEstimator(0)
        estimator.observe(batch_of(0, np.arange(60), successes))
        correlations.append(np.corrcoef(estimator.estimate(features, 1).population, successes)[0, 1])
    assert np.mean(correlations) < 0.1


def test_a_missing_prediction_falls_back_on_the_running_rate() -> None:
    rng = np.random.default_rng(51)
    missing, given = FusedEstimator(0), FusedEstimator(0)
    successes, trials, kept = 1.0, 2.0, 1.0
    for step in range(5):
        batch = batch_of(step, rng.choice(50, 10, replace=False), rng.integers(0, 9, 10))
        given.observe(batch_of(step, batch.prompt, batch.successes, population=np.full(10, successes / trials)))
        missing.observe(batch)
        successes, trials = kept * successes + batch.successes.sum(), kept * trials + batch.trials.sum()
        kept = 0.98
    features = features_of(50)
    np.testing.assert_allclose(missing.estimate(features, 5).difficulty, given.estimate(features, 5).difficulty)


def test_reports_of_a_step_add_up_however_they_are_split() -> None:
    """Whole; in halves of every group; one report per prompt, in reverse order: the same estimates, bit for bit."""
    rng = np.random.default_rng(52)
    whole, halves, single = FusedEstimator(0), FusedEstimator(0), FusedEstimator(0)
    features = features_of(40)
    for step in range(8):
        prompt = rng.choice(40, 12, replace=False)
        first, second = rng.binomial(4, 0.3 + 0.05 * step, (2, 12)).astype(float)
        population = rng.uniform(0.2, 0.8, 12)
        whole.observe(batch_of(step, prompt, first + second, 8, population=population))
        halves.observe(batch_of(step, prompt, first, 4, population=population))
        # Asking in between changes nothing.
        halves.estimate(features, step)
        halves.observe(batch_of(step, prompt, second, 4, population=np.full(12, np.nan)))
        for i in reversed(range(12)):
            one = slice(i, i + 1)
            single.observe(batch_of(step, prompt[one], (first + second)[one], 8, population=population[one]))
        expected = whole.estimate(features, step + 1)
        for other in (halves, single):
            found = other.estimate(features, step + 1)
            assert found.difficulty.tolist() == expected.difficulty.tolist()
            assert found.standard_error.tolist() == expected.standard_error.tolist()


def test_forgotten_prompts_are_cold_again() -> None:
    estimator = FusedEstimator(0)
    estimator.observe(batch_of(0, [0, 1, 2], [8, 8, 8]))
    estimator.forget(np.array([1, 99]))
    estimate = estimator.estimate(features_of(3), 1)
    assert estimate.basis.tolist() == [Basis.OWN, Basis.POPULATION, Basis.OWN]
    assert estimate.own_weight[1] == 0


@pytest.mark.parametrize("improving", [True, False])
def test_a_sudden_change_of_the_policy_is_followed(improving: bool) -> None:
    """Confident predictions turn wrong overnight: no overshoot, and the new state is learned within a few visits."""
    rng = np.random.default_rng(61)
    size = 120
    before, after = (0.02, 0.9) if improving else (0.98, 0.1)
    features = features_of(size)
    estimator = FusedEstimator(0)
    for step in range(48):
        prompt = np.sort(rng.choice(size, 40, replace=False))
        rate = before if step < 30 else after
        estimate = estimator.estimate(features, step)
        estimator.observe(batch_of(step, prompt, rng.binomial(8, rate, 40), 8, population=estimate.population[prompt]))
        if step == 29:
            assert np.abs(1 - estimate.difficulty - before).mean() < 0.05
    estimate = estimator.estimate(features, 48)
    assert np.abs(1 - estimate.difficulty - after).mean() < 0.2
    line = estimator._warm_line.value
    assert line[1] > 0


def test_negative_components_are_refused() -> None:
    with pytest.raises(ValueError, match="components"):
        FusedEstimator(-1)
