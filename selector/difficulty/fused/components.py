"""Principal components of the pool's embeddings, as a few columns for the population model."""

from __future__ import annotations

import numpy as np

from selector.difficulty.tiles import TILE_ROWS, tiles

_BASIS_ROWS = 4096
_POWER_ITERATIONS = 4
_NEGLIGIBLE = 1e-6


def principal_components(embeddings: np.ndarray, count: int) -> np.ndarray:
    """Scores (N, <= count) float32 on the leading principal components, in units of the first one's deviation.

    Later components keep their smaller spread, so that a ridge shrinks them more. The basis comes from at most 4096
    evenly spaced rows by a randomised SVD with a fixed seed and fixed signs. Rows of zeros, prompts without embedding,
    score 0 and take no part in the basis. Components without spread are left out.
    """
    # scikit-learn takes seconds to import, which a server without embeddings can do without.
    from sklearn.utils.extmath import randomized_svd

    covered = embeddings.any(axis=1)
    rows = np.flatnonzero(covered)
    count = min(count, len(rows) - 1, embeddings.shape[1])
    if count < 1:
        return np.zeros((len(embeddings), 0), dtype=np.float32)
    sampled = rows[np.linspace(0, len(rows) - 1, min(len(rows), _BASIS_ROWS)).astype(np.int64)]
    sample = embeddings[sampled].astype(np.float32)
    magnitude = float(np.linalg.norm(sample))
    mean = sample.mean(axis=0)
    sample -= mean
    _, spread, directions = randomized_svd(sample, n_components=count, n_iter=_POWER_ITERATIONS, random_state=0)
    kept = spread > _NEGLIGIBLE * magnitude
    if not kept.any():
        return np.zeros((len(embeddings), 0), dtype=np.float32)
    deviation = np.float32(spread[0] / np.sqrt(len(sampled)))
    directions = directions[kept].T.astype(np.float32)
    offset = mean @ directions
    scores = np.empty((len(embeddings), directions.shape[1]), dtype=np.float32)
    # A tile at a time: intermediate results stay in a cache, where those of a million rows would fault in gigabytes.
    for start, tile in zip(range(0, len(embeddings), TILE_ROWS), tiles(embeddings), strict=True):
        scored = tile @ directions
        scored -= offset
        scored /= deviation
        part = scores[start : start + TILE_ROWS]
        part[...] = scored[: len(part)]
    scores[~covered] = 0.0
    return scores
