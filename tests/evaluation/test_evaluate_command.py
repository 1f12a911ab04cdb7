"""``selector evaluate --data``: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.difficulty.adapter import Adapter
from selector.evaluation.experiment import FIGURES
from tests.difficulty.adapters import random_adapter
from tests.evaluation.conftest import Evaluate, Write, made_up

QUICK = ("--references", 60, "--draws", 2, "--batch-size", 32)


def test_the_table_the_verdict_and_the_json_say_the_same(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    data, out = write(made_up(), "my rates.csv"), tmp_path / "out.json"
    result = evaluate("--data", data, *QUICK, "--prior-model", "other", "--json", out)
    assert result.exit_code == 0, result.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["row"]: row for row in found["rows"]}
    assert [*rows][:: len(rows) - 1] == ["constant", "oracle"]
    for row in rows.values():
        of_row = [record for record in found["records"] if record["row"] == row["row"]]
        assert [record["draw"] for record in of_row] == [0, 1]
        for figure in FIGURES:
            values = [record[figure] for record in of_row]
            if None not in values:
                assert row["mean"][figure] == pytest.approx(np.mean(values))
                assert row["spread"][figure] == pytest.approx(np.std(values, ddof=1))
        line = next(line for line in result.stdout.splitlines() if line.startswith(f"{row['row']}  "))
        pearson = row["mean"]["pearson"]
        assert ("-" if pearson is None else f"{pearson:.3f}") in line
    assert found["verdict"] == result.stdout.splitlines()[-1]
    assert f"{rows['fused, prior']['mean']['pearson']:.3f}" in found["verdict"]
    assert found["command"].startswith(
        f"selector evaluate --data '{data}' --prior-model other --references 60 --draws 2"
    )
    assert found["facts"]["model"].startswith("policy, mean pass rate")
    assert "2 models: 'policy' is the first; choose with --model" in found["notes"]


def test_the_same_command_gives_the_same_figures(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    data = write(made_up(), "data.jsonl")
    found: list[dict[str, Any]] = []
    for number in range(2):
        evaluate("--data", data, *QUICK, "--json", tmp_path / f"{number}.json")
        found.append(json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8")))
    for content in found:
        del content["command"]
        for row in [*content["rows"], *content["records"]]:
            del row["seconds"]
    assert found[0] == found[1]
    evaluate("--data", data, *QUICK, "--seed", 1, "--json", tmp_path / "2.json")
    assert json.loads((tmp_path / "2.json").read_text(encoding="utf-8"))["rows"] != found[0]["rows"]


@pytest.mark.parametrize("others", [True, False])
def test_the_model_to_predict_and_the_one_that_is_known(evaluate: Evaluate, write: Write, others: bool) -> None:
    prior = "others" if others else "policy"
    result = evaluate("--data", write(made_up()), *QUICK, "--model", "other", "--prior-model", prior)
    assert result.exit_code == 0
    assert "model       other, mean pass rate" in result.stdout
    assert f"prior       {'mean of the other models' if others else 'policy'}, known for 100" in result.stdout


def test_ready_embeddings_are_used(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    columns = made_up()
    lengths = np.log([len(text) for text in columns["text"]])
    columns["embedding"] = [[float(x), 1.0, 0.5] for x in lengths - lengths.mean()]
    del columns["text"]
    picture = tmp_path / "out.png"
    result = evaluate("--data", write(columns), *QUICK, "--picture", picture)
    assert result.exit_code == 0, result.stderr
    assert "attention, untrained" in result.stdout and "length only" not in result.stdout
    assert "no texts" in result.stdout
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > height > 500


def test_an_adapter_gets_its_row(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    columns = made_up()
    columns["embedding"] = np.random.default_rng(0).normal(size=(160, 6)).tolist()
    random_adapter(0, 6, 8).save(tmp_path / "a.safetensors")
    random_adapter(0, 7, 8).save(tmp_path / "wide.safetensors")
    data = write(columns)
    result = evaluate("--data", data, *QUICK, "--adapter", tmp_path / "a.safetensors")
    rows = [line.partition("  ")[0] for line in result.stdout.splitlines()]
    assert {"attention, trained", "fused", "fused, adapter"} <= set(rows)
    result = evaluate("--data", data, *QUICK, "--adapter", tmp_path / "wide.safetensors")
    assert result.exit_code == 2
    assert "takes embeddings of width 7; these have 6" in result.stderr
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    result = evaluate("--data", data, *QUICK, "--adapter", tmp_path / "broken.safetensors")
    assert result.exit_code == 2
    assert "not a readable safetensors file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 2, "give --data or --replay-log, one of them"),
        (("--data", "DATA", "--replay-log", "DATA"), 2, "give --data or --replay-log, one of them"),
        (("--data", "nothing.csv"), 2, "does not exist"),
        (("--data", "DATA", "--model", "nobody"), 2, "Invalid value for --model: "),
        (("--data", "DATA", "--prior-model", "nobody"), 2, "has no model 'nobody'; it has 'policy', 'other'"),
        (("--data", "DATA", "--prior-model", "policy"), 2, "'policy' is the model to predict"),
        (("--data", "DATA", "--text", "nobody"), 2, "Invalid value for --text: "),
        (("--data", "DATA", "--references", "158"), 2, "expected at most 155"),
        (("--data", "DATA", "--draws", "0"), 2, "--draws"),
        (("--data", "DATA", "--picture", "out.gif"), 2, "expected a name ending in .png, .svg or .pdf"),
        (("--data", "DATA", "--encoder", "no such model"), 1, "is neither a directory nor a model name"),
        (("--data", "DATA", *QUICK, "--json", "/nowhere/out.json"), 2, "cannot write /nowhere/out.json"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    evaluate: Evaluate, write: Write, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    data = str(write(made_up()))
    result = evaluate(*(data if argument == "DATA" else argument for argument in arguments))
    assert result.exit_code == code
    assert expected in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_only_models_that_matter_must_be_without_error(evaluate: Evaluate, write: Write) -> None:
    columns = made_up()
    columns["spoilt"] = [1.2, *columns["policy"][1:]]
    data = write(columns)
    chosen = evaluate("--data", data, *QUICK, "--model", "policy", "--prior-model", "other")
    assert chosen.exit_code == 0, chosen.stderr
    assert "'spoilt' was left out: " in chosen.stdout
    for options in (
        (),
        ("--model", "policy", "--prior-model", "others"),
        ("--model", "policy", "--prior-model", "spoilt"),
    ):
        result = evaluate("--data", data, *QUICK, *options)
        assert result.exit_code == 1
        assert "column 'spoilt', row 1: expected a pass rate in [0, 1]; got 1.2" in result.stderr


def test_the_most_trials_can_be_drawn_from(evaluate: Evaluate, write: Write) -> None:
    result = evaluate("--data", write({**made_up(), "n": [100_000_000] * 160}), *QUICK)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("count", [0, 1, 9])
def test_too_few_questions_are_refused(evaluate: Evaluate, write: Write, count: int) -> None:
    columns = made_up(12)
    columns["policy"][count:] = [None] * (12 - count)
    result = evaluate("--data", write(columns), "--model", "policy")
    assert result.exit_code == 1
    assert f"expected at least 10 questions with a pass rate; got {count}" in result.stderr


def test_fewer_questions_than_references_halve_them(evaluate: Evaluate, write: Write) -> None:
    result = evaluate("--data", write(made_up(41)), "--draws", 1)
    assert result.exit_code == 0
    assert "references  20 x 8 rollouts, 1 draws, seed 0; judged on the other 21" in result.stdout
    assert "41 questions are few: half of them are references" in result.stdout


def test_odd_texts_are_told_and_do_no_harm(evaluate: Evaluate, write: Write) -> None:
    columns = made_up()
    columns["text"][:40] = [""] * 40
    columns["text"][40:60] = ["the same"] * 20
    columns["policy"][60:70] = [None] * 10
    result = evaluate("--data", write(columns), *QUICK)
    assert result.exit_code == 0
    assert "40 questions have no text" in result.stdout
    assert "19 questions repeat the text of another" in result.stdout
    assert "10 questions on which 'policy' was not run were left out" in result.stdout
    assert "nan" not in result.stdout


def test_equal_rates_are_said_to_leave_nothing(evaluate: Evaluate, write: Write) -> None:
    columns = {**made_up(), "policy": [0.5] * 160}
    result = evaluate("--data", write(columns), *QUICK, "--model", "policy")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("All measured pass rates are equal")


@pytest.mark.slow
def test_texts_are_embedded_once(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    data, cache = write(made_up(40)), tmp_path / "embeddings"
    arguments = ("--data", data, "--draws", 1, "--encoder", "default", "--encoder-threads", 1, "--cache", cache)
    result = evaluate(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "embeddings  all-MiniLM-L6-v2" in result.stdout
    assert "ridge, embeddings + surface" in result.stdout
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.f32")}
    assert [path.stat().st_size for path in kept] == [40 * 384 * 4]
    # The same table as the first time, from what was kept.
    assert evaluate(*arguments).stdout == result.stdout
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.f32")} == kept


@pytest.mark.slow
def test_an_adapter_of_another_encoder_is_refused(evaluate: Evaluate, write: Write, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    adapter: Adapter = random_adapter(0, 384, 8)
    adapter.save(path)
    result = evaluate("--data", write(made_up(40)), "--encoder", "default", "--encoder-threads", 1, "--adapter", path)
    assert result.exit_code == 2
    assert "was trained on encoder 'an-encoder'; the embeddings are 'all-MiniLM-L6-v2''s" in result.stderr
