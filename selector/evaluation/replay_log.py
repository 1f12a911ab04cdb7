"""A run's exported history: its pool, and its reports in the order they were acknowledged.

``selector export`` writes ``outcomes.parquet`` and ``prompts.parquet``. Of the first, ``prompt_id``, ``step`` and
``outcomes`` (or ``successes`` and ``trials``) are needed; ``arm``, ``purpose`` and ``predicted_difficulty`` are used
where they are there. Without the second nothing is known of the prompts but their outcomes. The pool is taken to have
been there from the start as it is now; signals and replacements of prompts are not part of it.

Rows of one step that follow each other are one report, as nobody had seen one of them before the other. A prompt's
groups in it add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selector.evaluation.cells import embeddings_of, numbers_of, texts_of
from selector.evaluation.data_file import Columns, read_columns
from selector.evaluation.errors import DataError

OUTCOMES, PROMPTS = "outcomes.parquet", "prompts.parquet"


@dataclass(frozen=True)
class Report:
    """Groups of one step.

    Attributes:
        prompt: (M,) int32 index into the log's prompts, distinct.
        trials, successes: (M,) float64.
        uniform: (M,) bool, drawn without regard to difficulty.
        recorded: (M,) float64 pass rate that the service had predicted at selection, NaN = none.
    """

    step: int
    reference: bool
    prompt: np.ndarray
    trials: np.ndarray
    successes: np.ndarray
    uniform: np.ndarray
    recorded: np.ndarray


@dataclass(frozen=True)
class ReplayLog:
    """A history of N prompts.

    Attributes:
        texts: empty where there is none; None when no prompt has one.
        embeddings: (N, w) float32, a row of zeros where there is none; None when no prompt has one.
        prior_rate: (N,) NaN = none.
        prior_trials: (N,) 0 = none.
    """

    path: Path
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    domains: tuple[str, ...]
    embeddings: np.ndarray | None
    prior_rate: np.ndarray
    prior_trials: np.ndarray
    reports: tuple[Report, ...]
    notes: tuple[str, ...]


def read_replay_log(path: Path) -> ReplayLog:
    """Read an export by its directory or its file of outcomes.

    Raises:
        DataError: a file or column is missing, or a value is wrong.
    """
    outcomes_path = path / OUTCOMES if path.is_dir() else path
    if not outcomes_path.exists():
        raise DataError(f"{path}: expected a directory written by 'selector export'; it has no {OUTCOMES}")
    outcomes = read_columns(outcomes_path)
    if not len(outcomes):
        raise DataError(f"{outcomes_path}: no outcomes")
    reported = _required(outcomes, "prompt_id")
    pool_path = outcomes_path.parent / PROMPTS
    pool = read_columns(pool_path) if pool_path.exists() else None
    notes = [] if pool is not None else [f"there is no {PROMPTS} beside it: nothing is known of the prompts"]
    registered = [] if pool is None else [str(value) for value in _required(pool, "prompt_id")]
    index = {prompt_id: at for at, prompt_id in enumerate(registered)}
    if len(index) < len(registered):
        raise DataError(f"{pool_path}: column 'prompt_id': ids occur twice")
    for prompt_id in reported:
        index.setdefault(str(prompt_id), len(index))
    if pool is not None and len(index) > len(registered):
        notes.append(f"{len(index) - len(registered)} prompts with outcomes are not in {PROMPTS}")
    return ReplayLog(
        path=outcomes_path,
        ids=tuple(index),
        texts=_texts(pool, "text", len(index)) or None,
        domains=_texts(pool, "domain", len(index)) or ("",) * len(index),
        embeddings=_embeddings(pool, len(index)),
        prior_rate=_numbers(pool, "prior_rate", len(index), np.nan),
        prior_trials=_numbers(pool, "prior_trials", len(index), 0.0),
        reports=tuple(_reports(outcomes, np.array([index[str(prompt_id)] for prompt_id in reported], dtype=np.int32))),
        notes=tuple(notes),
    )


def _required(columns: Columns, name: str) -> list[Any]:
    if name not in columns.values:
        raise DataError(f"{columns.path}: expected a column {name!r}; it has {', '.join(map(repr, columns.values))}")
    values = columns.values[name]
    missing = next((at for at, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise DataError(f"{columns.path}: column {name!r}, {columns.places[missing]}: expected a value; got nothing")
    return values


def _texts(pool: Columns | None, name: str, size: int) -> tuple[str, ...]:
    """Empty where no prompt has any."""
    if pool is None or name not in pool.values:
        return ()
    texts = texts_of(pool, name)
    return (*texts, *[""] * (size - len(texts))) if any(texts) else ()


def _embeddings(pool: Columns | None, size: int) -> np.ndarray | None:
    if pool is None or all(value is None for value in pool.values.get("embedding", [])):
        return None
    vectors = embeddings_of(pool, "embedding")
    return np.concatenate([vectors, np.zeros((size - len(vectors), vectors.shape[1]), dtype=np.float32)])


def _numbers(pool: Columns | None, name: str, size: int, missing: float) -> np.ndarray:
    numbers = np.full(size, missing)
    if pool is not None and name in pool.values:
        found = numbers_of(pool, name)
        numbers[: len(found)] = np.where(np.isnan(found), missing, found)
    return numbers


def _reports(columns: Columns, prompt: np.ndarray) -> list[Report]:
    step = numbers_of(columns, "step") if _required(columns, "step") else np.zeros(0)
    successes, trials = _successes(columns)
    reference = np.array([value == "REFERENCE" for value in _optional(columns, "purpose")])
    uniform = np.array([value == "UNIFORM" for value in _optional(columns, "arm")]) | reference
    recorded = np.full(len(columns), np.nan)
    if "predicted_difficulty" in columns.values:
        recorded = 1.0 - numbers_of(columns, "predicted_difficulty")
    edges = np.flatnonzero((np.diff(step) != 0) | (np.diff(reference.astype(np.int8)) != 0)) + 1
    reports = []
    for rows in np.split(np.arange(len(columns)), edges):
        distinct, first, place = np.unique(prompt[rows], return_index=True, return_inverse=True)
        at = rows[first]
        reports.append(
            Report(
                step=int(step[at[0]]),
                reference=bool(reference[at[0]]),
                prompt=distinct,
                trials=np.bincount(place, weights=trials[rows], minlength=len(distinct)),
                successes=np.bincount(place, weights=successes[rows], minlength=len(distinct)),
                uniform=uniform[at],
                recorded=recorded[at],
            )
        )
    return reports


def _successes(columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    if "outcomes" not in columns.values:
        _required(columns, "successes")
        _required(columns, "trials")
        successes, trials = numbers_of(columns, "successes"), numbers_of(columns, "trials")
        wrong = np.flatnonzero(~((trials > 0) & (successes >= 0) & (successes <= trials)))
        if len(wrong):
            raise DataError(
                f"{columns.path}: {columns.places[wrong[0]]}: expected 0 <= successes <= trials, trials > 0"
            )
        return successes, trials
    outcomes = _required(columns, "outcomes")
    successes, trials = np.empty(len(columns)), np.empty(len(columns))
    for at, group in enumerate(outcomes):
        values = (
            np.asarray(group, dtype=np.float64) if isinstance(group, Sequence) and not isinstance(group, str) else None
        )
        if values is None or values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1)).all():
            raise DataError(
                f"{columns.path}: column 'outcomes', {columns.places[at]}: expected a list of numbers in [0, 1]"
            )
        successes[at], trials[at] = values.sum(), len(values)
    return successes, trials


def _optional(columns: Columns, name: str) -> list[Any]:
    return columns.values.get(name, [None] * len(columns))
