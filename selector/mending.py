"""Embeddings that were damaged on disk: found at start, made again where that can be done.

A prompt's text can be embedded again by the encoder that it was embedded with. A ready embedding can only be sent
again; until then the run selects nothing, since the vectors would not be those of its prompts.
"""

from __future__ import annotations

import logging

import numpy as np

from selector.embedding.embedder import Embedder
from selector.embedding.store import EmbeddingSpace, EmbeddingStore
from selector.run import Run

_log = logging.getLogger("selector.mending")


def mend(runs: list[Run], embeddings: EmbeddingStore, embedder: Embedder) -> None:
    """Check the embeddings of all runs, before any is added, and repair what can be repaired.

    Raises:
        EmbeddingError: a space cannot be opened at all.
    """
    spaces = {run.row.run_id: embeddings.space(run.row.space, run.row.width) for run in runs if run.row.space}
    for run in runs:
        if run.row.space:
            spaces[run.row.run_id].hold(int(run.pool.embedding_row.max(initial=-1)) + 1)
    for run in runs:
        if run.row.space:
            _mend(run, spaces[run.row.run_id], embedder)


def _mend(run: Run, space: EmbeddingSpace, embedder: Embedder) -> None:
    pool = run.pool
    damaged = np.flatnonzero(space.damaged(pool.embedding_row))
    if not len(damaged):
        return
    texts = [i for i in damaged.tolist() if pool.texts[i]] if space is embedder.space else []
    if texts:
        embedder.repair(pool.embedding_row[texts].tolist(), [pool.texts[i] for i in texts])
        _log.warning("run %s: %d damaged embeddings were made again from texts", run.row.run_id, len(texts))
    left = [pool.prompt_ids[i] for i in damaged.tolist() if i not in set(texts)]
    if left:
        _log.error("run %s selects nothing: embeddings of %d prompts are damaged: %s", run.row.run_id, len(left), left)
