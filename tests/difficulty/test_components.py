"""Principal components of embeddings, and the columns made of them, whatever the size of the pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from selector.difficulty.fused import estimator as fused
from selector.difficulty.fused.components import principal_components
from selector.difficulty.fused.design import build_design
from selector.difficulty.fused.estimator import FusedEstimator
from tests.difficulty.simulation import batch_of, features_of

# More than two tiles.
_SIZE, _WIDTH, _COUNT = 4200, 24, 6


def _embeddings(seed: int = 0) -> np.ndarray:
    """Six directions of falling spread, a constant and some noise; every hundredth prompt has none."""
    random = np.random.default_rng(seed)
    spread = 0.5 ** np.arange(_COUNT)
    told = random.normal(size=(_SIZE, _COUNT)) * spread @ random.normal(size=(_COUNT, _WIDTH))
    embeddings = (3.0 + told + 0.01 * random.normal(size=(_SIZE, _WIDTH))).astype(np.float32)
    embeddings[::100] = 0.0
    return embeddings


def test_scores_are_those_of_the_exact_components() -> None:
    embeddings = _embeddings()
    covered = embeddings.any(axis=1)
    centred = embeddings[covered].astype(np.float64) - embeddings[covered].mean(axis=0, dtype=np.float64)
    left, spread, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :_COUNT] * spread[:_COUNT] / (spread[0] / np.sqrt(len(centred)))
    scores = principal_components(embeddings, _COUNT)
    assert (scores[~covered] == 0.0).all()
    for column, exact in zip(scores[covered].T, expected.T, strict=True):
        # A basis from fewer rows than all is turned a little.
        assert abs(np.corrcoef(column, exact)[0, 1]) > 0.999
        assert np.std(column) == pytest.approx(np.std(exact), rel=0.02)


def test_columns_of_the_design_are_the_components_in_proportion() -> None:
    embeddings = _embeddings()
    components = principal_components(embeddings, _COUNT)
    # One that does not vary is left out, wherever it stands.
    constant = np.insert(components, 2, 0.25, axis=1)
    domain = (np.arange(_SIZE) % 3).astype(np.int32)
    design = build_design(features_of(_SIZE, embeddings=embeddings, domain=domain), constant)
    of_embeddings = design.columns[:, design.source == 2]
    variance = np.square(constant, dtype=np.float64).sum(axis=1).mean()
    np.testing.assert_allclose(of_embeddings, components * np.sqrt(9.0 / variance), rtol=1e-6, atol=1e-7)
    # The intercept, the components, whether there is an embedding, and the domains.
    assert len(design.source) == len(design.centre) == design.columns.shape[1] == 1 + _COUNT + 1 + 3
    assert (design.columns[:, 0] == 1.0).all()


def test_they_are_found_anew_for_other_embeddings_and_not_for_other_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[np.ndarray] = []

    def noted(embeddings: np.ndarray, count: int) -> np.ndarray:
        found.append(embeddings)
        return principal_components(embeddings, count)

    monkeypatch.setattr(fused, "principal_components", noted)
    estimator = FusedEstimator(_COUNT)
    estimator.observe(batch_of(0, np.arange(100), np.arange(100) % 9))
    pool = replace(features_of(_SIZE, embeddings=_embeddings()), version=1)
    first = estimator.estimate(pool, 1)
    signalled = replace(pool, version=2, signals={"a": np.random.default_rng(1).normal(size=_SIZE)})
    assert (estimator.estimate(signalled, 1).difficulty != first.difficulty).any()
    assert len(found) == 1
    other = replace(pool, version=3, embeddings=_embeddings(seed=1))
    assert (estimator.copy().estimate(other, 1).difficulty != first.difficulty).any()
    assert len(found) == 2
    # The same content again, be it in another array, gives the same bits.
    again = replace(pool, version=4, embeddings=_embeddings())
    np.testing.assert_array_equal(estimator.estimate(again, 1).difficulty, first.difficulty)
