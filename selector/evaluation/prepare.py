"""From a file and options to something that can be evaluated, with everything said that was assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.embedding.encoder import Progress
from selector.evaluation.embeddings import Embedded, EncoderChoice, embed, load_adapter
from selector.evaluation.errors import DataError, OptionError
from selector.evaluation.experiment import FEWEST_QUESTIONS, FEWEST_UNSEEN, Plan
from selector.evaluation.questions import Questions, register
from selector.evaluation.rates import ColumnNames, ModelRates, RateTable, read_rates

OTHERS = "others"


@dataclass(frozen=True)
class Request:
    """Options of an evaluation on pass rates.

    Attributes:
        model: to predict, None = the first.
        prior_model: known beforehand, None = none.
        references: K; may be lowered when it is not ``insisted`` on.
    """

    data: Path
    columns: ColumnNames
    model: str | None
    prior_model: str | None
    references: int
    insisted: bool
    draws: int
    seed: int
    group_size: int
    batch: int
    encoder: EncoderChoice
    adapter: Path | None


@dataclass(frozen=True)
class Prepared:
    """Everything that ``experiment.evaluate`` takes, and facts and notes for people."""

    plan: Plan
    questions: Questions
    model: ModelRates
    adapter: Adapter | None
    facts: dict[str, str]
    notes: tuple[str, ...]


def prepare(request: Request, progress: Progress, say: Callable[[str], None]) -> Prepared:
    """Read, embed and register.

    Args:
        progress: of embedding.
        say: told what takes long.

    Raises:
        DataError, OptionError: see there.
        EmbeddingError: the encoder cannot be loaded, or the cache not be used.
    """
    columns = replace(request.columns, needed=_needed(request.model, request.prior_model))
    table = read_rates(request.data, columns)
    notes = list(table.notes)
    model = table.model(request.model, "--model")
    if request.model is None and len(table.models) > 1:
        notes.append(f"{len(table.models)} models: {model.name!r} is the first; choose with --model")
    prior = _prior(table, model, request.prior_model)
    known = np.flatnonzero(model.known)
    if len(known) < len(table):
        notes.append(f"{len(table) - len(known)} questions on which {model.name!r} was not run were left out")
    references = _references(request, len(known), notes)
    texts = None if table.texts is None else tuple(table.texts[i] for i in known)
    notes += _text_notes(texts)
    embedded = _embedded(request, table, texts, known, progress, say)
    adapter = load_adapter(request.adapter, embedded)
    prior_rate = np.full(len(known), np.nan) if prior is None else prior.rate[known]
    questions = register(
        ids=[table.ids[i] for i in known],
        texts=texts,
        domains=[table.domains[i] for i in known],
        embeddings=None if embedded is None else embedded.vectors,
        prior_rate=prior_rate,
        prior_trials=np.zeros(len(known)) if prior is None else prior.trials[known],
    )
    measured = ModelRates(model.name, model.rate[known], model.trials[known])
    config = RunConfig(group_size=request.group_size)
    return Prepared(
        plan=Plan(references, request.draws, request.seed, config, request.batch),
        questions=questions,
        model=measured,
        adapter=adapter,
        facts=_facts(request, references, measured, prior, questions, embedded),
        notes=tuple(notes),
    )


def _needed(model: str | None, prior_model: str | None) -> frozenset[str] | None:
    """Models that the evaluation is about, None = all: the first is not known yet, and the others are all of them."""
    if model is None or prior_model == OTHERS:
        return None
    return frozenset({model} if prior_model is None else {model, prior_model})


def _prior(table: RateTable, model: ModelRates, name: str | None) -> ModelRates | None:
    if name is None:
        return None
    if name == OTHERS and OTHERS not in table.models:
        return table.others(model.name)
    if name == model.name:
        raise OptionError("--prior-model", f"{name!r} is the model to predict")
    return table.model(name, "--prior-model")


def _references(request: Request, size: int, notes: list[str]) -> int:
    if size < FEWEST_QUESTIONS:
        raise DataError(f"{request.data}: expected at least {FEWEST_QUESTIONS} questions with a pass rate; got {size}")
    if request.references <= size - FEWEST_UNSEEN:
        return request.references
    if request.insisted:
        raise OptionError(
            "--references",
            f"{request.references} of {size} questions leave too few to judge predictions on; "
            f"expected at most {size - FEWEST_UNSEEN}",
        )
    notes.append(f"{size} questions are few: half of them are references")
    return size // 2


def _text_notes(texts: tuple[str, ...] | None) -> list[str]:
    if texts is None or not any(texts):
        return ["no texts: rows that need one are left out (name the column with --text)"]
    notes = []
    empty = sum(not text for text in texts)
    if empty:
        notes.append(f"{empty} questions have no text")
    repeated = len(texts) - empty - len({text for text in texts if text})
    if repeated:
        notes.append(
            f"{repeated} questions repeat the text of another, so that some references have a twin among the rest"
        )
    return notes


def _embedded(
    request: Request,
    table: RateTable,
    texts: tuple[str, ...] | None,
    known: np.ndarray,
    progress: Progress,
    say: Callable[[str], None],
) -> Embedded | None:
    if table.embeddings is not None:
        return Embedded(table.embeddings[known], "", "")
    return embed(texts, request.encoder, progress, say)


def _facts(
    request: Request,
    references: int,
    model: ModelRates,
    prior: ModelRates | None,
    questions: Questions,
    embedded: Embedded | None,
) -> dict[str, str]:
    trials = np.unique(model.trials).astype(int)
    behind = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
    size = len(model.rate)
    made_by = "none" if embedded is None else embedded.encoder or "ready, from the file"
    facts = {
        "data": f"{request.data.name}: {size:,} questions",
        "model": f"{model.name}, mean pass rate {model.rate.mean():.3f}, {behind} trials a question",
        "references": f"{references} x {int(min(request.group_size, trials[-1]))} rollouts, {request.draws} draws, "
        f"seed {request.seed}; judged on the other {size - references:,}",
        "embeddings": made_by,
    }
    if prior is not None:
        share = np.isfinite(questions.features.prior_rate).mean()
        facts["prior"] = f"{prior.name}, known for {share * 100:.0f} % of the questions"
    return facts
