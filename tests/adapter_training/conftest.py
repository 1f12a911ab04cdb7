"""``selector train-adapter`` in this process, and files of pass rates for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from selector.cli.commands import cli
from tests.adapter_training.worlds import TRIALS, embeddings, pass_rates, texts

Train = Callable[..., Result]
SECRET = "what is in the texts stays in the texts"


@pytest.fixture
def train_adapter(tmp_path: Path) -> Train:
    """``train_adapter("--data", …)``; a traceback is a failure of the test."""

    def call(*arguments: object) -> Result:
        given = [str(a) for a in arguments]
        small = ["--references", "64", "--width", "32", "--epochs", "12", "--learning-rate", "0.01"]
        defaults = {option: value for option, value in zip(small[::2], small[1::2], strict=True) if option not in given}
        if "--cache" not in given:
            defaults["--cache"] = str(tmp_path / "cache")
        options = [part for pair in defaults.items() for part in pair]
        result = CliRunner().invoke(cli, ["train-adapter", *given, *options], prog_name="selector")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def write_rates(path: Path, size: int = 800, models: Sequence[str] = ("a", "b", "c", "d"), ready: bool = True) -> Path:
    """A file of the made-up world; ``ready``: with its embeddings."""
    vectors = embeddings(0, size)
    rates = pass_rates(0, vectors, len(models))
    columns: dict[str, object] = {
        "id": [f"q{i}" for i in range(size)],
        "text": [f"{text}: {SECRET}" for text in texts(size)],
        "n": np.full(size, TRIALS),
        **{name: rates[:, i] for i, name in enumerate(models)},
    }
    if ready:
        columns["embedding"] = list(vectors)
    pq.write_table(pa.table(columns), path)
    return path
