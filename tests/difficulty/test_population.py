"""The population model: what it falls back to, and that no row's own outcome is in its prediction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from selector.difficulty.fused.components import principal_components
from selector.difficulty.fused.design import PopulationDesign, build_design
from selector.difficulty.fused.population import PopulationRows, fit_population
from tests.difficulty.simulation import features_of

SIZE, SEEN = 600, 200


def _design(embeddings: np.ndarray | None, surface: np.ndarray) -> PopulationDesign:
    columns = np.zeros((SIZE, 9), dtype=np.float32)
    columns[:, 0] = surface
    pool = features_of(SIZE, embeddings=embeddings, surface=columns)
    components = np.zeros((SIZE, 0), dtype=np.float32) if embeddings is None else principal_components(embeddings, 64)
    return build_design(pool, components)


def _rows(rate: np.ndarray) -> PopulationRows:
    return PopulationRows(np.arange(SEEN), rate, np.full(SEEN, 3.0), np.zeros(SEEN))


@pytest.fixture
def told() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SIZE)


def test_embeddings_that_tell_nothing_are_left_out(told: np.ndarray) -> None:
    noise = np.random.default_rng(1).normal(size=(SIZE, 64)).astype(np.float32)
    rows = _rows(np.random.default_rng(2).binomial(8, expit(1.5 * told[:SEEN])) / 8)
    with_noise, without = fit_population(_design(noise, told), rows), fit_population(_design(None, told), rows)
    np.testing.assert_allclose(with_noise, without, atol=1e-5)
    assert np.corrcoef(with_noise[SEEN:], told[SEEN:])[0, 1] > 0.95


def test_embeddings_that_tell_everything_are_used(told: np.ndarray) -> None:
    random = np.random.default_rng(1)
    embeddings = np.concatenate([told[:, None], random.normal(size=(SIZE, 15))], axis=1).astype(np.float32)
    rows = _rows(random.binomial(8, expit(1.5 * told[:SEEN])) / 8)
    fitted = fit_population(_design(embeddings, random.normal(size=SIZE)), rows)
    assert np.corrcoef(fitted[SEEN:], told[SEEN:])[0, 1] > 0.9


def test_texts_are_left_out_where_a_prior_tells_all(told: np.ndarray) -> None:
    random = np.random.default_rng(5)
    rate = expit(2.0 * told)
    prior = random.binomial(64, rate) / 64
    noise = random.normal(size=(SIZE, 9)).astype(np.float32)
    rows = _rows(random.binomial(8, rate[:SEEN]) / 8)
    given = {"prior_rate": prior, "prior_trials": np.full(SIZE, 64.0)}
    nothing = np.zeros((SIZE, 0), dtype=np.float32)
    with_noise = fit_population(build_design(features_of(SIZE, surface=noise, **given), nothing), rows)
    without = fit_population(build_design(features_of(SIZE, **given), nothing), rows)
    np.testing.assert_allclose(with_noise, without, atol=1e-5)
    # Where the text tells what the prior does not, it stays.
    noise[:, 0] = random.normal(size=SIZE)
    rate = expit(2.0 * told + 2.0 * noise[:, 0])
    rows = _rows(random.binomial(8, rate[:SEEN]) / 8)
    fitted = fit_population(build_design(features_of(SIZE, surface=noise, **given), nothing), rows)
    assert np.corrcoef(fitted[SEEN:], logit(rate[SEEN:]))[0, 1] > 0.9


def test_texts_are_left_out_where_the_adapter_tells_all(told: np.ndarray) -> None:
    random = np.random.default_rng(6)
    noise = random.normal(size=(SIZE, 9)).astype(np.float32)
    rows = _rows(random.binomial(8, expit(2.0 * told[:SEEN])) / 8)
    nothing = np.zeros((SIZE, 0), dtype=np.float32)
    designs = [build_design(pool, nothing) for pool in (features_of(SIZE, surface=noise), features_of(SIZE))]
    with_noise, without = (fit_population(design.with_column(told, 0.5), rows) for design in designs)
    np.testing.assert_allclose(with_noise, without, atol=1e-5)


@pytest.mark.parametrize("width", [4, 400])
def test_a_prompt_is_predicted_without_its_own_outcome(told: np.ndarray, width: int) -> None:
    """Also where there are more columns than rows, so that every row could be learned by heart."""
    random = np.random.default_rng(3)
    embeddings = np.concatenate([told[:, None], random.normal(size=(SIZE, width))], axis=1).astype(np.float32)
    design = _design(embeddings, told)
    rate = random.binomial(8, expit(told[:SEEN])) / 8
    other = rate.copy()
    other[0] = 1.0 - rate[0]
    moved = abs(fit_population(design, _rows(other))[0] - fit_population(design, _rows(rate))[0])
    # The approximation leaves a little; a prediction that knew the outcome would move by more than a unit.
    assert moved < 0.1 < abs(logit(0.9 * rate[0] + 0.05) - logit(0.9 * other[0] + 0.05))
