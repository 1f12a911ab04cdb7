"""Models of files of pass rates, ready to be evaluated as ``selector evaluate`` does, with its defaults."""

from __future__ import annotations

from pathlib import Path

from selector.evaluation.embeddings import EncoderChoice, default_cache
from selector.evaluation.prepare import Prepared, Request, prepare
from selector.evaluation.rates import ColumnNames

REFERENCES = 256


def case(
    data: Path,
    model: str,
    *,
    prior_model: str | None = None,
    references: int = REFERENCES,
    draws: int,
    seed: int = 0,
    encoder: str = "default",
) -> Prepared:
    """One model of one file."""
    request = Request(
        data=data,
        columns=ColumnNames(),
        model=model,
        prior_model=prior_model,
        references=references,
        insisted=True,
        draws=draws,
        seed=seed,
        group_size=8,
        batch=128,
        encoder=EncoderChoice(encoder, "cpu", 1, default_cache()),
        adapter=None,
    )
    return prepare(request, lambda _done, _total: None, lambda _message: None)
