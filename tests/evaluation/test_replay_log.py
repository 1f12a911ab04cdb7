"""Exports of runs: read as they were reported, staged by hand, and refused where something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clients.names import short_names
from selector.evaluation.embeddings import EncoderChoice
from selector.evaluation.errors import DataError
from selector.evaluation.prepare_log import prepare_replay_log
from selector.evaluation.prequential import history
from selector.evaluation.replay_log import ARMS, PURPOSES, read_replay_log
from selector.v1 import selector_service_pb2 as pb

# (prompt, step, outcomes, purpose, arm), as acknowledged.
ROWS: list[tuple[str, int, list[float], str, str | None]] = [
    ("a", 0, [1.0, 0.0], "TRAIN", "TARGETED"),
    ("b", 0, [1.0, 1.0], "TRAIN", "UNIFORM"),
    ("a", 0, [1.0, 1.0], "TRAIN", "TARGETED"),
    ("a", 4, [0.5, 0.0], "REFERENCE", None),
    ("c", 4, [0.0, 0.0], "TRAIN", "REVIEW"),
    ("b", 20, [1.0], "TRAIN", "TARGETED"),
    ("a", 39, [0.0], "TRAIN", "TARGETED"),
    ("b", 10, [0.0], "TRAIN", "TARGETED"),
]


def _columns() -> dict[str, list[Any]]:
    names = ("prompt_id", "step", "outcomes", "purpose", "arm")
    return {name: [row[i] for row in ROWS] for i, name in enumerate(names)}


def _write(directory: Path, outcomes: dict[str, list[Any]], prompts: dict[str, list[Any]] | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table(outcomes), directory / "outcomes.parquet")
    if prompts is not None:
        pq.write_table(pa.table(prompts), directory / "prompts.parquet")
    return directory


def test_rows_of_one_step_are_one_report_and_groups_of_a_prompt_add_up(tmp_path: Path) -> None:
    log = read_replay_log(_write(tmp_path, _columns()))
    assert log.ids == ("a", "b", "c")
    assert [report.step for report in log.reports] == [0, 4, 4, 20, 39, 10]
    assert [report.reference for report in log.reports] == [False, True, False, False, False, False]
    first = log.reports[0]
    assert (first.prompt.tolist(), first.trials.tolist(), first.successes.tolist()) == ([0, 1], [4.0, 2.0], [3.0, 2.0])
    assert first.uniform.tolist() == [False, True]
    assert log.reports[1].uniform.tolist() == [True]
    assert np.isnan(first.recorded).all()
    assert log.notes == ("there is no prompts.parquet beside it: nothing is known of the prompts",)


def test_visits_are_staged_by_absence_and_quarter(tmp_path: Path) -> None:
    past = history(read_replay_log(_write(tmp_path, _columns())))
    assert past.prompt.tolist() == [0, 1, 0, 2, 1, 0, 1]
    assert past.absence.tolist() == [-1, -1, 4, -1, 20, 35, 0]
    assert past.quarter.tolist() == [1, 1, 1, 1, 3, 4, 2]
    assert past.unselected.tolist() == [False, True, True, False, False, False, False]
    stages = ("first", "absent 1-10", "absent 11-30", "absent >30", "quarter 1", "all")
    counts = [int(past.of_stage(stage).sum()) for stage in stages]
    assert counts == [3, 1, 1, 1, 4, 7]


def test_what_is_known_of_the_prompts_is_read(tmp_path: Path) -> None:
    prompts: dict[str, list[Any]] = {
        "prompt_id": ["z", "b", "a"],
        "text": ["zz", "", "aa"],
        "domain": ["d", "", ""],
        "prior_rate": [0.5, None, 0.0],
        "prior_trials": [4, None, 8],
        "embedding": [[1.0, 2.0], None, [3.0, 4.0]],
    }
    log = read_replay_log(_write(tmp_path, _columns(), prompts))
    assert log.ids == ("z", "b", "a", "c")
    assert log.reports[0].prompt.tolist() == [1, 2]
    assert log.texts == ("zz", "", "aa", "")
    assert log.domains == ("d", "", "", "")
    np.testing.assert_array_equal(log.prior_rate, [0.5, np.nan, 0.0, np.nan])
    assert log.prior_trials.tolist() == [4.0, 0.0, 8.0, 0.0]
    assert log.embeddings is not None
    assert log.embeddings.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]
    assert log.notes == ("1 prompts with outcomes are not in prompts.parquet",)


def test_priors_of_an_export_are_said_to_be_those_of_its_end(tmp_path: Path) -> None:
    """They may have been made of the very outcomes that are to be predicted."""
    nothing = EncoderChoice("none", "cpu", 1, tmp_path)
    for priors, noted in (([None, 0.5], True), ([None, None], False)):
        prompts: dict[str, list[Any]] = {"prompt_id": ["a", "b"], "prior_rate": priors, "prior_trials": [None, 8]}
        export = _write(tmp_path / str(noted), _columns(), prompts)
        prepared = prepare_replay_log(export, nothing, None, lambda _done, _total: None, lambda _message: None)
        assert any("if they came later" in note for note in prepared.notes) == noted


def test_counts_may_stand_for_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("prompt_id,step,successes,trials\na,0,1.5,4\nb,1,0,2\n", encoding="utf-8")
    log = read_replay_log(path)
    assert [(r.step, r.successes.tolist(), r.trials.tolist()) for r in log.reports] == [
        (0, [1.5], [4.0]),
        (1, [0.0], [2.0]),
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"prompt_id": None}, "expected a column 'prompt_id'; it has 'step', 'outcomes', 'purpose', 'arm'"),
        ({"step": None}, "expected a column 'step'"),
        ({"outcomes": None}, "expected a column 'successes'"),
        ({"step": [0, 0, 0, 4, 4, 20, 39, None]}, "'step', row 8: expected a value"),
        ({"outcomes": [[1.0]] * 7 + [[]]}, "'outcomes', row 8: expected a list of numbers"),
        ({"outcomes": [[1.0], [2.0]] + [[1.0]] * 6}, "'outcomes', row 2: expected a list of numbers"),
        (
            {"step": [0, 0, 0, 4, 4, 20, 39, -1]},
            "'step', row 8: expected a whole number in [0, 9007199254740991]; got -1",
        ),
        (
            {"step": [0, 0, 0, 4, 4, 1.5, 39, 10]},
            "'step', row 6: expected a whole number in [0, 9007199254740991]; got",
        ),
        ({"step": [0, 0, 0, 4, 4, 20, 39, float("inf")]}, "'step', row 8: expected a whole number"),
        ({"step": [0, 0, 0, 4, 4, 20, 39, 2.0**53]}, "'step', row 8: expected a whole number"),
        ({"arm": ["TARGETED"] * 7 + ["X"]}, "'arm', row 8: expected one of TARGETED, UNIFORM, REVIEW; got 'X'"),
        ({"purpose": ["X"] + ["TRAIN"] * 7}, "'purpose', row 1: expected one of TRAIN, REFERENCE; got 'X'"),
        (
            {"predicted_difficulty": [0.5] * 7 + [1.5]},
            "'predicted_difficulty', row 8: expected a number in [0, 1]; got",
        ),
        ({"prompt_id": ["a"] * 7 + [""]}, "'prompt_id', row 8: expected an id; got nothing"),
        (
            {"outcomes": [[1.0], [float("nan")]] + [[1.0]] * 6},
            "'outcomes', row 2: expected a list of numbers",
        ),
    ],
)
def test_wrong_exports_are_refused(tmp_path: Path, changed: dict[str, list[Any] | None], expected: str) -> None:
    columns = {name: values for name, values in {**_columns(), **changed}.items() if values is not None}
    with pytest.raises(DataError) as raised:
        read_replay_log(_write(tmp_path, columns))
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"prior_rate": [0.5, 2.0]}, "'prior_rate', row 2: expected a number in [0, 1]; got 2.0"),
        ({"prior_trials": [4, -3]}, "'prior_trials', row 2: expected a whole number in [0, 2147483647]; got -3"),
        ({"prior_trials": [4.0, 2.5]}, "'prior_trials', row 2: expected a whole number"),
        ({"prior_trials": [4, None]}, "'prior_trials', row 2: expected the trials behind the row's prior_rate"),
        ({"prior_trials": [4, 0]}, "'prior_trials', row 2: expected the trials behind the row's prior_rate; got 0"),
        ({"prior_trials": None}, "expected a column 'prior_trials'"),
        ({"prompt_id": ["a", "a"]}, "'prompt_id': row 1 and row 2 have the same id 'a'"),
    ],
)
def test_wrong_prompts_are_refused(tmp_path: Path, changed: dict[str, list[Any] | None], expected: str) -> None:
    good: dict[str, list[Any] | None] = {"prompt_id": ["a", "b"], "prior_rate": [0.5, 0.25], "prior_trials": [4, 8]}
    prompts = {name: values for name, values in {**good, **changed}.items() if values is not None}
    with pytest.raises(DataError) as raised:
        read_replay_log(_write(tmp_path, _columns(), prompts))
    assert str(raised.value).startswith(str(tmp_path / "prompts.parquet"))
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("step", "9" * 400, "a whole number in [0, 9007199254740991]; got 9999"),
        ("step", "Infinity", "a whole number"),
        ("step", "NaN", "a value"),
        ("successes", "5", "at most as many as the row's 4 trials; got 5"),
        ("successes", "9" * 400, "a number in"),
        ("trials", "9" * 400, "a whole number in [1, 100000000]; got 9999"),
        ("trials", "0", "a whole number in [1, 100000000]; got 0"),
        ("outcomes", f"[1, {'9' * 400}]", "a list of numbers in [0, 1]; got [1, 9999"),
        ("outcomes", '["a"]', "a list of numbers in [0, 1]; got ['a']"),
        ("outcomes", "1", "a list of numbers in [0, 1]; got 1"),
    ],
)
def test_wrong_lines_of_an_own_log_are_refused(tmp_path: Path, name: str, value: str, expected: str) -> None:
    path = tmp_path / "log.jsonl"
    good = {"prompt_id": '"a"', "step": "1", "successes": "2", "trials": "4"}
    if name == "outcomes":
        good = {"prompt_id": '"a"', "step": "1", "outcomes": "[1, 0]"}
    rows = [", ".join(f'"{key}": {cell}' for key, cell in row.items()) for row in (good, {**good, name: value})]
    path.write_text("".join(f"{{{row}}}\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read_replay_log(path)
    assert str(raised.value).startswith(f"{path}: column '{name}', line 2: expected {expected}")


def test_every_arm_and_purpose_of_an_export_is_known() -> None:
    for known, enum in ((ARMS, pb.Arm.DESCRIPTOR), (PURPOSES, pb.Purpose.DESCRIPTOR)):
        assert {*known} == {*short_names(enum)} - {"UNSPECIFIED"}


def test_a_directory_without_an_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"written by 'selector export'; it has no outcomes\.parquet"):
        read_replay_log(tmp_path)
