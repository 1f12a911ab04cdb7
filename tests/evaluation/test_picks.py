"""What comes of picking: only questions that were no references, by the service's own choice, measured as defined."""

from __future__ import annotations

import numpy as np
import pytest

from selector.config import RunConfig, resolve
from selector.difficulty.estimate import Basis, Estimate
from selector.evaluation.figures import Measured
from selector.evaluation.picks import picks

SIZE = 200
UNSEEN = np.arange(100, SIZE)


def _estimate(difficulty: np.ndarray, error: float = 0.01) -> Estimate:
    size = len(difficulty)
    basis = np.full(size, Basis.POPULATION, dtype=np.uint8)
    return Estimate(0, difficulty, np.full(size, error), np.zeros(size), basis, 1.0 - difficulty)


def _measured(rate: np.ndarray, trials: float = 16.0) -> Measured:
    return Measured(rate * trials, np.full(len(rate), trials))


def test_only_unseen_questions_are_picked() -> None:
    """The references look best and are best; whoever picked one would have found an informative group."""
    references = np.arange(SIZE) < 100
    found = picks(
        RunConfig(), _estimate(np.where(references, 0.5, 0.9)), UNSEEN, _measured(np.where(references, 0.5, 0.0)), 20, 0
    )
    assert (found.in_band, found.informative) == (0.0, pytest.approx(0.0, abs=1e-9))


def test_nearest_to_the_target_are_in_band_and_the_batch_is_the_services() -> None:
    difficulty = np.where(np.arange(SIZE) % 2, 0.5, 0.99)
    found = picks(RunConfig(), _estimate(difficulty), UNSEEN, _measured(np.where(np.arange(SIZE) % 2, 0.5, 0.0)), 20, 0)
    assert found.in_band == 1.0
    # An eighth of the batch is drawn uniformly, and half of those groups are uninformative.
    assert found.informative == pytest.approx(1.0 - 0.125 / 2, abs=0.04)
    uniform = resolve({"preset": "UNIFORM"})
    assert picks(uniform, _estimate(difficulty), UNSEEN, _measured(1.0 - difficulty), 20, 0).informative == (
        pytest.approx(0.5, abs=0.12)
    )


def test_the_band_is_that_of_measured_difficulty() -> None:
    for rate, inside in ((0.125, 1.0), (0.875, 1.0), (0.0625, 0.0), (0.9375, 0.0)):
        found = picks(RunConfig(), _estimate(np.full(SIZE, 0.5)), UNSEEN, _measured(np.full(SIZE, rate)), 20, 0)
        assert found.in_band == inside


def test_single_trials_are_left_out() -> None:
    rate = np.full(SIZE, 0.5)
    trials = np.where(np.arange(SIZE) < 140, 1.0, 16.0)
    assert picks(RunConfig(), _estimate(rate), UNSEEN, Measured(np.round(rate * trials), trials), 20, 0).in_band == 1.0
    trials = np.where(np.arange(SIZE) < 170, 1.0, 16.0)
    found = picks(RunConfig(), _estimate(rate), UNSEEN, Measured(np.round(rate * trials), trials), 20, 0)
    assert (found.in_band, found.informative) == (None, None)
