"""ATTENTION against a plain float64 computation, prompt by prompt."""

from dataclasses import replace

import numpy as np
import pytest

from selector.difficulty import Adapter, Basis, PoolFeatures, kernel
from selector.difficulty.attention import AttentionEstimator
from tests.difficulty.adapters import random_adapter
from tests.difficulty.simulation import batch_of, features_of

WIDTH = 24


def _embeddings(seed: int, size: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, width)).astype(np.float32)


def _measured(features: PoolFeatures, references: np.ndarray, seed: int = 0) -> np.ndarray:
    """Outcomes of 8 rollouts that depend on the embedding."""
    assert features.embeddings is not None
    rate = 1 / (1 + np.exp(-1.5 * features.embeddings[references, 0]))
    return np.random.default_rng(seed).binomial(8, rate).astype(np.float64)


def _attended(scores: np.ndarray, difficulty: np.ndarray) -> float:
    weights = np.exp(scores - scores.max())
    return float((weights * difficulty).sum() / weights.sum())


def _by_hand(
    adapter: Adapter, embeddings: np.ndarray, references: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The documented prediction, one prompt at a time: of all prompts, and of the references from the others alone."""
    z_query = adapter.query(embeddings).astype(np.float64)
    z_reference = adapter.reference(embeddings[references]).astype(np.float64)
    scale = np.sqrt(adapter.width)

    def head(value: float, of: np.ndarray) -> float:
        if adapter.head is None:
            return value
        return float(adapter.head(value, of.mean(), of.std()))

    count = len(references)
    left_out = np.empty(count)
    for i in range(count):
        others = np.arange(count) != i
        scores = z_reference[others] @ z_query[references[i]] / scale
        left_out[i] = head(_attended(scores, d[others]), d[others])
    slope, intercept = np.polyfit(left_out, d, 1)
    if slope < 0:
        slope, intercept = 0.0, d.mean()
    raw = np.array([head(_attended(z_reference @ z / scale, d), d) for z in z_query])
    recalibrated = (np.clip(intercept + slope * values, 1e-4, 1 - 1e-4) for values in (raw, left_out))
    return next(recalibrated), next(recalibrated)


@pytest.mark.parametrize("trained", [False, True])
def test_prediction_is_the_documented_one(trained: bool) -> None:
    adapter = random_adapter(0, WIDTH, 16) if trained else None
    features = features_of(300, embeddings=_embeddings(1, 300))
    references = np.arange(40, 110)
    successes = _measured(features, references)
    estimator = AttentionEstimator(adapter, 256, "NONE")
    estimator.observe(batch_of(3, references, successes))
    estimate = estimator.estimate(features, 4)

    assert features.embeddings is not None
    plain = adapter or Adapter.untrained(WIDTH)
    expected, left_out = _by_hand(plain, features.embeddings, references, 1 - successes / 8)
    np.testing.assert_allclose(estimate.difficulty, expected, atol=2e-5)
    np.testing.assert_allclose(1 - estimate.population[references], left_out, atol=2e-5)
    assert np.ptp(estimate.difficulty) > 0.01
    assert (estimate.basis == Basis.POPULATION).all()
    assert ((estimate.own_weight > 0) == np.isin(np.arange(300), references)).all()


def test_large_scores_take_the_path_that_cannot_overflow() -> None:
    width = 9000
    features = features_of(60, embeddings=_embeddings(2, 60, width))
    references = np.arange(30)
    successes = _measured(features, references)
    assert Adapter.untrained(width).largest_score > 80
    estimator = AttentionEstimator(None, 256, "NONE")
    estimator.observe(batch_of(0, references, successes))
    assert features.embeddings is not None
    expected, _ = _by_hand(Adapter.untrained(width), features.embeddings, references, 1 - successes / 8)
    np.testing.assert_allclose(estimator.estimate(features, 1).difficulty, expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_many_references_are_attended_to_in_blocks(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    adapter = random_adapter(0, WIDTH, 16)
    norm = replace(adapter.query.norm_out, weight=adapter.query.norm_out.weight * np.float32(scale))
    adapter = replace(adapter, query=replace(adapter.query, norm_out=norm))
    assert (adapter.largest_score > 70.0) == (scale > 1.0)
    features = features_of(300, embeddings=_embeddings(1, 300))
    references = np.arange(40, 110)
    found = []
    for block in (4096, 32, 7):
        monkeypatch.setattr(kernel, "BLOCK", block)
        estimator = AttentionEstimator(adapter, 256, "NONE")
        estimator.observe(batch_of(3, references, _measured(features, references)))
        found.append(estimator.estimate(features, 4).difficulty)
    for blocks in found[1:]:
        np.testing.assert_allclose(blocks, found[0], atol=2e-6)


def test_growing_the_pool_leaves_earlier_predictions_bit_for_bit() -> None:
    embeddings = _embeddings(4, 5000)
    references = np.arange(100)
    small, large = (features_of(n, version=n, embeddings=embeddings[:n]) for n in (2050, 5000))
    successes = _measured(small, references)

    def fresh() -> AttentionEstimator:
        estimator = AttentionEstimator(random_adapter(1, WIDTH, 16), 256, "NONE")
        estimator.observe(batch_of(0, references, successes))
        return estimator

    used = fresh()
    before = used.estimate(small, 1)
    after = used.estimate(large, 1)
    np.testing.assert_array_equal(before.difficulty, after.difficulty[:2050])
    np.testing.assert_array_equal(fresh().estimate(large, 1).difficulty, after.difficulty)


def test_a_replaced_embedding_is_noticed_under_a_new_version() -> None:
    embeddings = _embeddings(6, 3000)
    references = np.arange(100)
    first = features_of(3000, version=1, embeddings=embeddings)
    changed = embeddings.copy()
    changed[2500] = embeddings[0]
    second = features_of(3000, version=2, embeddings=changed)
    estimator = AttentionEstimator(None, 256, "NONE")
    estimator.observe(batch_of(0, references, _measured(first, references)))
    before, after = estimator.estimate(first, 1), estimator.estimate(second, 1)
    moved = before.difficulty != after.difficulty
    assert np.flatnonzero(moved).tolist() == [2500]


def test_references_are_the_largest_weights_and_sum_to_one() -> None:
    features = features_of(50, embeddings=_embeddings(7, 50))
    references = np.arange(10, 30)
    successes = _measured(features, references)
    estimator = AttentionEstimator(None, 256, "NONE")
    estimator.observe(batch_of(0, references, successes))
    everything = estimator.references(features, 1, 3, 100)
    assert estimator.references(features, 1, 3, 5) == everything[:5]
    weights = [weight for _, weight, _ in everything]
    assert weights == sorted(weights, reverse=True)
    np.testing.assert_allclose(sum(weights), 1.0)
    measured = dict(zip(references.tolist(), (1 - successes / 8).tolist(), strict=True))
    assert {prompt: difficulty for prompt, _, difficulty in everything} == measured
    assert estimator.references(features, 1, 12, 1)[0][0] == 12


def test_standard_error_matches_the_spread_of_the_truth() -> None:
    """Rates that the embedding tells nothing about: the standard error is the spread of the rates, noise taken off."""
    rng = np.random.default_rng(8)
    rate = rng.beta(2, 2, 2000)
    features = features_of(2000, embeddings=_embeddings(9, 2000))
    references = np.arange(1000)
    estimator = AttentionEstimator(None, 1000, "NONE")
    estimator.observe(batch_of(0, references, rng.binomial(4, rate[references]), 4))
    estimate = estimator.estimate(features, 1)
    fresh = np.arange(1000, 2000)
    actual = float(np.std(rate[fresh] - (1 - estimate.difficulty[fresh])))
    assert abs(estimate.standard_error[fresh].mean() / actual - 1) < 0.12


def test_before_any_reference_everything_is_unknown() -> None:
    estimate = AttentionEstimator(None, 8, "DEDICATED").estimate(features_of(3, embeddings=_embeddings(0, 3)), 0)
    assert estimate.difficulty.tolist() == [0.5] * 3
    np.testing.assert_allclose(estimate.standard_error, 12**-0.5)
    assert (estimate.basis == Basis.NONE).all() and estimate.step == -1


@pytest.mark.parametrize("case", ["two references", "equal outcomes", "no embeddings"])
def test_with_nothing_to_attend_to_the_mean_is_predicted(case: str) -> None:
    embeddings = None if case == "no embeddings" else _embeddings(10, 40)
    features = features_of(40, embeddings=embeddings)
    count = 2 if case == "two references" else 10
    successes = np.full(count, 8.0) if case == "equal outcomes" else np.arange(count) % 9.0
    estimator = AttentionEstimator(None, 256, "NONE")
    estimator.observe(batch_of(0, np.arange(count), successes))
    estimate = estimator.estimate(features, 1)
    expected = (1 + (1 - successes / 8).sum()) / (2 + count)
    np.testing.assert_allclose(estimate.difficulty, expected)
    assert (estimate.standard_error >= 0.02).all()
    assert estimator.references(features, 1, 0, 5) == []


def test_a_prompt_without_embedding_gets_the_mean_and_gives_no_attention() -> None:
    embeddings = _embeddings(11, 60)
    references = np.arange(20)
    whole = features_of(60, embeddings=embeddings)
    successes = _measured(whole, references)
    holed = embeddings.copy()
    holed[[5, 50]] = 0.0
    features = features_of(60, embeddings=holed)
    estimator = AttentionEstimator(None, 256, "NONE")
    estimator.observe(batch_of(0, references, successes))
    estimate = estimator.estimate(features, 1)
    mean = (1 + (1 - successes / 8).sum()) / (2 + 20)
    np.testing.assert_allclose(estimate.difficulty[[5, 50]], mean)
    assert estimator.references(features, 1, 50, 5) == []
    assert 5 not in [prompt for prompt, _, _ in estimator.references(features, 1, 40, 100)]
    attending = np.delete(references, 5)
    expected, _ = _by_hand(Adapter.untrained(WIDTH), holed, attending, 1 - successes[attending] / 8)
    np.testing.assert_allclose(estimate.difficulty[40:50], expected[40:50], atol=2e-5)


def test_embeddings_of_another_width_than_the_adapters_are_refused() -> None:
    estimator = AttentionEstimator(random_adapter(1, WIDTH, 16), 256, "NONE")
    estimator.observe(batch_of(0, np.arange(8), np.arange(8.0)))
    with pytest.raises(ValueError, match=f"width {WIDTH}, got 8"):
        estimator.estimate(features_of(10, embeddings=_embeddings(0, 10, 8)), 1)
