"""Data that cannot train an adapter is refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from selector.adapter_training import TrainingDataError, rated_questions
from tests.adapter_training.worlds import embeddings, pass_rates, texts

NAMES = ["a", "b"]


def refused(says: str, size: int = 100, vectors: np.ndarray | None = None, rates: np.ndarray | None = None) -> None:
    given = embeddings(0, size) if vectors is None else vectors
    with pytest.raises(TrainingDataError, match=says):
        rated_questions("set", texts(size), given, NAMES, pass_rates(0, given, 2) if rates is None else rates)


def test_too_few_questions() -> None:
    refused("at least 32 questions; got 31", size=31)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite(value: float) -> None:
    vectors = embeddings(0, 100)
    vectors[7, 3] = value
    refused("question 7", vectors=vectors, rates=pass_rates(0, embeddings(0, 100), 2))


@pytest.mark.parametrize("value", [1.01, -0.1, np.inf])
def test_a_rate_out_of_range(value: float) -> None:
    rates = pass_rates(0, embeddings(0, 100), 2)
    rates[9, 1] = value
    refused(r"b: expected pass rates in \[0, 1\].*row 9", rates=rates)


def test_no_model_that_varies() -> None:
    rates = np.ones((100, 2))
    rates[:, 1] = np.nan
    rates[:10, 1] = np.linspace(0, 1, 10)
    refused("fewer than 32 questions: 'b'; models whose pass rates hardly differ between questions: 'a'", rates=rates)


def test_models_that_vary_on_too_few_questions_each() -> None:
    rates = np.full((100, 2), np.nan)
    rates[:30, 0] = rates[50:80, 1] = np.linspace(0, 1, 30)
    refused("no model can be trained on or judged with: .* fewer than 32 questions: 'a', 'b'$", rates=rates)


def test_models_without_variation_or_measurements_are_left_out() -> None:
    vectors = embeddings(0, 100)
    rates = pass_rates(0, vectors, 5)
    rates[:, 1] = 0.5
    rates[5:, 2] = np.nan
    rates[:50, 3] = np.nan
    data = rated_questions("set", texts(100), vectors, list("abcde"), rates)
    assert data.models == ("a", "d", "e")
    assert np.isnan(data.difficulty[:50, 1]).all()
    np.testing.assert_allclose(data.difficulty[:, 0], 1 - rates[:, 0], atol=1e-6)
