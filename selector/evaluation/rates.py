"""Pass rates of models on questions, from the columns of a file; docs/evaluate.md describes the format for users.

| column | found by name | content |
|---|---|---|
| id | ``id``, ``qid``, ``prompt_id``, ``question_id``, ``uid`` | distinct; without one, rows are numbered |
| text | ``text``, ``prompt``, ``question``, ``problem`` | text, or chat messages with ``content`` |
| domain | ``domain``, ``category``, ``cat``, ``subject``, ``topic`` | tag of a question |
| embedding | ``embedding`` | numbers, as many in every row |
| trials | ``n``, ``trials``, ``n_trials``, ``num_trials`` | rollouts behind every rate of the row |
| one per model | all other columns, nearly all values of which are numbers in [0, 1] | pass rate; missing = not run |

A column nearly all values of which are pass rates (all but one, or but a twentieth) is meant to hold nothing else: any
other value in it is an error. Other columns are left out and named in a note.

``NAME.n`` are the trials of model NAME where models differ. Without any column of trials they are the smallest n of
which all of a model's rates are multiples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.evaluation.cells import (
    MOST_TRIALS,
    embeddings_of,
    ids_of,
    readings_of,
    texts_of,
    whole_numbers_of,
    wrong_cell,
)
from selector.evaluation.data_file import Columns, read_columns
from selector.evaluation.errors import DataError, OptionError

_ID = ("id", "qid", "prompt_id", "question_id", "uid")
_TEXT = ("text", "prompt", "question", "problem")
_DOMAIN = ("domain", "category", "cat", "subject", "topic")
_EMBEDDING = ("embedding",)
_TRIALS = ("n", "trials", "n_trials", "num_trials")
_OWN_TRIALS = ".n"
# (largest number of trials, rounding of the rates): decimals of three digits, then float32. With more trials than the
# rounding tells apart any rate would fit.
_INFERABLE = ((64, 5e-4), (1024, 1e-6))
# The largest share of a column of pass rates that may be something else, which is then an error.
_SPOILT = 0.05


@dataclass(frozen=True)
class ColumnNames:
    """Columns that the user named, None = find it by name; ``trials`` may be a number instead.

    Attributes:
        models: columns of pass rates that must be there.
        needed: models whose columns must be free of errors, None = all; others with an error are left out.
    """

    id: str | None = None
    text: str | None = None
    domain: str | None = None
    embedding: str | None = None
    trials: str | None = None
    models: tuple[str, ...] = ()
    needed: frozenset[str] | None = None


@dataclass(frozen=True)
class ModelRates:
    """One model on N questions.

    Attributes:
        rate: (N,) float64 pass rate in [0, 1], NaN = not run.
        trials: (N,) float64 rollouts behind it, 0 = not run.
    """

    name: str
    rate: np.ndarray
    trials: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """(N,) bool: was run."""
        return self.trials > 0


@dataclass(frozen=True)
class RateTable:
    """All questions of a file.

    Attributes:
        texts: empty where there is none; None when the file has no text.
        domains: empty where there is none.
        embeddings: (N, w) float32, a row of zeros where there is none; None when the file has none.
        models: by name, in the order of the file.
        notes: what was assumed or left out, a sentence each.
        own_ids: the ids are the file's; otherwise its rows are numbered.
    """

    path: Path
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    domains: tuple[str, ...]
    embeddings: np.ndarray | None
    models: Mapping[str, ModelRates]
    notes: tuple[str, ...]
    own_ids: bool

    def __len__(self) -> int:
        return len(self.ids)

    def model(self, name: str | None, option: str) -> ModelRates:
        """A model by name; without one, the first.

        Raises:
            OptionError: there is no such model.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise OptionError(option, f"{self.path} has no model {name!r}; it has {listed(list(self.models))}")
        return self.models[name]

    def others(self, name: str) -> ModelRates:
        """The mean of all models but one over all their trials, by question.

        Raises:
            OptionError: there is no other.
        """
        rest = [model for model in self.models.values() if model.name != name]
        if not rest:
            raise OptionError("--prior-model", f"{self.path} has no other model than {name!r}")
        return self.mean(rest, "mean of the other models")

    def mean(self, models: Sequence[ModelRates], name: str = "mean") -> ModelRates:
        """The mean of these models over all their trials, by question."""
        trials = np.sum([model.trials for model in models], axis=0)
        successes = np.sum([np.where(model.known, model.rate, 0.0) * model.trials for model in models], axis=0)
        rate = np.where(trials > 0, successes / np.maximum(trials, 1.0), np.nan)
        return ModelRates(name, rate, trials)


