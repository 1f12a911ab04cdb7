"""Draws of references: fixed beforehand, nested, and what a trainer would have seen."""

from __future__ import annotations

import numpy as np
import pytest

from selector.evaluation.draws import MOST_REPORTS, draw_references

RATE = np.round(np.random.default_rng(1).random(500) * 32) / 32
MANY = np.full(500, 32.0)


def test_draws_are_fixed_by_seed_and_number() -> None:
    first, again = (draw_references(RATE, MANY, 100, 8, seed=3, number=1) for _ in range(2))
    assert first.reference.tolist() == again.reference.tolist()
    assert first.successes.tolist() == again.successes.tolist()
    for seed, number in ((3, 2), (4, 1)):
        assert draw_references(RATE, MANY, 100, 8, seed, number).reference.tolist() != first.reference.tolist()


def test_more_references_contain_the_fewer_and_what_was_seen_of_them() -> None:
    few, more = (draw_references(RATE, MANY, count, 8, seed=0, number=0) for count in (64, 256))
    assert more.reference[:64].tolist() == few.reference.tolist()
    assert more.successes[:64].tolist() == few.successes.tolist()


def test_no_question_is_both_reference_and_unseen() -> None:
    draw = draw_references(RATE, MANY, 100, 8, seed=0, number=0)
    assert sorted([*draw.reference, *draw.unseen]) == list(range(500))


def test_a_reference_shows_group_size_of_its_trials() -> None:
    draw = draw_references(RATE, MANY, 400, 8, seed=0, number=0)
    assert set(draw.trials) == {8.0}
    measured = RATE[draw.reference] * 32
    assert (draw.successes <= measured).all()
    assert (8 - draw.successes <= 32 - measured).all()
    # 8 of 32 without replacement: the deviation of a rate is sqrt(p (1 - p) / 8 x 24 / 31).
    error = draw.rate - RATE[draw.reference]
    assert abs(error.mean()) < 0.02
    expected = np.sqrt(np.mean(RATE * (1 - RATE)) / 8 * 24 / 31)
    assert error.std() == pytest.approx(expected, rel=0.15)


def test_with_fewer_trials_all_of_them_are_seen() -> None:
    trials = np.where(np.arange(500) % 2, 3.0, 32.0)
    rate = np.where(trials == 3, np.float32(2 / 3), RATE).astype(np.float64)
    draw = draw_references(rate, trials, 200, 8, seed=0, number=0)
    few = trials[draw.reference] == 3
    assert draw.trials.tolist() == np.where(few, 3.0, 8.0).tolist()
    assert set(draw.successes[few]) == {2.0}


def test_partial_credit_is_kept() -> None:
    draw = draw_references(np.full(50, 0.45), np.full(50, 4.0), 20, 8, seed=0, number=0)
    assert draw.successes == pytest.approx(np.full(20, 1.8))


@pytest.mark.parametrize("count", [1, 64, 65, 2000])
def test_references_are_reported_in_few_steps(count: int) -> None:
    draw = draw_references(np.full(3000, 0.5), np.full(3000, 8.0), count, 8, seed=0, number=0)
    covered = [at for part in draw.reports for at in range(part.start, part.stop)]
    assert covered == list(range(count))
    assert len(draw.reports) == min(-(-count // 64), MOST_REPORTS)
