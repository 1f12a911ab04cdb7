"""The whole evaluation on made-up data: nothing leaks, and good predictions are told from bad ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from selector.config import RunConfig
from selector.evaluation.draws import draw_references
from selector.evaluation.experiment import Evaluation, Plan, evaluate, work
from selector.evaluation.questions import Questions, register
from selector.evaluation.rates import ModelRates
from selector.evaluation.report import default_row, tables, verdict
from tests.evaluation.conftest import made_up

SIZE, TRIALS = 160, 16
PLAN = Plan(references=80, draws=2, seed=0, config=RunConfig(), batch=32)


def _questions(prior: bool = False, embeddings: np.ndarray | None = None) -> Questions:
    columns = made_up(SIZE, TRIALS)
    return register(
        columns["id"],
        columns["text"],
        columns["domain"],
        embeddings,
        np.array(columns["other"]) if prior else np.full(SIZE, np.nan),
        np.full(SIZE, float(TRIALS)) if prior else np.zeros(SIZE),
    )


def _rates(rate: np.ndarray | None = None) -> ModelRates:
    found = np.array(made_up(SIZE, TRIALS)["policy"]) if rate is None else rate
    return ModelRates("policy", found, np.full(SIZE, float(TRIALS)))


def _silent(_row: str) -> None:
    pass


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    """With everything: embeddings that tell nothing, and a prior."""
    embeddings = np.random.default_rng(5).normal(size=(SIZE, 8)).astype(np.float32)
    return evaluate(PLAN, _questions(True, embeddings), _rates(), None, _silent)


def _mean(evaluation: Evaluation, row: str, figure: str) -> float:
    found = evaluation.of(row)
    assert found is not None
    value = found.mean[figure]
    assert value is not None
    return value


def test_rows_stand_where_they_belong(evaluation: Evaluation) -> None:
    pearson: Callable[[str], float] = lambda row: _mean(evaluation, row, "pearson")  # noqa: E731
    assert pearson("length only") > 0.6
    assert pearson("fused") > pearson("length only") - 0.1
    assert pearson("fused, prior") > pearson("fused")
    assert pearson("oracle") == pytest.approx(1.0)
    assert abs(pearson("kNN, embeddings")) < 0.25
    constant = evaluation.of("constant")
    assert constant is not None
    assert constant.mean["pearson"] is None
    for figure in ("mean_absolute_error", "log_loss"):
        order = [_mean(evaluation, row, figure) for row in ("oracle", "fused, prior", "length only", "constant")]
        assert order == sorted(order)
    for share in ("in_band", "informative"):
        assert _mean(evaluation, "oracle", share) > _mean(evaluation, "length only", share)
        assert _mean(evaluation, "length only", share) > _mean(evaluation, "constant", share)
    assert default_row(evaluation).row == "fused, prior"


def test_progress_is_told_as_often_as_promised() -> None:
    seen: list[str] = []
    questions = _questions()
    evaluate(PLAN, questions, _rates(), None, seen.append)
    assert len(seen) == work(PLAN, questions, None)
    assert seen[0] == "constant"


def test_the_same_again_is_the_same(evaluation: Evaluation) -> None:
    embeddings = np.random.default_rng(5).normal(size=(SIZE, 8)).astype(np.float32)
    again = evaluate(PLAN, _questions(True, embeddings), _rates(), None, _silent)
    for first, second in zip(evaluation.records, again.records, strict=True):
        assert (first.accuracy, first.picks) == (second.accuracy, second.picks)
        assert first.predicted.tobytes() == second.predicted.tobytes()


def test_nothing_but_the_oracle_sees_outcomes_of_questions_it_is_judged_on(evaluation: Evaluation) -> None:
    rates = _rates()
    unseen = draw_references(rates.rate, rates.trials, PLAN.references, 8, PLAN.seed, 0).unseen
    changed = rates.rate.copy()
    changed[unseen] = 1.0 - changed[unseen]
    embeddings = np.random.default_rng(5).normal(size=(SIZE, 8)).astype(np.float32)
    other = evaluate(replace(PLAN, draws=1), _questions(True, embeddings), _rates(changed), None, _silent)
    before = {record.row: record for record in evaluation.records if record.draw == 0}
    for record in other.records:
        same = record.predicted.tobytes() == before[record.row].predicted.tobytes()
        assert same == (record.row != "oracle")


def test_every_row_sees_the_references(evaluation: Evaluation) -> None:
    first, second = ([r for r in evaluation.records if r.draw == draw] for draw in (0, 1))
    for one, two in zip(first, second, strict=True):
        if one.row != "tracker":
            assert one.predicted[:50].tolist() != two.predicted[:50].tolist()


def test_rows_without_their_data_are_left_out() -> None:
    rates = _rates()
    nan = np.full(SIZE, np.nan)
    bare = register(made_up(SIZE)["id"], None, [""] * SIZE, None, nan, np.zeros(SIZE))
    rows = [summary.row for summary in evaluate(PLAN, bare, rates, None, _silent).summaries]
    assert rows == ["constant", "tracker", "fused", "oracle"]
    rows = [summary.row for summary in evaluate(PLAN, _questions(), rates, None, _silent).summaries]
    assert rows == ["constant", "length only", "surface features", "ridge, all", "tracker", "fused", "oracle"]


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_equal_rates_leave_nothing_to_predict(rate: float) -> None:
    found = evaluate(PLAN, _questions(), _rates(np.full(SIZE, rate)), None, _silent)
    assert verdict(found) == "All measured pass rates are equal: there is no difference between the prompts to predict."
    assert tables(found)


def test_single_trials_leave_shares_of_groups_unmeasured() -> None:
    rates = ModelRates("m", (np.array(made_up(SIZE)["policy"]) > 0.5).astype(float), np.ones(SIZE))
    found = evaluate(PLAN, _questions(), rates, None, _silent)
    assert all(summary.mean["informative"] is None and summary.mean["in_band"] is None for summary in found.summaries)
    assert len(tables(found)) == 1
    assert "informative" not in verdict(found)


@pytest.mark.parametrize(("own", "judged"), [(0.95, "better than"), (0.8, "as good as"), (0.5, "WORSE than")])
def test_the_verdict_compares_with_the_best_other_row(evaluation: Evaluation, own: float, judged: str) -> None:
    changed = []
    for summary in evaluation.summaries:
        value = own if summary.row == "fused, prior" else min(summary.mean["pearson"] or 0.0, 0.8)
        value = 0.8 if summary.row == "prior only, recalibrated" else value
        changed.append(replace(summary, mean={**summary.mean, "pearson": value}))
    assert f"{own:.3f}" in (said := verdict(replace(evaluation, summaries=tuple(changed))))
    assert f"{judged} the best other row's 0.800" in said.partition(";")[0]


def test_a_draw_that_tells_nothing_apart_counts_as_no_correlation() -> None:
    """With single trials and few references, the two of a draw may agree: then every row predicts the same."""
    rate = (np.arange(SIZE) % 4 == 0).astype(float)
    rates = ModelRates("m", rate, np.ones(SIZE))
    found = evaluate(replace(PLAN, references=3, draws=6), _questions(), rates, None, _silent)
    length = found.of("length only")
    assert length is not None
    values = [record.accuracy.pearson for record in found.records if record.row == "length only"]
    assert None in values and any(value is not None for value in values)
    assert length.mean["pearson"] == pytest.approx(np.mean([value or 0.0 for value in values]))
