"""The controls: what they predict of a reference never rests on that reference, and they find what there is to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from selector.evaluation import simple_rows
from selector.evaluation.draws import Draw
from selector.evaluation.simple_rows import (
    as_estimate,
    constant,
    embedding_block,
    neighbours,
    prior_block,
    ridge,
    standardised,
)


def _draw(rate: np.ndarray, reference: np.ndarray, trials: float = 8.0) -> Draw:
    size = np.full(len(reference), trials)
    unseen = np.setdiff1d(np.arange(len(rate)), reference)
    return Draw(0, reference.astype(np.int32), size, rate[reference] * size, unseen, (slice(0, len(reference)),))


def _without(draw: Draw, at: int) -> Draw:
    kept = np.arange(len(draw.reference)) != at
    return replace(
        draw, reference=draw.reference[kept], trials=draw.trials[kept], successes=draw.successes[kept], reports=()
    )


@pytest.fixture
def world() -> tuple[np.ndarray, np.ndarray]:
    """Columns (N, 3) and rates (N,) that follow from two of them."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(120, 3))
    rate = 1 / (1 + np.exp(-(columns[:, 0] - 0.5 * columns[:, 1] + 0.3 * rng.normal(size=120))))
    return columns, rate


def test_left_out_predictions_of_ridge_are_those_of_a_fit_without(
    world: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, rate = world
    draw = _draw(rate, np.arange(40))
    monkeypatch.setattr(simple_rows, "_MARGIN", -9.0)
    monkeypatch.setattr(simple_rows, "_PENALTIES", np.array([10.0]))
    left_out = ridge([columns], draw).left_out
    for at in (0, 17, 39):
        # The penalty grows with the references: the same one for 39 as for 40.
        monkeypatch.setattr(simple_rows, "_PENALTIES", np.array([10.0 * 40 / 39]))
        assert ridge([columns], _without(draw, at)).rate[at] == pytest.approx(left_out[at], abs=1e-9)


def test_left_out_means_of_neighbours_are_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rate = rng.random(30)
    angle = np.pi * rate / 2
    embeddings = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    monkeypatch.setattr(simple_rows, "_NEIGHBOURS", (2,))
    monkeypatch.setattr(simple_rows, "_through_line", lambda means, alone, _draw: simple_rows.Fit(means, alone))
    draw = _draw(rate, np.arange(20))
    left_out = neighbours(embeddings, draw).left_out
    for at in range(20):
        others = [i for i in range(20) if i != at]
        nearest = sorted(others, key=lambda i: abs(rate[i] - rate[at]))[:2]
        assert left_out[at] == pytest.approx(rate[nearest].mean(), abs=1e-6)


def test_ridge_and_neighbours_find_what_the_columns_tell(world: tuple[np.ndarray, np.ndarray]) -> None:
    columns, rate = world
    draw = _draw(rate, np.arange(60))
    for fit in (ridge([columns], draw), neighbours(columns.astype(np.float32), draw)):
        assert np.corrcoef(fit.rate[draw.unseen], rate[draw.unseen])[0, 1] > 0.7
    noise = np.random.default_rng(2).normal(size=(120, 3))
    useless = ridge([noise], draw)
    assert useless.rate.std() < 0.08


def test_a_useless_block_does_not_spoil_a_useful_one(world: tuple[np.ndarray, np.ndarray]) -> None:
    columns, rate = world
    draw = _draw(rate, np.arange(60))
    noise = embedding_block(np.random.default_rng(3).normal(size=(120, 200)).astype(np.float32))
    error = np.abs(ridge([columns, noise], draw).rate - rate)[draw.unseen].mean()
    assert error < np.abs(constant(120, draw).rate - rate)[draw.unseen].mean() * 0.7


def test_the_standard_error_tells_how_far_true_rates_lie(world: tuple[np.ndarray, np.ndarray]) -> None:
    columns, rate = world
    fine = _draw(rate, np.arange(60), trials=1e6)
    estimate = as_estimate(ridge([columns], fine), fine)
    spread = np.sqrt(np.mean((1 - estimate.difficulty - rate)[fine.unseen] ** 2))
    assert np.mean(estimate.standard_error) == pytest.approx(spread, rel=0.4)
    flat = as_estimate(constant(120, fine), fine)
    assert np.mean(flat.standard_error) == pytest.approx(rate.std(), rel=0.25)


def test_binomial_noise_is_no_spread_of_true_rates() -> None:
    rng = np.random.default_rng(4)
    rate = rng.binomial(8, 0.5, 400) / 8
    draw = _draw(rate, np.arange(300))
    assert as_estimate(constant(400, draw), draw).standard_error.max() < 0.06


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_equal_outcomes_give_equal_predictions(rate: float) -> None:
    columns = np.random.default_rng(0).normal(size=(50, 4))
    draw = _draw(np.full(50, rate), np.arange(20))
    for fit in (ridge([columns], draw), neighbours(columns.astype(np.float32), draw), constant(50, draw)):
        estimate = as_estimate(fit, draw)
        assert np.ptp(estimate.difficulty) < 1e-9
        assert np.isfinite(estimate.standard_error).all()
        assert abs(estimate.difficulty[0] - (1 - rate)) < 0.06


@pytest.mark.parametrize("references", [1, 2, 3])
def test_few_references_are_enough_for_a_prediction(references: int) -> None:
    rng = np.random.default_rng(0)
    columns, rate = rng.normal(size=(50, 4)), rng.random(50)
    draw = _draw(rate, np.arange(references))
    for fit in (ridge([columns], draw), neighbours(columns.astype(np.float32), draw), constant(50, draw)):
        estimate = as_estimate(fit, draw)
        assert np.isfinite(estimate.difficulty).all()
        assert ((estimate.standard_error > 0) & np.isfinite(estimate.standard_error)).all()


def test_missing_values_are_the_mean() -> None:
    columns = np.array([[1.0, 5.0], [3.0, 5.0], [np.nan, 5.0]])
    np.testing.assert_allclose(standardised(columns), [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    block = prior_block(np.array([0.0, 1.0, np.nan]), np.array([4.0, 4.0, 0.0]))
    assert np.isfinite(block).all()
    assert block[2, :2].tolist() == [0.0, 0.0]
