"""From files of pass rates to what an adapter is trained on; the files are those of ``selector evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.adapter_training.data import RatedQuestions, rated_questions, unusable
from selector.adapter_training.errors import TrainingDataError
from selector.embedding.encoder import Progress
from selector.evaluation.embeddings import EncoderChoice, embed
from selector.evaluation.rates import ColumnNames, RateTable, read_rates


@dataclass(frozen=True)
class Material:
    """Data sets in one embedding space.

    Attributes:
        data: one per file.
        encoder: name of what made the embeddings, empty for ready ones.
        encoder_key: identity of its content, empty for ready ones.
        notes: what was assumed or left out, a sentence each.
    """

    data: tuple[RatedQuestions, ...]
    encoder: str
    encoder_key: str
    notes: tuple[str, ...]


def read(
    paths: Sequence[Path],
    columns: ColumnNames,
    encoder: EncoderChoice,
    progress: Progress,
    say: Callable[[str], None],
) -> Material:
    """Read and embed.

    Args:
        columns: of every file.
        progress: of embedding.
        say: told what takes long.

    Raises:
        DataError, OptionError: a file is unreadable, malformed or without a column.
        TrainingDataError: it cannot train an adapter.
        EmbeddingError: the encoder cannot be loaded, or the cache not be used.
    """
    tables = [read_rates(path, columns) for path in paths]
    ready = [table for table in tables if table.embeddings is not None]
    if ready and len(ready) < len(tables):
        raise TrainingDataError(f"{ready[0].path} has ready embeddings and others have none: expected all or none")
    notes = [f"{table.path.name}: {note}" for table in tables for note in table.notes]
    name = key = ""
    if ready:
        vectors = [table.embeddings for table in tables if table.embeddings is not None]
    else:
        texts = [text for table in tables for text in table.texts or [""] * len(table)]
        embedded = embed(texts, encoder, progress, say)
        if embedded is None:
            raise TrainingDataError("there is nothing to train on without texts and an encoder, or ready embeddings")
        vectors = np.split(embedded.vectors, np.cumsum([len(table) for table in tables])[:-1])
        name, key = embedded.encoder, embedded.encoder_key
    widths = sorted({part.shape[1] for part in vectors})
    if len(widths) > 1:
        raise TrainingDataError(f"embeddings: expected one width; got {', '.join(map(str, widths))}")
    data = tuple(_questions(table, part, notes) for table, part in zip(tables, vectors, strict=True))
    return Material(data, name, key, tuple(notes))


def _questions(table: RateTable, vectors: np.ndarray, notes: list[str]) -> RatedQuestions:
    present = np.flatnonzero(vectors.any(axis=1))
    if len(present) < len(table):
        notes.append(f"{table.path.name}: {len(table) - len(present)} questions without text were left out")
    # Without texts, questions are the same when their embeddings are.
    texts = table.texts or tuple(row.tobytes().hex() for row in vectors)
    rates = np.stack([model.rate for model in table.models.values()], axis=1)[present]
    questions = rated_questions(
        table.path.name, [texts[i] for i in present], vectors[present], tuple(table.models), rates
    )
    for reason, names in unusable(tuple(table.models), rates).items():
        notes.append(f"{table.path.name}: {reason} were left out: {', '.join(names)}")
    return questions
