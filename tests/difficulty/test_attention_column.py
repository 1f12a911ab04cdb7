"""The adapter as a column of FUSED: it helps where it tells something, and no prompt's own outcome leaks into it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from selector import state_codec
from selector.difficulty import Adapter, OutcomeBatch, PoolFeatures, make_estimator
from selector.difficulty.adapter import LayerNorm, Linear, Projection
from selector.difficulty.estimate import Estimator
from selector.difficulty.fused import AttentionColumn
from tests.difficulty.adapters import random_adapter
from tests.difficulty.simulation import batch_of, features_of, log_loss

WIDTH = 16


def knowing(sharpness: float = 3.0) -> Adapter:
    """Attends by the first component of the embedding alone, as one that was trained would."""
    flat = LayerNorm(np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32))
    weight = np.zeros((WIDTH, WIDTH), np.float32)
    # The first output keeps the component, the second is constant: their direction tells it after the last norm.
    weight[0, 0], weight[1, 0] = 1.0, -1.0
    scale = LayerNorm(np.full(WIDTH, sharpness, np.float32), np.zeros(WIDTH, np.float32))
    bias = np.zeros(WIDTH, np.float32)
    bias[2], bias[3] = 1.0, -1.0
    side = Projection(flat, (Linear(weight, bias),), scale)
    return Adapter(side, side, None, "", "")


def blind() -> Adapter:
    """Attends to all references alike."""
    nothing = LayerNorm(np.zeros(WIDTH, np.float32), np.zeros(WIDTH, np.float32))
    side = Projection(nothing, (), nothing)
    return Adapter(side, side, None, "", "")


def fused(adapter: Adapter | None, size: int = 256) -> Estimator:
    return make_estimator(
        "FUSED",
        adapter=adapter,
        reference_mode="IN_BATCH",
        reference_size=size,
        tracker_decay=0.7,
        embedding_components=0,
    )


def world(seed: int, size: int = 600) -> tuple[PoolFeatures, np.ndarray]:
    """Difficulty is highest for middling first components, which no linear model of the embedding can tell."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(size, WIDTH)).astype(np.float32)
    return features_of(size, embeddings=vectors), expit(3.0 * np.abs(vectors[:, 0]) - 2.0)


def follow(estimator: Estimator, features: PoolFeatures, rate: np.ndarray, steps: int = 5) -> np.ndarray:
    """Success rates predicted after ``steps`` reports of 60 prompts."""
    random = np.random.default_rng(0)
    for step in range(steps):
        prompt = np.arange(60 * step, 60 * (step + 1))
        before = estimator.estimate(features, step)
        population = before.population[prompt]
        estimator.observe(batch_of(step, prompt, random.binomial(8, rate[prompt]), population=population))
    return 1.0 - estimator.estimate(features, steps).difficulty


def test_it_helps_on_prompts_never_tried() -> None:
    features, rate = world(0)
    cold = slice(300, None)
    ones = np.ones(300)
    without = log_loss(follow(fused(None), features, rate)[cold], rate[cold], ones)
    with_it = log_loss(follow(fused(knowing()), features, rate)[cold], rate[cold], ones)
    assert with_it < without - 0.02


def test_an_adapter_that_tells_nothing_changes_nothing() -> None:
    """Equal attention to all: the sum without a prompt's own outcome would tell that outcome with the sign turned."""
    features, rate = world(1)
    np.testing.assert_array_equal(follow(fused(blind()), features, rate), follow(fused(None), features, rate))


def test_an_adapter_that_is_wrong_does_little_harm() -> None:
    features, rate = world(2)
    cold = slice(300, None)
    ones = np.ones(300)
    without = log_loss(follow(fused(None), features, rate)[cold], rate[cold], ones)
    wrong = log_loss(follow(fused(random_adapter(0, WIDTH, 8)), features, rate)[cold], rate[cold], ones)
    assert wrong < without + 0.01


def test_a_references_column_does_not_depend_on_its_own_outcome() -> None:
    features, rate = world(3)
    column = AttentionColumn(knowing(), 64)
    prompt, last_step, trials = np.arange(100), np.arange(100), np.full(100, 8.0)
    first = column(features, prompt, last_step, rate[:100], trials)
    changed = rate[:100].copy()
    changed[80] = 1.0 - changed[80]
    second = column(features, prompt, last_step, changed, trials)
    assert first is not None and second is not None
    np.testing.assert_allclose(second[80], first[80], atol=1e-9)
    assert np.abs(second[81:100] - first[81:100]).min() > 1e-6, "it does tell the others"
    oldest = rate[:100].copy()
    oldest[10] = 1.0 - oldest[10]
    np.testing.assert_array_equal(column(features, prompt, last_step, oldest, trials), first)


@pytest.mark.parametrize("case", ["no embeddings", "two visited", "equal outcomes"])
def test_where_there_is_nothing_to_attend_to_there_is_no_column(case: str) -> None:
    features, rate = world(4)
    if case == "no embeddings":
        features = features_of(600)
    count = 2 if case == "two visited" else 100
    known = np.full(count, 0.5) if case == "equal outcomes" else rate[:count]
    column = AttentionColumn(knowing(), 64)
    assert column(features, np.arange(count), np.zeros(count, np.int64), known, np.full(count, 8.0)) is None


def test_prompts_without_embedding_have_no_value() -> None:
    features, rate = world(5)
    assert features.embeddings is not None
    holed = features.embeddings.copy()
    holed[[3, 500]] = 0.0
    features = features_of(600, embeddings=holed)
    column = AttentionColumn(knowing(), 64)
    values = column(features, np.arange(50), np.zeros(50, np.int64), rate[:50], np.full(50, 8.0))
    assert values is not None
    assert np.flatnonzero(np.isnan(values)).tolist() == [3, 500]


def test_saved_state_predicts_bit_for_bit_the_same_with_an_adapter() -> None:
    features, rate = world(6)
    estimator = fused(knowing())
    expected = follow(estimator, features, rate)
    other = fused(knowing())
    other.load_state_dict(state_codec.decode(state_codec.encode(estimator.state_dict())))
    np.testing.assert_array_equal(1.0 - other.estimate(features, 5).difficulty, expected)
    report = OutcomeBatch(**batch_of(6, [1, 400], [3, 4]).state_dict())
    for each in (estimator, other, estimator.copy()):
        each.observe(report)
    np.testing.assert_array_equal(other.estimate(features, 7).difficulty, estimator.estimate(features, 7).difficulty)
