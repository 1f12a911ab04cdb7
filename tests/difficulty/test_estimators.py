"""What every estimator owes, whatever its method."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from selector.difficulty import Estimate, Estimator, OutcomeBatch, PoolFeatures, make_estimator
from selector.difficulty.registry import ESTIMATORS
from tests.difficulty.adapters import random_adapter
from tests.difficulty.simulation import batch_of, features_of

MODES = ("IN_BATCH", "DEDICATED", "NONE")
KINDS = [("FUSED", "IN_BATCH"), ("TRACKER", "NONE"), *(("ATTENTION", mode) for mode in MODES)]
WIDTH = 12


def _make(name: str, mode: str = "IN_BATCH", trained: bool = False) -> Estimator:
    return make_estimator(
        name,
        adapter=random_adapter(0, WIDTH, 16) if trained else None,
        reference_mode=mode,
        reference_size=64,
        tracker_decay=0.7,
        embedding_components=4,
    )


@pytest.fixture(params=KINDS, ids="-".join)
def make(request: pytest.FixtureRequest) -> Callable[[], Estimator]:
    return lambda: _make(*request.param)


def _features(size: int = 400) -> PoolFeatures:
    rng = np.random.default_rng(1)
    known = rng.random(size) < 0.5
    surface = rng.normal(size=(size, 9)).astype(np.float32)
    surface[rng.random(size) < 0.1] = np.nan
    embeddings = rng.normal(size=(size, WIDTH)).astype(np.float32)
    embeddings[rng.random(size) < 0.1] = 0.0
    return features_of(
        size,
        embeddings=embeddings,
        surface=surface,
        prior_rate=np.where(known, rng.random(size), np.nan),
        prior_trials=np.where(known, 8.0, 0.0),
        domain=rng.integers(-1, 40, size).astype(np.int32),
        signals={"b": rng.normal(size=size), "a": np.where(known, np.nan, rng.normal(size=size))},
    )


def _history(seed: int, size: int = 400, reports: int = 30) -> list[OutcomeBatch]:
    """Late, repeated and fractional reports, with growing indices."""
    rng = np.random.default_rng(seed)
    batches = []
    for report in range(reports):
        among = max(20, size * (report + 1) // reports)
        prompt = rng.choice(among, min(24, among), replace=False)
        trials = rng.integers(1, 17, len(prompt)).astype(np.float64)
        batches.append(
            batch_of(
                max(report - int(rng.integers(0, 4)), 0),
                prompt,
                trials * rng.choice([0.0, 1.0, rng.random()], len(prompt)),
                trials,
                reference=report % 5 == 0,
                uniform=rng.random(len(prompt)) < 0.4,
                population=np.where(rng.random(len(prompt)) < 0.2, np.nan, rng.random(len(prompt))),
            )
        )
    return batches


def _fold(estimator: Estimator, batches: list[OutcomeBatch]) -> Estimator:
    for batch in batches:
        estimator.observe(batch)
    return estimator


def _assert_same(one: Estimate, other: Estimate) -> None:
    assert one.step == other.step
    for name in ("difficulty", "standard_error", "own_weight", "basis", "population"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def _assert_sound(estimate: Estimate, size: int) -> None:
    for name in ("difficulty", "standard_error", "own_weight", "population"):
        column = getattr(estimate, name)
        assert column.shape == (size,) and column.dtype == np.float64, name
        assert np.isfinite(column).all(), name
    assert estimate.basis.shape == (size,) and estimate.basis.dtype == np.uint8
    assert np.isin(estimate.basis, [1, 2, 3, 4]).all()
    for name in ("difficulty", "population"):
        column = getattr(estimate, name)
        assert ((column > 0) & (column < 1)).all(), name
    assert (estimate.standard_error > 0).all()
    assert ((estimate.own_weight >= 0) & (estimate.own_weight <= 1)).all()
    for parameter in estimate.beta():
        assert (np.isfinite(parameter) & (parameter > 0)).all()


def test_folding_again_is_bit_identical(make: Callable[[], Estimator]) -> None:
    features, batches = _features(), _history(2)
    busy = make()
    for batch in batches:
        busy.estimate(features, batch.step)
        busy.observe(batch)
    busy.forget(np.array([3, 5]))
    again = _fold(make(), batches)
    again.forget(np.array([3, 5]))
    _assert_same(busy.estimate(features, 31), again.estimate(features, 31))
    _assert_sound(busy.estimate(features, 31), features.size)


def test_estimate_is_pure(make: Callable[[], Estimator]) -> None:
    features = _features()
    larger = _features(700)
    estimator = _fold(make(), _history(3))
    first = estimator.estimate(features, 31)
    estimator.estimate(PoolFeatures(**{**larger.__dict__, "version": 2}), 90)
    estimator.references(features, 31, 0, 5)
    _assert_same(first, estimator.estimate(features, 31))


def test_copies_are_independent_both_ways(make: Callable[[], Estimator]) -> None:
    features, batches = _features(), _history(4)
    original = _fold(make(), batches[:15])
    before = original.estimate(features, 31)
    copy = original.copy()
    _fold(original, batches[15:])
    original.forget(np.arange(10))
    _assert_same(copy.estimate(features, 31), before)
    after = original.estimate(features, 31)
    _fold(copy, batches[:5])
    copy.forget(np.arange(200))
    _assert_same(original.estimate(features, 31), after)


def test_indices_beyond_the_pool_seen_so_far(make: Callable[[], Estimator]) -> None:
    estimator = make()
    assert estimator.estimate(_features(10), 0).step == -1
    estimator.observe(batch_of(4, [5000, 3, 399], [8, 4, 2], reference=True))
    estimate = estimator.estimate(_features(), 5)
    _assert_sound(estimate, 400)
    assert estimate.step == 4
    estimator.observe(batch_of(5, np.array([], np.int32), np.array([])))
    assert estimator.estimate(_features(), 5).step == 4


@pytest.mark.parametrize("width", [None, 8, 4096])
@pytest.mark.parametrize("outcomes", ["none", "one", "all fail", "all succeed", "mixed"])
def test_degenerate_pools_stay_sound(make: Callable[[], Estimator], width: int | None, outcomes: str) -> None:
    for size, duplicates in product((1, 2, 3, 30), (False, True)):
        rng = np.random.default_rng(0)
        embeddings = None if width is None else rng.normal(size=(size, width)).astype(np.float32)
        surface = rng.normal(size=(size, 9)).astype(np.float32)
        if duplicates:
            surface[:] = surface[0]
            if embeddings is not None:
                embeddings[:] = embeddings[0]
        features = features_of(size, embeddings=embeddings, surface=surface)
        estimator = make()
        prompt = np.arange({"none": 0, "one": 1}.get(outcomes, size))
        successes = {"all fail": 0.0, "all succeed": 8.0}.get(outcomes, rng.integers(0, 9, len(prompt)))
        for step in range(3):
            estimator.observe(batch_of(step, prompt, np.broadcast_to(successes, prompt.shape), 8, reference=True))
        _assert_sound(estimator.estimate(features, 5), size)
        assert len(estimator.references(features, 5, 0, 3)) <= 3


def test_extreme_evidence_stays_sound(make: Callable[[], Estimator]) -> None:
    """Hundreds of visits, all one way, with huge groups and far-away steps."""
    features = _features(50)
    estimator = make()
    for step in range(0, 300_000, 1000):
        successes = np.where(np.arange(50) < 25, 0.0, 1000.0)
        estimator.observe(batch_of(step, np.arange(50), successes, 1000, population=np.full(50, 1 - 1e-12)))
    for step in (0, 10**9):
        _assert_sound(estimator.estimate(features, step), 50)


def test_a_trained_adapter_is_used() -> None:
    features = _features()
    plain, trained = (_fold(_make("ATTENTION", trained=value), _history(5)) for value in (False, True))
    assert features.embeddings is not None
    prompt = int(np.flatnonzero(features.embeddings.any(axis=1))[0])
    assert plain.references(features, 31, prompt, 3) != trained.references(features, 31, prompt, 3)


def test_names_and_modes_that_do_not_exist_are_refused() -> None:
    assert len(ESTIMATORS) == 3
    with pytest.raises(ValueError, match="FUSED, ATTENTION, TRACKER, got 'ORACLE'"):
        _make("ORACLE")
    with pytest.raises(ValueError, match="reference mode"):
        _make("ATTENTION", "SOMETIMES")
