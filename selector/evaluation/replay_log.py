"""A run's exported history: its pool, and its reports in the order they were acknowledged.

``selector export`` writes ``outcomes.parquet`` and ``prompts.parquet``. Of the first, ``prompt_id``, ``step`` and
``outcomes`` (or ``successes`` and ``trials``) are needed; ``arm``, ``purpose`` and ``predicted_difficulty`` are used
where they are there. Without the second nothing is known of the prompts but their outcomes. The pool is taken to have
been there from the start as it is now; signals and replacements of prompts are not part of it.

Steps may go back from one row to the next: a late report stands where it arrived. Rows of one step that follow each
other are one report, as nobody had seen one of them before the other. A prompt's groups in it add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.evaluation.cells import (
    MOST_TRIALS,
    choices_of,
    embeddings_of,
    ids_of,
    list_of_numbers,
    numbers_of,
    texts_of,
    whole_numbers_of,
    wrong_cell,
)
from selector.evaluation.data_file import Columns, read_columns
from selector.evaluation.errors import DataError
from selector.ranges import LARGEST_STEP, MOST_PRIOR_TRIALS

OUTCOMES, PROMPTS = "outcomes.parquet", "prompts.parquet"
PURPOSES = ("TRAIN", "REFERENCE")
ARMS = ("TARGETED", "UNIFORM", "REVIEW")


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
    reported = _prompt_ids(outcomes)
    pool_path = outcomes_path.parent / PROMPTS
    pool = read_columns(pool_path) if pool_path.exists() else None
    notes = [] if pool is not None else [f"there is no {PROMPTS} beside it: nothing is known of the prompts"]
    registered = () if pool is None else _prompt_ids(pool)
    index: dict[str, int] = {}
    for at, prompt_id in enumerate(registered):
        if index.setdefault(prompt_id, at) != at and pool is not None:
            rows = f"{pool.places[index[prompt_id]]} and {pool.places[at]}"
            raise DataError(f"{pool_path}: column 'prompt_id': {rows} have the same id {prompt_id!r}")
    for prompt_id in reported:
        index.setdefault(prompt_id, len(index))
    if pool is not None and len(index) > len(registered):
        notes.append(f"{len(index) - len(registered)} prompts with outcomes are not in {PROMPTS}")
    prior_rate, prior_trials = _priors(pool, len(index))
    return ReplayLog(
        path=outcomes_path,
        ids=tuple(index),
        texts=_texts(pool, "text", len(index)) or None,
        domains=_texts(pool, "domain", len(index)) or ("",) * len(index),
        embeddings=_embeddings(pool, len(index)),
        prior_rate=prior_rate,
        prior_trials=prior_trials,
        reports=tuple(_reports(outcomes, np.array([index[prompt_id] for prompt_id in reported], dtype=np.int32))),
        notes=tuple(notes),
    )


def _required(columns: Columns, name: str) -> None:
    if name not in columns.values:
        raise DataError(f"{columns.path}: expected a column {name!r}; it has {', '.join(map(repr, columns.values))}")


def _present(columns: Columns, name: str, numbers: np.ndarray) -> np.ndarray:
    missing = np.flatnonzero(np.isnan(numbers))
    if len(missing):
        raise wrong_cell(columns, name, int(missing[0]), "a value")
    return numbers


def _prompt_ids(columns: Columns) -> tuple[str, ...]:
    _required(columns, "prompt_id")
    return ids_of(columns, "prompt_id")


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


def _priors(pool: Columns | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,) rates, NaN = none, and (N,) trials behind them, 0 = none."""
    rate, trials = np.full(size, np.nan), np.zeros(size)
    if pool is None or "prior_rate" not in pool.values:
        return rate, trials
    found = numbers_of(pool, "prior_rate", 0.0, 1.0)
    known = ~np.isnan(found)
    if known.any():
        _required(pool, "prior_trials")
        behind = whole_numbers_of(pool, "prior_trials", 0, MOST_PRIOR_TRIALS)
        without = np.flatnonzero(known & ~(behind > 0))
        if len(without):
            raise wrong_cell(pool, "prior_trials", int(without[0]), "the trials behind the row's prior_rate")
        rate[: len(found)] = found
        trials[: len(found)] = np.where(known, behind, 0.0)
    return rate, trials


def _reports(columns: Columns, prompt: np.ndarray) -> list[Report]:
    _required(columns, "step")
    step = _present(columns, "step", whole_numbers_of(columns, "step", 0, LARGEST_STEP))
    successes, trials = _successes(columns)
    reference = np.array([value == "REFERENCE" for value in _choices(columns, "purpose", PURPOSES)])
    uniform = np.array([value == "UNIFORM" for value in _choices(columns, "arm", ARMS)]) | reference
    recorded = np.full(len(columns), np.nan)
    if "predicted_difficulty" in columns.values:
        recorded = 1.0 - numbers_of(columns, "predicted_difficulty", 0.0, 1.0)
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
        trials = _present(columns, "trials", whole_numbers_of(columns, "trials", 1, MOST_TRIALS))
        successes = _present(columns, "successes", numbers_of(columns, "successes", 0, MOST_TRIALS))
        wrong = np.flatnonzero(successes > trials)
        if len(wrong):
            at = int(wrong[0])
            raise wrong_cell(columns, "successes", at, f"at most as many as the row's {trials[at]:.0f} trials")
        return successes, trials
    successes, trials = np.empty(len(columns)), np.empty(len(columns))
    for at, group in enumerate(columns.values["outcomes"]):
        values = list_of_numbers(group)
        if values is None or not ((values >= 0) & (values <= 1)).all():
            raise wrong_cell(columns, "outcomes", at, "a list of numbers in [0, 1]")
        successes[at], trials[at] = values.sum(), len(values)
    return successes, trials


def _choices(columns: Columns, name: str, choices: Sequence[str]) -> Sequence[str | None]:
    return choices_of(columns, name, choices) if name in columns.values else [None] * len(columns)
