"""Files of pass rates: what is found by itself, what options say, and what is refused with its column and row named."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


@pytest.mark.parametrize("name", ["data.csv", "data.jsonl"])
@pytest.mark.parametrize("value", [1.2, -0.1, "n/a", 55])
def test_one_wrong_value_does_not_cost_a_column_of_rates(write: Write, name: str, value: object) -> None:
    """The other model alone would be an answer to another question."""
    columns = made_up(6)
    columns["policy"][3] = value
    path = write(columns, name)
    row = "line 5" if name.endswith("csv") else "line 4"
    with pytest.raises(DataError) as raised:
        read_rates(path, ColumnNames())
    shown = repr(str(value)) if name.endswith("csv") else repr(value)
    where = f"{path}: column 'policy', {row}: expected a pass rate in [0, 1]; got {shown}; "
    assert str(raised.value) == f"{where}if the column holds something else, leave it out of the file"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, 0.5, "x", "y"], "left out"),
        ([1.0, 0.5, 1.0, "y"], "error"),
        ([1.0, None, "x", None], "error"),
        ([0.3, 0.9, 1.4, 1.1], "left out"),
        ([1.0, "w", "x", "y"], "left out"),
        ([0.0, 2.0, 3.0, 4.0], "left out"),
        ([None, None, "x", None], "left out"),
        ([None, None, None, 0.5], "a model"),
    ],
)
def test_what_most_values_are_decides_what_a_column_is(write: Write, values: list[Any], found: str) -> None:
    path = write({**made_up(4), "doubtful": values}, "data.jsonl")
    if found == "error":
        with pytest.raises(DataError, match="column 'doubtful', line"):
            read_rates(path, ColumnNames())
        return
    table = read_rates(path, ColumnNames())
    assert ("doubtful" in table.models) == (found == "a model")
    assert any("'doubtful'" in note and "left out" in note for note in table.notes) == (found == "left out")


@pytest.mark.parametrize("trials", [["x", 8, 8, 8], [None, 8, 8, 8]])
def test_trials_of_models_that_nobody_needs_may_be_wrong(write: Write, trials: list[Any]) -> None:
    path = write({**made_up(4), "policy.n": trials}, "data.jsonl")
    table = read_rates(path, ColumnNames(models=("other",), needed=frozenset({"other"})))
    assert list(table.models) == ["other"] and len(table.notes) == 1
    with pytest.raises(DataError, match="policy"):
        read_rates(path, ColumnNames())


def test_models_that_nobody_needs_may_be_wrong(write: Write) -> None:
    columns = made_up(4)
    columns["policy"][3] = 1.2
    path = write(columns)
    table = read_rates(path, ColumnNames(models=("other",), needed=frozenset({"other"})))
    assert list(table.models) == ["other"]
    assert len(table.notes) == 1 and table.notes[0].startswith("'policy' was left out: ")
    with pytest.raises(DataError, match="'policy', row 4"):
        read_rates(path, ColumnNames(models=("other",), needed=frozenset({"other", "policy"})))


@pytest.mark.parametrize(
    ("rates", "percentages"),
    [([0.0, 0.0, 0.0, 75.0], True), ([0.5, 1.0, 0.25, 1.2], False), ([0.5, 1.0, 0.25, 50.0], False)],
)
def test_only_percentages_are_to_be_divided(write: Write, rates: list[float], percentages: bool) -> None:
    with pytest.raises(DataError, match="'rate', row 4: expected a pass rate") as raised:
        read_rates(write({"rate": rates, "n": [4] * 4}), ColumnNames())
    assert ("divide percentages by 100" in str(raised.value)) == percentages


def test_decimals_are_numbers(write: Write) -> None:
    columns = {
        "id": [Decimal("1.5"), Decimal("2.5")],
        "rate": [Decimal("0.25"), None],
        "n": [Decimal(8), Decimal(4)],
        "embedding": [[Decimal("0.5"), Decimal(2)], [Decimal(1), Decimal(3)]],
    }
    table = read_rates(write(columns), ColumnNames())
    np.testing.assert_array_equal(table.models["rate"].rate, [0.25, np.nan])
    assert table.models["rate"].trials.tolist() == [8.0, 0.0]
    assert table.embeddings is not None
    assert table.embeddings.tolist() == [[0.5, 2.0], [1.0, 3.0]]
    assert table.ids == ("1.5", "2.5")


_GOOD: dict[str, list[Any]] = {"id": ["a", "b", "c"], "text": ["x", "y", "z"], "rate": [0.5, 1.0, 0.0], "n": [2, 2, 2]}


@pytest.mark.parametrize(
    ("changed", "names", "expected"),
    [
        ({"id": ["a", "b", "a"]}, {}, "'id': row 1 and row 3 have the same id 'a'"),
        ({"id": ["a", None, "c"]}, {}, "'id', row 2: expected an id"),
        (
            {"rate": [0.5, 50.0, 75.0]},
            {"models": ("rate",)},
            "'rate', row 2: expected a pass rate in [0, 1]; got 50.0; 'rate' reaches 75: divide percentages by 100",
        ),
        ({"rate": [0.5, -0.5, 1.0]}, {"models": ("rate",)}, "'rate', row 2: expected a pass rate in [0, 1]; got -0.5"),
        ({"rate": ["a", "b", "c"]}, {"models": ("rate",)}, "'rate', row 1: expected a pass rate in [0, 1]; got 'a'"),
        ({"rate": [50.0, 60.0, 70.0]}, {}, "no column of pass rates"),
        ({"rate": [50.0, 0.0, 100.0]}, {}, "'rate' reaches 100: divide percentages by 100"),
        ({"rate": [None, None, None]}, {}, "no column of pass rates"),
        ({"n": [2, 0, 2]}, {}, "row 2: 'rate' has a pass rate but no trials"),
        ({"n": [2, None, 2]}, {}, "row 2: 'rate' has a pass rate but no trials"),
        ({"n": [2.0, 2.5, 2.0]}, {}, "'n', row 2: expected a whole number in [0, 100000000]; got 2.5"),
        ({"n": [2, 10**18, 2]}, {}, "'n', row 2: expected a whole number in [0, 100000000]; got 1000000000000000000"),
        ({"n": [2.0, 2.0, 1e300]}, {}, "'n', row 3: expected a whole number in [0, 100000000]; got 1e+300"),
        ({"id": [["a"], ["b"], ["c"]]}, {}, "'id', row 1: expected an id; got ['a']"),
        ({"n": [2, 2, -1]}, {}, "'n', row 3: expected a whole number in [0, 100000000]; got -1"),
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


@pytest.mark.parametrize(
    ("cell", "column", "expected"),
    [
        ("9" * 400, "rate", "a pass rate in [0, 1]; got 9999"),
        ("-" + "9" * 400, "rate", "a pass rate in [0, 1]; got -9999"),
        ("9" * 400, "n", "a whole number in [0, 100000000]; got 9999"),
        (f"[1, {'9' * 400}]", "embedding", "finite numbers"),
        (f'[1, {"9" * 400}, "x"]', "embedding", "a list of numbers; got [1, 9999"),
        ("[" * 500 + "]" * 500, "text", "text; got [[["),
        ("[" * 500 + "]" * 500, "embedding", "a list of numbers; got [[["),
        ('"a\\ud800b"', "text", "whole characters; got \\ud800"),
        ('"\\uDFFF"', "id", "whole characters; got \\udfff"),
        ('[{"content": "\\ud800"}]', "text", "whole characters; got \\ud800"),
    ],
)
def test_json_that_python_can_read_but_not_use(tmp_path: Path, cell: str, column: str, expected: str) -> None:
    path = tmp_path / "data.jsonl"
    good = {"id": '"a"', "text": '"b"', "rate": "0.5", "n": "2", "embedding": "[1, 2]"}
    bad = {**good, "id": '"b"', column: cell}
    rows = [", ".join(f'"{name}": {value}' for name, value in row.items()) for row in (good, bad)]
    path.write_text("".join(f"{{{row}}}\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read_rates(path, ColumnNames())
    assert str(raised.value).startswith(f"{path}: column '{column}', line 2: expected {expected}")
    assert str(raised.value).isprintable() and len(str(raised.value)) < len(str(path)) + 200


@pytest.mark.parametrize(
    "column",
    [
        pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], dtype=np.int32)), pa.py_buffer(b"\xff")),
        pa.array([2**62], pa.timestamp("us")),
    ],
    ids=["no UTF-8", "no date"],
)
def test_parquet_that_python_cannot_read(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"rate": [0.5], "odd": column}), path)
    with pytest.raises(DataError, match="column 'odd': not readable"):
        read_rates(path, ColumnNames())


def test_names_of_columns_are_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"rate": 0.5, "\\ud800": 0.5}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 1: expected whole characters"):
        read_rates(path, ColumnNames())


def test_escaped_pairs_are_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00", "rate": 0.5, "n": 2}\n', encoding="utf-8")
    assert read_rates(path, ColumnNames()).texts == ("\U0001f600",)


@pytest.mark.parametrize("trials", ["100000001", "9" * 20, "9" * 5000])
def test_more_trials_than_anybody_can_run(write: Write, trials: str) -> None:
    path = write({"rate": [0.5, 1.0]})
    with pytest.raises(OptionError, match="expected at most 100000000") as raised:
        read_rates(path, ColumnNames(trials=trials))
    assert raised.value.option == "--trials"
    assert read_rates(path, ColumnNames(trials="100000000")).models["rate"].trials.tolist() == [1e8, 1e8]


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
        (
            "d.jsonl",
            '{"rate": 0.5}\n{"x": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "line 2: lists or objects are nested",
        ),
        ("d.jsonl", '{"rate": ' + "9" * 5000 + "}", "line 1: a number has too many digits"),
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
