"""The command called in this process, and made-up pass rates whose difficulty follows from the length of the text."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from selector.cli.commands import cli

Evaluate = Callable[..., Result]
Write = Callable[..., Path]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """``evaluate("--data", …)`` in this process, without an encoder unless one is asked for."""

    def call(*arguments: object) -> Result:
        given = [str(a) for a in arguments]
        encoder = [] if "--encoder" in given else ["--encoder", "none"]
        cache = [] if "--cache" in given else ["--cache", str(tmp_path / "cache")]
        result = CliRunner().invoke(cli, ["evaluate", *given, *encoder, *cache], prog_name="selector")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def made_up(size: int = 160, trials: int = 16, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of a file: longer texts are harder; ``other`` is another model, better and alike."""
    rng = np.random.default_rng(seed)
    words = rng.integers(3, 60, size)
    logit = 2.0 - 0.1 * words + rng.normal(size=size)
    rates = {name: 1.0 / (1.0 + np.exp(-(logit + ahead))) for name, ahead in (("policy", 0.0), ("other", 1.0))}
    return {
        "id": [f"q{i}" for i in range(size)],
        "text": [f"question {i}: " + "word " * int(count) for i, count in enumerate(words)],
        "domain": ["odd" if i % 2 else "even" for i in range(size)],
        **{name: (rng.binomial(trials, rate) / trials).tolist() for name, rate in rates.items()},
        "n": [trials] * size,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(columns, "data.csv")``: the file, in the format of its suffix."""

    def call(columns: dict[str, list[Any]], name: str = "data.parquet") -> Path:
        path = tmp_path / name
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if path.suffix == ".parquet":
            pq.write_table(pa.table(columns), path)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            with open(path, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(columns))
                writer.writeheader()
                writer.writerows(rows)
        return path

    return call
