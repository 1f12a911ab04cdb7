"""Made-up pass rates whose cause is known: one direction of the embedding decides how hard a question is."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from selector.adapter_training import RatedQuestions, rated_questions

WIDTH = 12
TRIALS = 8


def embeddings(seed: int, size: int) -> np.ndarray:
    """(N, 12): the first component decides; the others say nothing and are twice as large."""
    vectors = np.random.default_rng([seed, 0]).normal(size=(size, WIDTH))
    vectors[:, 1:] *= 2.0
    return vectors.astype(np.float32)


def pass_rates(seed: int, vectors: np.ndarray, models: int, told: float = 4.0) -> np.ndarray:
    """(N, M) rates of 8 trials; ``told`` = 0: every model has difficulties of its own, which nothing tells."""
    random = np.random.default_rng([seed, 1])
    levels = random.normal(scale=0.5, size=models)
    own = random.normal(scale=0.3 if told else 2.0, size=(len(vectors), models))
    rate = expit(told * vectors[:, :1] + levels + own)
    drawn: np.ndarray = random.binomial(TRIALS, rate) / TRIALS
    return drawn


def world(seed: int, size: int = 800, models: int = 5, told: float = 4.0) -> RatedQuestions:
    """Questions of that kind."""
    vectors = embeddings(seed, size)
    names = [f"model-{i}" for i in range(models)]
    return rated_questions("world", texts(size), vectors, names, pass_rates(seed, vectors, models, told))


def texts(size: int) -> list[str]:
    return [f"question {i}" for i in range(size)]
