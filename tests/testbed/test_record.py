"""Rollouts to the control's final accuracy, with arms and seeds that never get there."""

from __future__ import annotations

import numpy as np
import pytest

from selector.testbed.record import correlation, reached
from selector.testbed.table import reached_text
from tests.testbed.runs import run_of


def test_reaching_is_judged_by_the_mean_of_three_evaluations() -> None:
    run = run_of("default", [0.2, 0.6, 0.2, 0.2, 0.5, 0.5, 0.5])
    assert run.final_accuracy == pytest.approx(0.5)
    assert run.reached_at(0.3) == run.evaluations[2]
    assert run.reached_at(0.5) == run.evaluations[6]
    assert run.reached_at(0.51) is None


def test_each_seed_is_compared_with_its_own_control() -> None:
    controls = [run_of("uniform", [0.2, 0.3, 0.4, 0.4, 0.4], seed=0), run_of("uniform", [0.2, 0.5, 0.8, 0.8, 0.8], 1)]
    fast = [run_of("default", [0.4, 0.4, 0.4, 0.5, 0.5], seed=0), run_of("default", [0.4, 0.6, 0.7, 0.7, 0.7], 1)]
    found = reached(fast, controls)
    assert found.seeds == 2
    assert found.rollouts == (2 * 512,)
    assert found.ratios == (0.5,)
    assert reached_text(found) == "1,024 (0.50, 1 of 2 seeds)"
    assert reached_text(reached(fast[1:], controls)) == "not reached"
    assert reached(controls, controls).ratios == (1.0, 1.0)


def test_a_correlation_needs_variation() -> None:
    assert correlation(np.full(10, 0.5), np.linspace(0, 1, 10)) is None
    assert correlation(np.zeros(1), np.zeros(1)) is None
    assert correlation(np.linspace(0, 1, 10), np.linspace(1, 0, 10)) == pytest.approx(-1.0)
