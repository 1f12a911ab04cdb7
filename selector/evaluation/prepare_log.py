"""From a run's export to something that can be evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.embedding.encoder import Progress
from selector.evaluation.embeddings import Embedded, EncoderChoice, embed, load_adapter
from selector.evaluation.questions import Questions, register
from selector.evaluation.replay_log import ReplayLog, read_replay_log


@dataclass(frozen=True)
class PreparedLog:
    """Everything that ``prequential.prequential`` takes, and facts and notes for people."""

    log: ReplayLog
    questions: Questions
    adapter: Adapter | None
    facts: dict[str, str]
    notes: tuple[str, ...]


def prepare_replay_log(
    path: Path, encoder: EncoderChoice, adapter: Path | None, progress: Progress, say: Callable[[str], None]
) -> PreparedLog:
    """Read a run's export and register its pool; texts are embedded only where the export has no embeddings.

    Raises:
        DataError, OptionError, EmbeddingError: as ``prepare``.
    """
    log = read_replay_log(path)
    if log.embeddings is not None:
        embedded: Embedded | None = Embedded(log.embeddings, "", "")
    else:
        embedded = embed(log.texts, encoder, progress, say)
    questions = register(
        ids=log.ids,
        texts=log.texts,
        domains=log.domains,
        embeddings=None if embedded is None else embedded.vectors,
        prior_rate=log.prior_rate,
        prior_trials=log.prior_trials,
    )
    steps = [report.step for report in log.reports]
    groups = sum(len(report.prompt) for report in log.reports)
    facts = {
        "history": f"{log.path}: {len(log.reports)} reports, steps {min(steps)} to {max(steps)}",
        "groups": f"{groups:,}, {int(sum(report.trials.sum() for report in log.reports)):,} rollouts",
        "prompts": f"{len(log.ids):,}",
        "embeddings": "none" if embedded is None else embedded.encoder or "from the export",
        "priors": f"{np.isfinite(log.prior_rate).mean():.0%}".replace("%", " %"),
    }
    return PreparedLog(log, questions, load_adapter(adapter, embedded), facts, (*log.notes, *_prior_notes(log)))


def _prior_notes(log: ReplayLog) -> list[str]:
    """A prior that came after the outcomes, and was perhaps made of them, would flatter what uses it."""
    if not np.isfinite(log.prior_rate).any():
        return []
    return [
        "priors are known from the first report on, as they were when the run was exported: if they came later, "
        "'as recorded' is what was predicted without them"
    ]
