"""Serialises the calls of each run, and keeps blocking work off the event loop.

A run's state has one writer at a time. Work that has begun is carried to its end even if the caller goes away, and the
lane stays taken until then: a cancelled call never leaves a run half-changed. Work that has not begun when its caller
is gone, or its deadline has passed, is not begun.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import grpc

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_T = TypeVar("_T")


class Lanes:
    """One lane per run id."""

    def __init__(self, executor: Executor, now: Callable[[], float]) -> None:
        """``now`` gives Unix seconds."""
        self._executor = executor
        self._now = now
        self._used: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def run(self, lane: str, work: Callable[[], _T], context: grpc.aio.ServicerContext | None = None) -> _T:
        """Do blocking work in a lane.

        Args:
            context: of the call, to leave work undone whose caller is gone.

        Raises:
            ServiceError: DEADLINE_EXCEEDED when the deadline passed before the work began.
        """
        if context is not None:
            self._used[lane] = self._now()
        task = asyncio.ensure_future(self._locked(lane, work, context))
        return await asyncio.shield(task)

    async def off_loop(self, work: Callable[[], _T]) -> _T:
        """Do blocking work that belongs to no lane."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def last_used(self, lane: str) -> float:
        """Unix seconds of the lane's latest call, 0 before the first."""
        return self._used.get(lane, 0.0)

    def announce(self, lane: str) -> None:
        """Wake those who wait for a change of the lane."""
        self._changed.pop(lane, asyncio.Event()).set()

    def change(self, lane: str) -> asyncio.Event:
        """Set at the lane's next announcement; fetch it before looking at the state."""
        return self._changed[lane]

    def forget(self, lane: str) -> None:
        """Drop a lane whose run is gone."""
        self.announce(lane)
        self._used.pop(lane, None)
        lock = self._locks.get(lane)
        if lock is not None and not lock.locked():
            del self._locks[lane]

    async def _locked(self, lane: str, work: Callable[[], _T], context: grpc.aio.ServicerContext | None) -> _T:
        async with self._locks[lane]:
            if context is not None and _expired(context):
                raise ServiceError(
                    Reason.DEADLINE_EXCEEDED, "the deadline passed before the call could begin; nothing was applied"
                )
            return await self.off_loop(work)


def _expired(context: grpc.aio.ServicerContext) -> bool:
    left = context.time_remaining()
    return bool(context.cancelled()) or (left is not None and left <= 0)
