"""A contiguous part of the pool, which finds its own best prompts for each stage of a selection.

What is best is decided by keys that depend on the prompt alone (noise comes from a counter-based generator whose
counter is the prompt's index), so the best of a whole pool are the best among the parts' best, in the same order,
however the pool was cut. ``selector.selection.choose`` merges them.

Lazy evaluation: a key is noise plus a log-weight, and no log-weight exceeds the score's own maximum. Prompts are
evaluated from the largest noise down until the worst key that is wanted exceeds what any prompt left could reach, which
is exact and takes about ``count / mean(weight / largest weight)`` evaluations, however large the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.noise import gumbels_of, raw, uniforms_of
from selector.selection.scores import largest_log_weight, log_weights

# The first try evaluates so many times what is wanted; each further one so many times the one before.
_FIRST, _FURTHER = 4, 4
# A log-weight may exceed its largest by rounding.
_SLACK = 1e-9


@dataclass(frozen=True)
class Candidates:
    """What can be chosen from: three (N,) columns of the pool, or of a part of it.

    Attributes:
        eligible: active, not excluded, not leased, not yet chosen in this step.
        cooling: chosen too recently, but allowed where nothing else is left.
        last_selected: step of the latest training selection, -1 = never.
    """

    eligible: np.ndarray
    cooling: np.ndarray
    last_selected: np.ndarray


@dataclass(frozen=True)
class Ranked:
    """Prompts of a part, best first.

    Attributes:
        prompt: (n,) int64 index into the whole pool.
        keys: what they are ranked by, larger is better; (n,) float64 each, the first counts most.
        weight: (n,) float64 log-weights, where there are any.
    """

    prompt: np.ndarray
    keys: tuple[np.ndarray, ...]
    weight: np.ndarray | None = None

    def first(self, count: int) -> Ranked:
        """The best ``count``."""
        weight = None if self.weight is None else self.weight[:count]
        return Ranked(self.prompt[:count], tuple(key[:count] for key in self.keys), weight)


class Part(Protocol):
    """The stages of a selection, as the merging side asks for them; in this process or in another."""

    def uniform(self, key: np.ndarray, count: int) -> tuple[Ranked, int]:
        """The ``count`` of largest noise, and how many there were to draw from."""
        ...

    def due(self, key: np.ndarray, step: int, count: int) -> Ranked:
        """Those not selected for too long and not cooling down, longest first."""
        ...

    def targeted(self, key: np.ndarray, thompson: np.ndarray, count: int) -> Ranked:
        """The ``count`` of largest score plus noise among those that are not cooling down."""
        ...

    def cooled(self, key: np.ndarray, count: int) -> Ranked:
        """Those cooling down, selected longest ago first."""
        ...

    def selected_since(self, step: int) -> int:
        """How many were selected at that step or later."""
        ...

    def take(self, prompts: np.ndarray) -> None:
        """These prompts of the pool, of whatever part, cannot be chosen any more."""
        ...


class PoolPart:
    """The prompts ``start .. start + len(eligible) - 1`` in memory."""

    def __init__(self, config: RunConfig, estimate: Estimate, candidates: Candidates, start: int = 0) -> None:
        """
        Args:
            estimate, candidates: columns of this part alone.
        """
        self._config = config
        self._estimate = estimate
        self._candidates = candidates
        self._start = start
        self._size = len(candidates.eligible)
        self._free = candidates.eligible.copy()

    def uniform(self, key: np.ndarray, count: int) -> tuple[Ranked, int]:
        allowed = self._free & ~self._candidates.cooling if self._config.strict_cool_down else self._free
        among = int(np.count_nonzero(allowed))
        if count <= 0 or not among:
            return _NOBODY, among
        noise = raw(key, self._start, self._size)
        rows = np.flatnonzero(allowed & (noise >= _threshold(count, among)))
        if len(rows) < min(count, among):
            rows = np.flatnonzero(allowed)
        values = uniforms_of(noise[rows])
        best = top(values, count)
        return Ranked(self._start + rows[best], (values[best],)), among

    def due(self, key: np.ndarray, step: int, count: int) -> Ranked:
        age = step - self._candidates.last_selected
        rows = np.flatnonzero(self._fresh() & (age > self._config.max_unselected_steps))
        return self._oldest(rows, key, count)

    def targeted(self, key: np.ndarray, thompson: np.ndarray, count: int) -> Ranked:
        fresh = self._fresh()
        among = int(np.count_nonzero(fresh))
        if count <= 0 or not among:
            return _NO_WEIGHTS
        noise = raw(key, self._start, self._size)
        largest = largest_log_weight(self._config)
        largest += _SLACK * max(abs(largest), 1.0)
        evaluated = _FIRST * count
        while evaluated < among:
            threshold = _threshold(evaluated, among)
            found = self._ranked(np.flatnonzero(fresh & (noise >= threshold)), noise, thompson, count)
            # Whoever has not been evaluated has less noise than the threshold.
            reach = largest + float(gumbels_of(np.array([threshold], dtype=np.uint64))[0])
            if len(found.prompt) == count and found.keys[0][-1] > reach:
                return found
            evaluated *= _FURTHER
        return self._ranked(np.flatnonzero(fresh), noise, thompson, count)

    def cooled(self, key: np.ndarray, count: int) -> Ranked:
        return self._oldest(np.flatnonzero(self._free & self._candidates.cooling), key, count)

    def selected_since(self, step: int) -> int:
        return int(np.count_nonzero(self._candidates.last_selected >= step))

    def take(self, prompts: np.ndarray) -> None:
        rows = prompts - self._start
        self._free[rows[(rows >= 0) & (rows < self._size)]] = False

    def _fresh(self) -> np.ndarray:
        return self._free & ~self._candidates.cooling

    def _ranked(self, rows: np.ndarray, noise: np.ndarray, thompson: np.ndarray, count: int) -> Ranked:
        draws = None
        if self._config.score_evaluation == "THOMPSON":
            draws = uniforms_of(raw(thompson, self._start, self._size)[rows])
        weights = log_weights(self._config, self._estimate.of(rows), draws)
        keys = weights + gumbels_of(noise[rows])
        best = top(keys, count)
        return Ranked(self._start + rows[best], (keys[best],), weights[best])

    def _oldest(self, rows: np.ndarray, key: np.ndarray, count: int) -> Ranked:
        """By how long ago they were selected; noise settles ties, so that no id is favoured."""
        if not len(rows):
            return _NO_TIES
        noise = uniforms_of(raw(key, self._start, int(rows.max()) + 1)[rows])
        last_selected = self._candidates.last_selected[rows]
        best = np.lexsort((noise, last_selected))[: max(count, 0)]
        return Ranked(self._start + rows[best], (-last_selected[best].astype(np.float64), -noise[best]))


_NONE = np.zeros(0)
_NOBODY = Ranked(np.zeros(0, dtype=np.int64), (_NONE,))
_NO_WEIGHTS = Ranked(np.zeros(0, dtype=np.int64), (_NONE,), _NONE)
_NO_TIES = Ranked(np.zeros(0, dtype=np.int64), (_NONE, _NONE))


def merged(parts: Sequence[Ranked], count: int) -> Ranked:
    """The best ``count`` of all parts, ties by position in the pool."""
    if len(parts) == 1:
        return parts[0].first(max(count, 0))
    prompt = np.concatenate([part.prompt for part in parts])
    keys = tuple(np.concatenate(columns) for columns in zip(*(part.keys for part in parts), strict=True))
    weights = [part.weight for part in parts if part.weight is not None]
    order = np.lexsort((prompt, *(-key for key in reversed(keys))))[: max(count, 0)]
    weight = np.concatenate(weights)[order] if len(weights) == len(parts) else None
    return Ranked(prompt[order], tuple(key[order] for key in keys), weight)


def top(keys: np.ndarray, count: int) -> np.ndarray:
    """Positions of the largest ``count`` keys, largest first, ties by position.

    Args:
        keys: (n,) float64.

    Returns:
        (min(count, n),) int64.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    if count >= len(keys):
        return np.argsort(-keys, kind="stable")
    threshold = np.partition(keys, len(keys) - count)[len(keys) - count]
    above = np.flatnonzero(keys > threshold)
    level = np.flatnonzero(keys == threshold)[: count - len(above)]
    chosen = np.concatenate([above, level])
    return chosen[np.lexsort((chosen, -keys[chosen]))]


def _threshold(count: int, among: int) -> np.uint64:
    """Raw noise that about ``count`` of ``among`` prompts reach, and a few more."""
    share = min((count + 6.0 * count**0.5 + 16.0) / among, 1.0)
    # Whole steps of a uniform, of which there are 2^53: nobody below has the same one.
    return np.uint64(int((1.0 - share) * 2.0**53) << 11)
