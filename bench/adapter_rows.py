"""The rows of ``bench.adapter``: every way of predicting a pool from a draw's references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import PoolFeatures
from selector.evaluation.draws import Draw
from selector.evaluation.embeddings import Embedded
from selector.evaluation.questions import register
from selector.evaluation.rates import RateTable
from selector.evaluation.service_rows import estimate, fresh_estimator
from selector.evaluation.simple_rows import constant, embedding_block, prior_block, ridge, standardised

Predict = Callable[[Draw], np.ndarray]
"""A draw to the predicted pass rates, (N,), of all questions of the pool."""


@dataclass(frozen=True)
class Pool:
    """N questions to be predicted.

    Attributes:
        bare: features without priors.
        informed: features with what other models tell as priors.
        told: name of what that is.
        blocks: columns of surface features and embeddings, each (N, P).
    """

    bare: PoolFeatures
    informed: PoolFeatures
    told: str
    blocks: list[np.ndarray]

    @classmethod
    def of(
        cls,
        data: RateTable,
        embedded: Embedded,
        part: np.ndarray,
        learned_from: np.ndarray,
        item_mean: np.ndarray,
        seen: bool,
    ) -> Pool:
        """The questions of ``part``.

        Args:
            learned_from: questions rated by the training models; all of ``part`` when ``seen``, else none.
            item_mean: (all questions,) mean rate under the training models.
        """
        prior = item_mean if seen else _transferred(data, embedded, learned_from, item_mean)
        told = "item mean" if seen else "transfer ridge"
        trials = np.full(len(part), 8.0)
        questions = register(
            ids=[data.ids[i] for i in part],
            texts=None if data.texts is None else [data.texts[i] for i in part],
            domains=[data.domains[i] for i in part],
            embeddings=embedded.vectors[part],
            prior_rate=prior[part],
            prior_trials=trials,
        )
        blocks = [standardised(questions.features.surface), embedding_block(embedded.vectors[part])]
        return cls(questions.view(True, False), questions.view(True, True), told, blocks)


def predictions(pool: Pool, adapter: Adapter, references: int) -> dict[str, Predict]:
    """Rows by name."""
    size = pool.bare.size
    prior = prior_block(pool.informed.prior_rate, pool.informed.prior_trials)

    def service(name: str, features: PoolFeatures, trained: Adapter | None) -> Predict:
        pristine = fresh_estimator(name, references, trained)
        return lambda draw: 1.0 - estimate(pristine.copy(), features, draw).difficulty

    return {
        "constant": lambda draw: constant(size, draw).rate,
        "ridge, embeddings + surface": lambda draw: ridge(pool.blocks, draw).rate,
        "attention, untrained": service("ATTENTION", pool.bare, None),
        "attention, trained": service("ATTENTION", pool.bare, adapter),
        f"{pool.told}, recalibrated": lambda draw: ridge([prior], draw).rate,
        "fused": service("FUSED", pool.bare, None),
        "fused, adapter": service("FUSED", pool.bare, adapter),
        f"fused, {pool.told} as prior": service("FUSED", pool.informed, None),
        f"fused, {pool.told} as prior, adapter": service("FUSED", pool.informed, adapter),
    }


def _transferred(data: RateTable, embedded: Embedded, learned_from: np.ndarray, item_mean: np.ndarray) -> np.ndarray:
    """Item means of all questions, predicted by a ridge on text and embedding fitted on those that are rated."""
    everything = register(
        ids=data.ids,
        texts=data.texts,
        domains=data.domains,
        embeddings=embedded.vectors,
        prior_rate=np.full(len(data), np.nan),
        prior_trials=np.zeros(len(data)),
    )
    blocks = [standardised(everything.features.surface), embedding_block(embedded.vectors)]
    learned_from = learned_from[np.isfinite(item_mean[learned_from])]
    rated = Draw(
        number=0,
        reference=learned_from.astype(np.int32),
        trials=np.ones(len(learned_from)),
        successes=item_mean[learned_from],
        unseen=np.zeros(0, dtype=np.int64),
        reports=(),
    )
    return ridge(blocks, rated).rate