def read_rates(path: Path, names: ColumnNames) -> RateTable:
    """Read a file of pass rates.

    Raises:
        DataError: the file is unreadable or a value is wrong; file, column and row are named.
        OptionError: a named column is not there.
    """
    columns = read_columns(path)
    if not len(columns):
        raise DataError(f"{path}: no rows")
    notes: list[str] = []
    id_name = _column(columns, names.id, _ID, "--id")
    text_name = _column(columns, names.text, _TEXT, "--text")
    domain_name = _column(columns, names.domain, _DOMAIN, "--domain")
    embedding_name = _column(columns, names.embedding, _EMBEDDING, "--embedding")
    given = _given_trials(columns, names.trials)
    trials_name = None if given is not None else _column(columns, names.trials, _TRIALS, "--trials")
    special = {id_name, text_name, domain_name, embedding_name, trials_name}
    model_names = _model_names(columns, names, special, notes)
    trials = None if given is None else np.full(len(columns), given)
    if trials_name is not None:
        trials = _trials(columns, trials_name)
    models = {}
    for name in model_names:
        try:
            models[name] = _model(columns, name, trials, notes)
        except DataError as error:
            if names.needed is None or name in names.needed:
                raise
            notes.append(f"{name!r} was left out: {error}")
    return RateTable(
        path=path,
        ids=_ids(columns, id_name),
        texts=None if text_name is None else texts_of(columns, text_name),
        domains=("",) * len(columns) if domain_name is None else texts_of(columns, domain_name),
        embeddings=None if embedding_name is None else embeddings_of(columns, embedding_name),
        models=models,
        notes=tuple(notes),
        own_ids=id_name is not None,
    )


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names for a message."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _column(columns: Columns, named: str | None, usual: Sequence[str], option: str) -> str | None:
    if named is not None:
        if named not in columns.values:
            raise OptionError(option, f"{columns.path} has no column {named!r}; it has {listed(list(columns.values))}")
        return named
    by_lower = {name.lower(): name for name in reversed(list(columns.values))}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _given_trials(columns: Columns, option: str | None) -> float | None:
    """``--trials`` when it is a number for all rows."""
    if option is None or option in columns.values or not option.isdecimal():
        return None
    trials = float(option)
    if trials > MOST_TRIALS:
        raise OptionError("--trials", f"expected at most {MOST_TRIALS}; got {trials:g}")
    return trials


def _model_names(columns: Columns, names: ColumnNames, special: set[str | None], notes: list[str]) -> list[str]:
    """Columns of pass rates: those named, and all that are meant as such."""
    for name in names.models:
        if name not in columns.values:
            raise OptionError(
                "--model", f"{columns.path} has no column {name!r}; it has {listed(list(columns.values))}"
            )
    found, ignored, percentages = [], [], ""
    for name in columns.values:
        if name in names.models:
            found.append(name)
        elif name not in special and not _is_own_trials(name, columns):
            rate, wrong = _pass_rates(columns, name)
            present = int(wrong.sum() + np.isfinite(rate).sum())
            meant = present > wrong.sum() and wrong.sum() <= max(1, _SPOILT * present) and 2 * wrong.sum() <= present
            if meant:
                found.append(name)
            else:
                ignored.append(name)
                percentages = percentages or _percentages(columns, name)
    if ignored:
        notes.append(f"columns that are not pass rates in [0, 1] were left out: {listed(ignored)}")
    if not found:
        hint = f"{percentages}; " if percentages else ""
        raise DataError(
            f"{columns.path}: no column of pass rates: expected a numeric column with values in [0, 1] for each model; "
            f"{hint}the columns are {listed(list(columns.values))}"
        )
    return found


