"""Rows of a file of pass rates as priors of a run's prompts: matched by id, or by text but for white space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clients import PromptRow, SelectorClient
from selector.evaluation.errors import OptionError
from selector.evaluation.rates import RateTable
from selector.ranges import MOST_PRIOR_TRIALS

_LISTED = 10
_LONGEST_ID_BYTES = 256


@dataclass(frozen=True)
class PriorRows:
    """Rows that have a rate.

    Attributes:
        models: whose rates they are the mean of.
        ids: of the rows; of the file only if ``own_ids``, else they are numbered.
        texts: of the rows, None when the file has none.
        rates: in [0, 1].
        trials: behind each rate, > 0.
        without_rate: rows of the file that none of the models was run on.
    """

    models: tuple[str, ...]
    ids: tuple[str, ...]
    own_ids: bool
    texts: tuple[str, ...] | None
    rates: tuple[float, ...]
    trials: tuple[int, ...]
    without_rate: int


@dataclass(frozen=True)
class Imported:
    """What an import did.

    Attributes:
        matched_by: "id" or "text".
        prompts: that have the prior of a row now.
        unmatched: rows that match no prompt.
        unmatched_rows: up to ten of them, by id.
        without_rate: rows that were left out because they have no rate.
    """

    matched_by: str
    prompts: int
    unmatched: int
    unmatched_rows: tuple[str, ...]
    without_rate: int


def prior_rows(table: RateTable, models: Sequence[str], by: str | None) -> PriorRows:
    """The rows' rates, as the mean of these models over all their trials; without names, of all models.

    Raises:
        OptionError: there is no such model, or the file has not what rows are to be matched ``by``.
    """
    chosen = [table.model(name, "--model") for name in dict.fromkeys(models)] or list(table.models.values())
    if not table.own_ids and table.texts is None:
        raise OptionError("--id", f"{table.path} has neither ids nor texts to find prompts by; name a column of them")
    if by == "id" and not table.own_ids:
        raise OptionError("--by", f"{table.path} has no column of ids; name one with --id")
    if by == "text" and table.texts is None:
        raise OptionError("--by", f"{table.path} has no column of texts; name one with --text")
    rates = table.mean(chosen)
    known = rates.known.nonzero()[0].tolist()
    return PriorRows(
        models=tuple(model.name for model in chosen),
        ids=tuple(table.ids[i] for i in known),
        own_ids=table.own_ids,
        texts=None if table.texts is None else tuple(table.texts[i] for i in known),
        # A mean of ones may be a little more than one.
        rates=tuple(np.minimum(rates.rate[known], 1.0).tolist()),
        trials=tuple(min(int(trials), MOST_PRIOR_TRIALS) for trials in rates.trials[known]),
        without_rate=len(table) - len(known),
    )


def import_rows(client: SelectorClient, rows: PriorRows, by: str | None, step: int | None) -> Imported:
    """Import the rows as priors; ``by`` None: by id, or by text when no id of the file is the run's.

    Raises:
        SelectorError: a call failed.
    """
    found = None
    if rows.own_ids and by != "text":
        found = _by_id(client, rows, step)
    if by != "id" and rows.texts is not None and (found is None or not found.prompts):
        found = _by_text(client, rows, rows.texts, step)
    assert found is not None, "rows have ids or texts"
    return found


def _by_id(client: SelectorClient, rows: PriorRows, step: int | None) -> Imported:
    priors = {
        prompt_id: (rate, trials)
        for prompt_id, rate, trials in zip(rows.ids, rows.rates, rows.trials, strict=True)
        if len(prompt_id.encode()) <= _LONGEST_ID_BYTES
    }
    answer = client.import_priors(priors, step)
    # Ids that are too long to be a prompt's were not asked for.
    unmatched = answer.unknown + len(rows.ids) - len(priors)
    return Imported("id", answer.imported, unmatched, answer.unknown_prompt_ids, rows.without_rate)


def _by_text(client: SelectorClient, rows: PriorRows, texts: Sequence[str], step: int | None) -> Imported:
    prompts: dict[str, list[str]] = {}
    for prompt in client.export("prompts"):
        # Several prompts may ask the same.
        if isinstance(prompt, PromptRow):
            prompts.setdefault(_normalised(prompt.text), []).append(prompt.prompt_id)
    prompts.pop("", None)
    totals: dict[str, tuple[float, int]] = {}
    unmatched = []
    for row, text, rate, trials in zip(rows.ids, texts, rows.rates, rows.trials, strict=True):
        key = _normalised(text)
        if key not in prompts:
            unmatched.append(row)
            continue
        # Rows of the same text add up.
        successes, all_trials = totals.get(key, (0.0, 0))
        totals[key] = successes + rate * trials, all_trials + trials
    priors = {
        prompt_id: (min(successes / trials, 1.0), min(trials, MOST_PRIOR_TRIALS))
        for key, (successes, trials) in totals.items()
        for prompt_id in prompts[key]
    }
    answer = client.import_priors(priors, step)
    return Imported("text", answer.imported, len(unmatched), tuple(unmatched[:_LISTED]), rows.without_rate)


def _normalised(text: str) -> str:
    return " ".join(text.split())
