"""Files of pass rates: what is found by itself, what options say, and what is refused with its column and row named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.evaluation.errors import DataError, OptionError
from selector.evaluation.rates import ColumnNames, read_rates
from tests.evaluation.conftest import Write, made_up


@pytest.mark.parametrize("name", ["data.parquet", "data.csv", "data.jsonl"])
def test_every_format_says_the_same(write: Write, name: str) -> None:
    columns = made_up(20)
    columns["text"][3] = 'quoted "text", with commas,\nand lines — and ü'
    columns["policy"][5] = None
    table = read_rates(write(columns, name), ColumnNames())
    assert table.ids == tuple(columns["id"])
    assert table.texts == tuple(columns["text"])
    assert table.domains == tuple(columns["domain"])
    assert list(table.models) == ["policy", "other"]
    policy = table.models["policy"]
    expected = np.array([np.nan if rate is None else rate for rate in columns["policy"]])
    np.testing.assert_array_equal(policy.rate, expected)
    assert policy.trials.tolist() == [0.0 if i == 5 else 16.0 for i in range(20)]
    assert policy.known.sum() == 19
    assert table.notes == ()


def test_tabs_separate_the_cells_of_a_tsv_file(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("qid\tquestion\tpass_rate\tn\na\twhat, why?\t0.5\t4\nb\thow?\t1\t4\n", encoding="utf-8")
    table = read_rates(path, ColumnNames())
    assert (table.ids, table.texts) == (("a", "b"), ("what, why?", "how?"))
    assert table.models["pass_rate"].rate.tolist() == [0.5, 1.0]


def test_columns_can_be_named(write: Write) -> None:
    columns = {"key": ["a", "b"], "body": ["x", "y"], "kind": ["k", "l"], "rate": [0.5, 0.25], "rolls": [4, 8]}
    names = ColumnNames(id="key", text="body", domain="kind", trials="rolls", models=("rate",))
    table = read_rates(write(columns), names)
    assert (table.ids, table.texts, table.domains) == (("a", "b"), ("x", "y"), ("k", "l"))
    assert list(table.models) == ["rate"]
    assert table.models["rate"].trials.tolist() == [4.0, 8.0]
    assert read_rates(write(columns), ColumnNames(trials="16")).models["rate"].trials.tolist() == [16.0, 16.0]


def test_without_ids_rows_are_called_by_their_place(write: Write) -> None:
    assert read_rates(write({"rate": [0.5, 1.0], "n": [2, 2]}), ColumnNames()).ids == ("row 1", "row 2")
    assert read_rates(write({"rate": [0.5, 1.0], "n": [2, 2]}, "data.csv"), ColumnNames()).ids == ("line 2", "line 3")


def test_chat_messages_are_texts(write: Write) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1 + 1?"}]
    table = read_rates(write({"prompt": [messages, None], "rate": [0.5, 1.0], "n": [2, 2]}, "d.jsonl"), ColumnNames())
    assert table.texts == ("be brief\n1 + 1?", "")


def test_trials_of_each_model(write: Write) -> None:
    columns = {"a": [0.5, 1.0], "b": [0.25, None], "a.n": [2, 4], "b.n": [4, None]}
    models = read_rates(write(columns), ColumnNames()).models
    assert list(models) == ["a", "b"]
    assert (models["a"].trials.tolist(), models["b"].trials.tolist()) == ([2.0, 4.0], [4.0, 0.0])


@pytest.mark.parametrize(
    ("rates", "trials"),
    [
        ([0.0, 1.0, 1.0], 1),
        ([0.0, 0.125, 0.75], 8),
        ([0.333, 0.667, 1.0], 3),
        ([float(np.float32(0.1)), float(np.float32(0.7))], 10),
        ([1 / 128, 3 / 128], 128),
    ],
)
def test_trials_are_inferred(write: Write, rates: list[float], trials: int) -> None:
    table = read_rates(write({"rate": rates}), ColumnNames())
    assert set(table.models["rate"].trials.tolist()) == {float(trials)}
    assert f"{trials} trials" in table.notes[0]


def test_the_mean_of_the_other_models_weighs_trials(write: Write) -> None:
    columns = {"a": [0.5, 0.5, 0.5], "b": [1.0, None, None], "c": [0.0, 0.25, None]}
    trials = {"a.n": [2] * 3, "b.n": [3, None, None], "c.n": [1, 4, None]}
    others = read_rates(write({**columns, **trials}), ColumnNames()).others("a")
    np.testing.assert_array_equal(others.rate, [0.75, 0.25, np.nan])
    assert others.trials.tolist() == [4.0, 4.0, 0.0]


def test_columns_that_are_no_rates_are_named(write: Write) -> None:
    table = read_rates(write({**made_up(5), "tokens": [10, 20, 30, 40, 50], "author": list("abcde")}), ColumnNames())
    assert list(table.models) == ["policy", "other"]
    assert table.notes == ("columns that are not pass rates in [0, 1] were left out: 'tokens', 'author'",)


_GOOD: dict[str, list[Any]] = {"id": ["a", "b", "c"], "text": ["x", "y", "z"], "rate": [0.5, 1.0, 0.0], "n": [2, 2, 2]}


@pytest.mark.parametrize(
    ("changed", "names", "expected"),
    [
        ({"id": ["a", "b", "a"]}, {}, "'id': row 1 and row 3 have the same id 'a'"),
        ({"id": ["a", None, "c"]}, {}, "'id', row 2: expected an id"),
        (
            {"rate": [0.5, 50.0, 1.0]},
            {"models": ("rate",)},
            "'rate', row 2: expected a pass rate in [0, 1]; got 50; divide",
        ),
        ({"rate": [0.5, -0.5, 1.0]}, {"models": ("rate",)}, "'rate', row 2: expected a pass rate in [0, 1]; got -0.5"),
        ({"rate": ["a", "b", "c"]}, {"models": ("rate",)}, "'rate', row 1: expected a number; got 'a'"),
        ({"rate": [50.0, 60.0, 70.0]}, {}, "no column of pass rates"),
        ({"rate": [50.0, 0.0, 100.0]}, {}, "'rate' reaches 100: divide percentages by 100"),
        ({"rate": [None, None, None]}, {}, "no column of pass rates"),
        ({"n": [2, 0, 2]}, {}, "row 2: 'rate' has a pass rate but no trials"),
        ({"n": [2, None, 2]}, {}, "row 2: 'rate' has a pass rate but no trials"),
        ({"n": [2.0, 2.5, 2.0]}, {}, "'n', row 2: expected a number of trials; got 2.5"),
        ({"n": [2, 2, -1]}, {}, "'n', row 3: expected a number of trials; got -1"),
        ({"text": [["x"], ["y"], ["z"]]}, {}, "'text', row 1: expected text; got ['x']"),
        ({"embedding": [[1.0, 2.0], [1.0], [1.0, 2.0]]}, {}, "'embedding', row 2: expected 2 numbers"),
        ({"embedding": [[1.0], [float("nan")], [1.0]]}, {}, "'embedding', row 2: expected finite numbers"),
        ({"embedding": [[1.0], [1e30], [1.0]]}, {}, "'embedding', row 2: expected finite numbers"),
        ({"embedding": ["a", "b", "c"]}, {}, "'embedding', row 1: expected a list of numbers; got 'a'"),
    ],
)
def test_wrong_values_are_refused(
    write: Write, changed: dict[str, list[Any]], names: dict[str, Any], expected: str
) -> None:
    path = write({**_GOOD, **changed})
    with pytest.raises(DataError) as raised:
        read_rates(path, ColumnNames(**names))
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)


def test_rates_of_unknown_precision_need_trials(write: Write) -> None:
    path = write({"rate": [0.12345, 0.6789, 0.31415]})
    with pytest.raises(DataError, match="how many trials are behind the rates"):
        read_rates(path, ColumnNames())
    assert read_rates(path, ColumnNames(trials="64")).models["rate"].trials.tolist() == [64.0] * 3


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("d.csv", "id,rate\na,0.5\nb\n", "line 3: expected 2 cells; got 1"),
        ("d.csv", "id,rate,rate\na,0.5,1\n", "column 'rate' occurs twice"),
        ("d.csv", "id,\na,0.5\n", "column 2 has no name"),
        ("d.csv", "", "the file is empty"),
        ("d.csv", "id,rate\n", "no rows"),
        ("d.csv", 'id,rate\n"a"b,0.5\n', "line 2: not valid CSV"),
        ("d.jsonl", '{"rate": 0.5}\n{"rate": \n', "line 2: not valid JSON"),
        ("d.jsonl", '{"rate": 0.5}\n[1]\n', "line 2: expected an object; got list"),
        ("d.jsonl", "\n\n", "no rows"),
        ("d.parquet", "nothing of the kind", "not a readable parquet file"),
        ("d.xlsx", "x", "expected a file ending in one of .parquet"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, name: str, content: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read_rates(path, ColumnNames())
    assert str(path) in str(raised.value)
    assert expected in str(raised.value)


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes("id,rate\nü,0.5\n".encode("latin-1"))
    with pytest.raises(DataError, match="expected UTF-8"):
        read_rates(path, ColumnNames())


def test_lines_are_counted_over_cells_of_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('id,text,rate,n\na,"one\ntwo",0.5,2\nb,x,7,2\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 4: expected a pass rate"):
        read_rates(path, ColumnNames(models=("rate",)))


@pytest.mark.parametrize("field", ["id", "text", "domain", "embedding", "trials"])
def test_named_columns_must_be_there(write: Write, field: str) -> None:
    with pytest.raises(OptionError, match="has no column 'nothing'; it has 'id', 'text', 'rate', 'n'") as raised:
        read_rates(write(_GOOD), ColumnNames(**{field: "nothing"}))  # type: ignore[arg-type]
    assert raised.value.option == f"--{field}"
