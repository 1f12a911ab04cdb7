"""The attention of a pool to a reference set: ``a_i = softmax_i(z_q . z_i / sqrt(h))``, ``d_q = sum_i a_i d_i``.

Plain attention without calibration (arXiv 2506.05316, section 4.1), of all prompts to all references, and of each
reference to the others alone. Projections of the pool are cached by content, so that after the first estimate only new
or replaced prompts are projected.

With a shortlist, a prompt attends only to as many references, those it would give most weight to, found with faiss. On
a CPU that is no faster than attending to all of them, which takes the same products (docs/prediction.md). References
that are left out attend to all others either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.kernel import NUMPY, Kernel, Rows
from selector.difficulty.reference_set import References
from selector.difficulty.tiles import TILE_ROWS, LatestValue, TileProjectionCache
from selector.neighbours.search import CPU, nearest

_FEWEST_REFERENCES = 3
# float32 exp neither overflows, summed over any reference set, nor loses bits below this score; beyond it the largest
# score is subtracted first. Bounded by the adapter's weights, so that no prompt's figures depend on another's.
_LARGEST_PLAIN_SCORE = 70.0
_VARIATION = 1e-12


@dataclass(frozen=True)
class LeftOut:
    """What each attending reference gets from the others, (K,), and its attention to itself, (K,)."""

    difficulty: np.ndarray
    own_weight: np.ndarray


@dataclass(frozen=True)
class Attention:
    """A reference set ready to be attended to.

    Attributes:
        references: the K attending references.
        tiles: the projected pool, each (2048, h), as the kernel holds them.
        covered: (N,) bool, prompts with an embedding.
        as_query: (K, h) query side of the references.
        as_reference: (K, h) their reference side.
        shortlist: the most references that a prompt attends to, 0 = all.
        device: where they are searched for, cpu or cuda.
        kernel: computes attention to all references.
    """

    adapter: Adapter
    references: References
    tiles: list[Rows]
    covered: np.ndarray
    as_query: np.ndarray
    as_reference: np.ndarray
    shortlist: int = 0
    device: str = CPU
    kernel: Kernel = NUMPY

    def difficulty(self) -> np.ndarray:
        """``sum_i a_i d_i`` of every prompt, (N,) float64, from float32 products."""
        if 0 < self.shortlist < len(self.references):
            return self._shortlisted()
        plain = self.adapter.largest_score <= _LARGEST_PLAIN_SCORE
        attended = self.kernel.attend(self.tiles, self.as_reference, self.references.difficulty, plain)
        return attended[: len(self.covered)]

    def _shortlisted(self) -> np.ndarray:
        measured = self.references.difficulty
        difficulty = np.empty(len(self.tiles) * TILE_ROWS)
        for index, tile in enumerate(self.tiles):
            scores, rows = nearest(self.kernel.host(tile), self.as_reference, self.shortlist, self.device)
            weights = np.exp((scores - scores[:, :1]).astype(np.float64) / np.sqrt(self.as_reference.shape[1]))
            attended = (weights * measured[rows]).sum(axis=1) / weights.sum(axis=1)
            difficulty[index * TILE_ROWS : (index + 1) * TILE_ROWS] = attended
        return difficulty[: len(self.covered)]

    def left_out(self) -> LeftOut:
        """float64, in blocks of rows, so that a large reference pass needs no K x K matrix at once."""
        measured = self.references.difficulty
        keys = self.as_reference.astype(np.float64).T / np.sqrt(self.as_reference.shape[1])
        others = np.empty(len(measured))
        own_weight = np.empty(len(measured))
        for start in range(0, len(measured), TILE_ROWS):
            rows = np.arange(start, min(start + TILE_ROWS, len(measured)))
            scores = self.as_query[rows].astype(np.float64) @ keys
            own = scores[rows - start, rows].copy()
            scores[rows - start, rows] = -np.inf
            largest = scores.max(axis=1)
            weights = np.exp(scores - largest[:, None])
            total = weights.sum(axis=1)
            others[rows] = weights @ measured / total
            own_weight[rows] = expit(own - largest - np.log(total))
        return LeftOut(others, own_weight)

    def weights(self, prompt: int) -> np.ndarray:
        """(K,) float64 attention of one prompt, with an embedding, to the references."""
        query = self.kernel.take(self.tiles, np.array([prompt]))[0].astype(np.float64)
        scores = self.as_reference.astype(np.float64) @ query / np.sqrt(len(query))
        weights: np.ndarray = np.exp(scores - scores.max())
        if 0 < self.shortlist < len(weights):
            weights[np.argsort(-scores, kind="stable")[self.shortlist :]] = 0.0
        return weights / weights.sum()


class Attending:
    """Prepares attention under one adapter, layer norm alone if there is none. Copies of an estimator share it."""

    def __init__(self, adapter: Adapter | None, shortlist: int = 0, device: str = CPU, kernel: Kernel = NUMPY) -> None:
        """``shortlist``, ``device``, ``kernel``: see ``Attention``."""
        self._adapter = adapter
        self._shortlist = shortlist
        self._device = device
        self._kernel = kernel
        self._untrained: LatestValue[Adapter] = LatestValue()
        self._covered: LatestValue[np.ndarray] = LatestValue()
        self._pool: LatestValue[TileProjectionCache] = LatestValue()
        self._project_references: LatestValue[Callable[[np.ndarray], Rows]] = LatestValue()
        self._reference_side: LatestValue[np.ndarray] = LatestValue()

    def to(self, features: PoolFeatures, references: References) -> Attention | None:
        """Attention of the pool to the references that have an embedding.

        None where there is nothing to attend to: no embeddings, fewer than three such references, or references that
        do not differ.

        Raises:
            ValueError: the embeddings are not of the adapter's width.
        """
        embeddings = features.embeddings
        if embeddings is None:
            return None
        width = embeddings.shape[1]
        adapter = self._adapter_for(width)
        covered = self._covered.get((features.version, embeddings.shape), lambda: np.asarray(embeddings.any(axis=1)))
        attending = references.take(covered[references.prompt])
        if len(attending) < _FEWEST_REFERENCES or np.ptp(attending.difficulty) <= _VARIATION:
            return None
        kernel = self._kernel
        pool = self._pool.get(width, lambda: TileProjectionCache(kernel.projection(adapter.query)))
        project = self._project_references.get(width, lambda: kernel.projection(adapter.reference))
        projected = pool.get(features.version, embeddings)
        key = (features.version, embeddings.shape, attending.prompt.tobytes())
        as_reference = self._reference_side.get(key, lambda: kernel.host(project(embeddings[attending.prompt])))
        as_query = kernel.take(projected, attending.prompt)
        return Attention(
            adapter, attending, projected, covered, as_query, as_reference, self._shortlist, self._device, kernel
        )

    def _adapter_for(self, width: int) -> Adapter:
        adapter = self._adapter or self._untrained.get(width, lambda: Adapter.untrained(width))
        if adapter.input_width != width:
            raise ValueError(f"embeddings: the adapter takes width {adapter.input_width}, got {width}")
        return adapter
