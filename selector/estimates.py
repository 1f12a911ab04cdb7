"""Keeps the estimate of a run up to date, and gives the last one when a new one takes too long.

``current`` computes in the background and waits at most for its budget; a computation that was not waited for goes on
and serves the next call. An estimate is a pure function of the folded evidence, the pool and the step, so a cached one
is as good as a fresh one. When what computes it is lost, it is computed anew, a few times in a row at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass

import numpy as np

from selector.difficulty.estimate import UNIFORM_STANDARD_ERROR, Basis, Estimate, PoolFeatures
from selector.predictor.predictor import PredictorLost, ReplicaGone, RunPredictor
from selector.state import RunState

_log = logging.getLogger("selector.estimates")

_ATTEMPTS = 3
_Key = tuple[int, int, int]


@dataclass(frozen=True)
class Answer:
    """An estimate and whether it leaves out outcomes that had been acknowledged."""

    estimate: Estimate
    degraded: bool


class EstimateKeeper:
    """The estimates of one run; calls are serialised by the caller."""

    def __init__(self, predictor: RunPredictor, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that never run backwards."""
        self.predictor = predictor
        self._clock = clock
        self._key: _Key | None = None
        self._estimate: Estimate | None = None
        self._pending: tuple[_Key, Future[Estimate]] | None = None
        # Attempts in a row that were lost.
        self._lost = 0

    def current(self, state: RunState, features: PoolFeatures, step: int, budget_s: float | None) -> Answer:
        """The estimate for ``step`` with everything folded so far, or the last one when the budget runs out.

        Args:
            budget_s: seconds to wait; None = as long as it takes.
        """
        deadline = None if budget_s is None else self._clock() + budget_s
        while (computing := self.computing(state, features, step)) is not None:
            left = None if deadline is None else deadline - self._clock()
            if not self._finished(computing, left):
                return Answer(self._last(len(features.surface)), degraded=True)
        if self._lost >= _ATTEMPTS:
            # The next call tries again.
            self._lost = 0
            return Answer(self._last(len(features.surface)), degraded=True)
        assert self._estimate is not None
        return Answer(self._estimate, degraded=False)

    def computing(self, state: RunState, features: PoolFeatures, step: int) -> Future[Estimate] | None:
        """What ``current`` would wait for next, from now on in the background; None when the estimate is there, or has
        been lost too often for now.

        An older computation that still runs is waited for first: dropping it for every newer one would mean that a slow
        estimate never arrives.
        """
        key = (state.evidence_version, features.version, step)
        self._install_finished()
        if (self._key == key and self._estimate is not None) or self._lost >= _ATTEMPTS:
            return None
        if self._pending is None:
            self._pending = (key, self.predictor.submit(state, features, step))
        return self._pending[1]

    def forget(self) -> None:
        """Drop what was computed; the state has been rebuilt."""
        if self._pending is not None:
            # If it has not begun, other runs need not wait for it.
            self._pending[1].cancel()
        self.predictor.forget()
        self._lost = 0
        self._key = self._estimate = self._pending = None

    @staticmethod
    def _finished(future: Future[Estimate], budget_s: float | None) -> bool:
        wait([future], timeout=None if budget_s is None else max(budget_s, 0.0))
        return future.done()

    def _install_finished(self) -> None:
        if self._pending is None or not self._pending[1].done():
            return
        key, future = self._pending
        self._pending = None
        try:
            self._key, self._estimate = key, future.result()
        except ReplicaGone as error:
            _log.debug("an estimate for step %d is asked for again: %s", key[2], error)
        except PredictorLost as error:
            self._lost += 1
            _log.warning("an estimate for step %d was lost: %s", key[2], error)
        else:
            self._lost = 0

    def _last(self, size: int) -> Estimate:
        estimate = self._estimate
        if estimate is None:
            return ignorant(size)
        missing = size - len(estimate.difficulty)
        return estimate if missing == 0 else _padded(estimate, missing)


def ignorant(size: int) -> Estimate:
    """The estimate before any is ready: every success rate uniform on [0, 1]."""
    return Estimate(
        step=-1,
        difficulty=np.full(size, 0.5),
        standard_error=np.full(size, UNIFORM_STANDARD_ERROR),
        own_weight=np.zeros(size),
        basis=np.full(size, Basis.NONE, dtype=np.uint8),
        population=np.full(size, 0.5),
    )


def _padded(estimate: Estimate, missing: int) -> Estimate:
    rest = ignorant(missing)
    return Estimate(
        step=estimate.step,
        difficulty=np.concatenate([estimate.difficulty, rest.difficulty]),
        standard_error=np.concatenate([estimate.standard_error, rest.standard_error]),
        own_weight=np.concatenate([estimate.own_weight, rest.own_weight]),
        basis=np.concatenate([estimate.basis, rest.basis]),
        population=np.concatenate([estimate.population, rest.population]),
    )
