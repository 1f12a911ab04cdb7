"""Estimators are reported to as in a run: step by step, each report with what was predicted before it."""

from __future__ import annotations

import numpy as np

from selector.difficulty.estimate import OutcomeBatch
from selector.difficulty.fused import FusedEstimator
from selector.evaluation.draws import draw_references
from selector.evaluation.questions import register
from selector.evaluation.service_rows import estimate, fresh_estimator
from tests.evaluation.conftest import made_up

SIZE = 300


class _Recorded(FusedEstimator):
    """FUSED that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(16)
        self.told: list[OutcomeBatch] = []

    def observe(self, batch: OutcomeBatch) -> None:
        self.told.append(batch)
        super().observe(batch)


def test_reports_are_those_of_a_run() -> None:
    columns = made_up(SIZE)
    nothing = np.full(SIZE, np.nan)
    features = register(columns["id"], columns["text"], columns["domain"], None, nothing, np.zeros(SIZE)).features
    draw = draw_references(np.array(columns["policy"]), np.full(SIZE, 16.0), 150, 8, seed=0, number=0)
    recorded, again = _Recorded(), fresh_estimator("FUSED", 150)
    found = estimate(recorded, features, draw)
    assert [batch.step for batch in recorded.told] == [0, 1, 2]
    assert [len(batch.prompt) for batch in recorded.told] == [64, 64, 22]
    assert np.concatenate([batch.prompt for batch in recorded.told]).tolist() == draw.reference.tolist()
    assert np.concatenate([batch.successes for batch in recorded.told]).tolist() == draw.successes.tolist()
    assert all(batch.uniform.all() and not batch.reference for batch in recorded.told)
    for batch in recorded.told:
        before = again.estimate(features, batch.step)
        np.testing.assert_array_equal(batch.population, before.population[batch.prompt])
        again.observe(batch)
    np.testing.assert_array_equal(found.difficulty, again.estimate(features, 3).difficulty)
