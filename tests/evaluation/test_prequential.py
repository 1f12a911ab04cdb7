"""``selector evaluate --replay-log`` on a run of the real service: its own predictions; none saw its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from clients import SelectorClient
from selector.cli.commands import cli
from selector.evaluation.embeddings import EncoderChoice
from selector.evaluation.predictors import Predicted, ServicePredictor
from selector.evaluation.prepare_log import PreparedLog, prepare_replay_log
from selector.evaluation.prequential import StageFigures, follow, predictors, prequential, work
from selector.evaluation.replay_log import Report
from selector.evaluation.replay_report import tables, verdict
from selector.evaluation.service_rows import fresh_estimator
from tests.evaluation.conftest import Evaluate
from tests.service.running import InProcessService

STEPS, POOL, BATCH = 16, 60, 12


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``selector export`` wrote of a run whose prompts differ by embedding, prior and themselves, and improve."""
    base = tmp_path_factory.mktemp("prequential")
    service = InProcessService(base / "state")
    client = service.client("run")
    _train(client)
    service.close()
    arguments = ["export", "run", "--state-dir", str(base / "state"), "--output", str(base / "export")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return base / "export"


def _train(client: SelectorClient) -> None:
    rng = np.random.default_rng(0)
    ids = [f"p{i}" for i in range(POOL)]
    own = 1.5 * rng.normal(size=POOL)
    told = rng.normal(size=POOL)
    client.create_run({"seed": 1})
    client.register_prompts(
        ids,
        texts=["what? " * (3 + i % 7) + str(i) for i in range(POOL)],
        embeddings=np.stack([told, *rng.normal(size=(3, POOL))], axis=1).astype(np.float32),
        domains=["even" if i % 2 else "odd" for i in range(POOL)],
        priors=[(float(rate), 10) for rate in np.round(1 / (1 + np.exp(-own)), 1)],
    )
    for step in range(STEPS):
        chosen = client.select_batch(step, BATCH)
        rate = 1 / (1 + np.exp(-(own + told - 1.0 + 0.05 * step)))
        client.report_outcomes(step, {p: rng.binomial(1, rate[int(p[1:])], 8).tolist() for p in chosen.prompt_ids})


@pytest.fixture(scope="module")
def prepared(export: Path) -> PreparedLog:
    choice = EncoderChoice("none", "cpu", 0, export / "cache")
    return prepare_replay_log(export, choice, None, lambda _done, _total: None, lambda _message: None)


@pytest.fixture(scope="module")
def figures(prepared: PreparedLog) -> list[StageFigures]:
    return prequential(prepared.log, prepared.questions, None, 0, lambda _step: None)


def _rows(prepared: PreparedLog, upto: int | None = None) -> Iterator[tuple[Report, Predicted]]:
    """FUSED's prediction of each report."""
    predictor = ServicePredictor("fused", fresh_estimator("FUSED", 256), prepared.questions.features)
    for report in prepared.log.reports[:upto]:
        yield report, predictor.predict(report)["fused"]
        predictor.observe(report)


def test_the_export_holds_the_pool_and_every_report(prepared: PreparedLog) -> None:
    assert len(prepared.log.ids) == POOL
    assert [report.step for report in prepared.log.reports] == list(range(STEPS))
    assert all(report.trials.tolist() == [8.0] * BATCH for report in prepared.log.reports)
    assert prepared.questions.embedded and prepared.questions.has_prior
    assert set(prepared.questions.features.domain) == {0, 1}
    assert prepared.facts["embeddings"] == "from the export"


def test_predictions_are_those_that_the_service_selected_by(prepared: PreparedLog) -> None:
    for report, (rate, _) in _rows(prepared):
        np.testing.assert_allclose(rate, report.recorded, rtol=0, atol=1e-12)


def test_no_prediction_saw_its_outcome(prepared: PreparedLog) -> None:
    """With other outcomes in the last report, everything is predicted as before."""
    reports = prepared.log.reports
    early, late = (replace(r, successes=r.trials - r.successes) for r in (reports[0], reports[-1]))
    changed = replace(prepared.log, reports=(*reports[:-1], late))
    earlier = replace(prepared.log, reports=(early, *reports[1:]))
    first, second, third = (
        follow(log, predictors(log, prepared.questions, None), np.zeros(POOL, dtype=bool), lambda _step: None)
        for log in (prepared.log, changed, earlier)
    )
    for row, (rate, _) in first.items():
        assert rate.tobytes() == second[row][0].tobytes()
        assert (rate.tobytes() == third[row][0].tobytes()) == (row == "as recorded")


def test_hidden_prompts_are_never_shown(prepared: PreparedLog, figures: list[StageFigures]) -> None:
    """Rows that know of a prompt nothing but its own outcomes know nothing of hidden ones."""
    by = {(f.row, f.stage): f.accuracy for f in figures}
    assert by["tracker", "never seen"].pearson is None
    assert by["tracker", "never seen"].log_loss == pytest.approx(np.log(2))
    assert by["last value", "never seen"] == by["constant", "never seen"]
    assert by["fused", "never seen"].pearson is not None
    assert ("as recorded", "never seen") not in by
    hidden = by["tracker", "never seen"].questions
    assert 0.3 * STEPS * BATCH < hidden < 0.7 * STEPS * BATCH


def test_stages_add_up(figures: list[StageFigures]) -> None:
    by = {f.stage: f.accuracy for f in figures if f.row == "fused"}
    quarters = [by[f"quarter {number}"] for number in range(1, 5)]
    assert sum(q.questions for q in quarters) == by["all"].questions == STEPS * BATCH
    assert np.mean([q.log_loss for q in quarters]) == pytest.approx(by["all"].log_loss)
    absent = [by[stage].questions for stage in by if stage.startswith("absent")]
    assert by["first"].questions + sum(absent) == STEPS * BATCH
    assert by["first"].questions <= POOL


def test_every_way_of_predicting_has_its_row(figures: list[StageFigures]) -> None:
    rows = [
        "constant",
        "last value",
        "tracker",
        "attention, untrained",
        "ridge",
        "population only",
        "fused",
        "as recorded",
    ]
    assert list(dict.fromkeys(f.row for f in figures)) == rows
    loss = {f.row: f.accuracy.log_loss or 9.0 for f in figures if f.stage == "all"}
    assert loss["fused"] < loss["constant"] - 0.05
    assert loss["fused"] == pytest.approx(loss["as recorded"])


def test_the_verdict_names_every_stage_at_which_another_row_is_better(figures: list[StageFigures]) -> None:
    def with_loss(row: str, stage: str, loss: float) -> list[StageFigures]:
        return [
            replace(f, accuracy=replace(f.accuracy, log_loss=loss)) if (f.row, f.stage) == (row, stage) else f
            for f in figures
        ]

    assert "first (tracker 0.001, fused " in verdict(with_loss("tracker", "first", 0.001)).partition("better at: ")[2]
    best = [replace(f, accuracy=replace(f.accuracy, log_loss=0.001)) if f.row == "fused" else f for f in figures]
    assert verdict(best).endswith("No other row predicts better at any stage.")
    header, body = tables(figures)[0]
    assert header[:3] == ("log loss", "all", "first")
    assert body[0][:2] == ("groups", str(STEPS * BATCH))


def test_progress_is_told_as_often_as_promised(prepared: PreparedLog) -> None:
    told: list[str] = []
    short = replace(prepared.log, reports=prepared.log.reports[:2])
    prequential(short, prepared.questions, None, 0, told.append)
    assert len(told) == work(short)
    assert told[0] == "step 0"


def test_the_command(evaluate: Evaluate, export: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    result = evaluate("--replay-log", export, "--json", out, "--picture", picture)
    assert result.exit_code == 0, result.stderr
    assert "steps 0 to 15" in result.stdout
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["verdict"] == result.stdout.splitlines()[-1]
    total = next(r for r in found["records"] if (r["row"], r["stage"]) == ("fused", "all"))
    assert total["accuracy"]["questions"] == STEPS * BATCH
    assert f"{total['accuracy']['log_loss']:.3f}" in found["verdict"]
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    assert evaluate("--replay-log", export / "outcomes.parquet").exit_code == 0


def test_options_of_pass_rates_are_refused(evaluate: Evaluate, export: Path) -> None:
    result = evaluate("--replay-log", export, "--references", 10)
    assert result.exit_code == 2
    assert "--references is for --data" in result.stderr


def test_a_missing_export_is_said_in_a_line(evaluate: Evaluate, tmp_path: Path) -> None:
    result = evaluate("--replay-log", tmp_path)
    assert result.exit_code == 1
    assert "it has no outcomes.parquet" in result.stderr
