"""The questions of an evaluation as the service would hold them: registered into a ``Pool``, features by ``Pool``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from selector.difficulty.estimate import PoolFeatures
from selector.pool import ACTIVE, Pool, PromptRecord


@dataclass(frozen=True)
class Questions:
    """N questions with everything that may be known about them besides their outcomes.

    Attributes:
        features: of the whole pool, prior rates and embeddings included.
        lengths: (N,) float64 characters of each text, NaN without a text; None when no question has a text.
    """

    features: PoolFeatures
    lengths: np.ndarray | None

    @property
    def embedded(self) -> bool:
        """Whether there are embeddings."""
        return self.features.embeddings is not None

    @property
    def has_prior(self) -> bool:
        """Whether another model's pass rates are known."""
        return bool(np.isfinite(self.features.prior_rate).any())

    def view(self, embeddings: bool, prior: bool) -> PoolFeatures:
        """The features with less known; ``version`` differs, as caches go by it."""
        features = self.features
        size = features.size
        return replace(
            features,
            version=4 * features.version + 2 * embeddings + prior,
            embeddings=features.embeddings if embeddings else None,
            prior_rate=features.prior_rate if prior else np.full(size, np.nan),
            prior_trials=features.prior_trials if prior else np.zeros(size),
        )


def register(
    ids: Sequence[str],
    texts: Sequence[str] | None,
    domains: Sequence[str],
    embeddings: np.ndarray | None,
    prior_rate: np.ndarray,
    prior_trials: np.ndarray,
) -> Questions:
    """Put N questions into a pool.

    Args:
        embeddings: (N, w) float32, a row of zeros = none.
        prior_rate: (N,) pass rate of another model, NaN = none.
        prior_trials: (N,) trials behind it, 0 = none.
    """
    known = np.zeros(len(ids), dtype=bool) if embeddings is None else np.asarray(embeddings.any(axis=1))
    pool = Pool()
    pool.put(
        [
            PromptRecord(
                prompt_id=prompt_id,
                content_hash=b"",
                text=texts[at] if texts is not None else "",
                embedding_row=at if known[at] else -1,
                domain=domains[at],
                token_count=0,
                prior_rate=float(prior_rate[at]),
                prior_trials=int(prior_trials[at]),
                status=ACTIVE,
            )
            for at, prompt_id in enumerate(ids)
        ]
    )
    features = pool.features((lambda rows: embeddings[rows]) if embeddings is not None and known.any() else None)
    lengths = None
    if texts is not None and any(texts):
        lengths = np.array([len(text) if text else np.nan for text in texts], dtype=np.float64)
    return Questions(features, lengths)