def _pass_rates(columns: Columns, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) pass rates in [0, 1], NaN where there is none; and (N,) bool, something else is there."""
    numbers, others = readings_of(columns, name)
    within = (numbers >= 0.0) & (numbers <= 1.0)
    return np.where(within, numbers, np.nan), others | (~np.isnan(numbers) & ~within)


def _percentages(columns: Columns, name: str) -> str:
    """What to do with a column that looks like percentages; empty for others."""
    numbers, others = readings_of(columns, name)
    known = numbers[~np.isnan(numbers)]
    if others.any() or not len(known) or not ((known >= 0.0) & (known <= 100.0)).all():
        return ""
    # Most questions may be at 0, which both notations write alike.
    passed = known[known > 0.0]
    if not len(passed) or np.median(passed) <= 1.0:
        return ""
    return f"{name!r} reaches {known.max():g}: divide percentages by 100"


def _is_own_trials(name: str, columns: Columns) -> bool:
    return name.endswith(_OWN_TRIALS) and name[: -len(_OWN_TRIALS)] in columns.values


def _model(columns: Columns, name: str, trials: np.ndarray | None, notes: list[str]) -> ModelRates:
    rate, wrong = _pass_rates(columns, name)
    if wrong.any():
        hint = _percentages(columns, name)
        hint = hint or "if the column holds something else, leave it out of the file"
        raise wrong_cell(columns, name, int(wrong.argmax()), "a pass rate in [0, 1]", f"; {hint}")
    known = ~np.isnan(rate)
    own = f"{name}{_OWN_TRIALS}"
    if own in columns.values:
        trials = _trials(columns, own)
    elif trials is None:
        inferred = _inferred_trials(rate[known])
        if inferred is None:
            raise DataError(
                f"{columns.path}: column {name!r}: how many trials are behind the rates? Add a column 'n', "
                "or name one with --trials"
            )
        notes.append(
            f"{name!r}: taken to rest on {inferred} trials each, as all rates are multiples of 1/{inferred} "
            "and there is no column 'n'"
        )
        trials = np.full(len(rate), float(inferred))
    missing = np.flatnonzero(known & ~(trials > 0))
    if len(missing):
        at = int(missing[0])
        raise DataError(f"{columns.path}: {columns.places[at]}: {name!r} has a pass rate but no trials")
    return ModelRates(name, rate, np.where(known, trials, 0.0))


def _trials(columns: Columns, name: str) -> np.ndarray:
    return np.nan_to_num(whole_numbers_of(columns, name, 0, MOST_TRIALS), nan=0.0)


def _inferred_trials(rate: np.ndarray) -> int | None:
    for largest, rounding in _INFERABLE:
        for trials in range(1, largest + 1):
            counts = rate * trials
            if np.all(np.abs(counts - np.round(counts)) <= rounding * trials):
                return trials
    return None


def _ids(columns: Columns, name: str | None) -> tuple[str, ...]:
    if name is None:
        return tuple(columns.places)
    ids = ids_of(columns, name)
    seen: dict[str, int] = {}
    for at, value in enumerate(ids):
        earlier = seen.setdefault(value, at)
        if earlier != at:
            raise DataError(
                f"{columns.path}: column {name!r}: {columns.places[earlier]} and {columns.places[at]} have the same id "
                f"{value!r}; every question has one row, and every model a column"
            )
    return ids
