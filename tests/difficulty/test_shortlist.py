"""ATTENTION over a shortlist: the nearest references alone, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from selector.config import resolve
from selector.difficulty.attending import Attending, Attention
from selector.difficulty.estimate import OutcomeBatch, PoolFeatures
from selector.difficulty.reference_set import References
from selector.difficulty.registry import estimator_of
from selector.errors import ServiceError
from tests.difficulty.simulation import features_of

_SIZE, _WIDTH, _REFERENCES = 2100, 32, 200


def _features() -> PoolFeatures:
    embeddings = np.random.default_rng(0).normal(size=(_SIZE, _WIDTH)).astype(np.float32)
    return features_of(_SIZE, embeddings=embeddings)


def _attention(shortlist: int) -> Attention:
    random = np.random.default_rng(1)
    prompt = np.sort(random.choice(_SIZE, _REFERENCES, replace=False))
    references = References(prompt, random.random(_REFERENCES), np.full(_REFERENCES, 8.0))
    attention = Attending(None, shortlist).to(_features(), references)
    assert attention is not None
    return attention


def test_a_prompt_attends_to_its_nearest_references_and_to_no_others() -> None:
    attention = _attention(20)
    queries = np.concatenate(attention.tiles)[:_SIZE].astype(np.float64)
    scores = queries @ attention.as_reference.astype(np.float64).T / np.sqrt(_WIDTH)
    scores[scores < np.sort(scores, axis=1)[:, -20:-19]] = -np.inf
    weights = np.exp(scores)
    expected = weights @ attention.references.difficulty / weights.sum(axis=1)
    np.testing.assert_allclose(attention.difficulty(), expected, atol=1e-5)
    shown = attention.weights(2050)
    assert np.count_nonzero(shown) == 20
    np.testing.assert_allclose(shown, weights[2050] / weights[2050].sum(), atol=1e-5)


def test_a_longer_shortlist_is_nearer_to_all_and_one_of_all_is_the_same() -> None:
    full = _attention(0).difficulty()
    errors = [np.abs(_attention(k).difficulty() - full).mean() for k in (10, 50, 150)]
    assert errors[0] > errors[1] > errors[2] > 0
    np.testing.assert_array_equal(_attention(_REFERENCES).difficulty(), full)


def test_a_run_attends_to_a_shortlist_where_it_says_so() -> None:
    features = _features()
    random = np.random.default_rng(2)
    prompt = np.sort(random.choice(_SIZE, _REFERENCES, replace=False)).astype(np.int32)
    batch = OutcomeBatch(
        step=0,
        reference=False,
        prompt=prompt,
        trials=np.full(_REFERENCES, 8.0),
        successes=random.integers(0, 9, _REFERENCES).astype(np.float64),
        uniform=np.ones(_REFERENCES, dtype=bool),
        population=np.full(_REFERENCES, np.nan),
    )
    strongest = []
    for shortlist in (0, 5):
        config = resolve({"estimator": {"name": "ATTENTION", "shortlist": shortlist}})
        estimator = estimator_of(config, None)
        estimator.observe(batch)
        found = estimator.references(features, 1, 2099, 10)
        strongest.append(found)
        original, copy = (e.estimate(features, 1).difficulty for e in (estimator, estimator.copy()))
        np.testing.assert_array_equal(original, copy)
    everything, short = strongest
    assert [prompt for prompt, _, _ in short] == [prompt for prompt, _, _ in everything[:5]]
    assert sum(weight for _, weight, _ in short) == pytest.approx(1.0)


def test_a_shortlist_is_for_attention() -> None:
    with pytest.raises(ServiceError, match="is for ATTENTION; the estimator is FUSED"):
        resolve({"estimator": {"shortlist": 5}})
    with pytest.raises(ServiceError, match="expected >= 0; got -1"):
        resolve({"estimator": {"name": "ATTENTION", "shortlist": -1}})
