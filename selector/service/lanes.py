"""Serialises the calls of each run, and keeps blocking work off the event loop.

A run's state has one writer at a time. Work that has begun is carried to its end even if the caller goes away, and the
lane stays taken until then: a cancelled call never leaves a run half-changed. Work that has not begun when its caller
is gone, or its deadline has passed, is not begun.

All runs share the threads, and none can take them all: a run has one thread in its lane, one for what is sent to it
and need not have it for itself, one for readers of its history, and work that waits for a computation gives its thread
back meanwhile (``Later``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import grpc

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.service")

_T = TypeVar("_T")

_LOOKS_AT_ONCE = 8


@dataclass(frozen=True)
class Later(Generic[_T]):
    """What work returns that has to wait: it is gone on with once that has been computed, or some time has passed.

    Attributes:
        awaited: nobody cancels it.
        left_s: longest time to wait; None = any.
        work: what remains to be done.
    """

    awaited: Future[Any]
    left_s: float | None
    work: Callable[[], _T | Later[_T]]


@dataclass(frozen=True)
class Awaited(Generic[_T]):
    """The same for work that needs the lane only before and after; see ``Lanes.patiently``."""

    awaited: Future[Any]
    work: Callable[[], _T | Awaited[_T]]


class _Lane:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.sent = asyncio.Lock()
        self.history = asyncio.Lock()
        # Calls that hold or await one of these.
        self.callers = 0


class Lanes:
    """One lane per run id; nothing is kept of a lane that nobody is in, but when it was last used."""

    def __init__(self, executor: Executor, now: Callable[[], float]) -> None:
        """``now`` gives Unix seconds."""
        self._executor = executor
        self._now = now
        self._used: dict[str, float] = {}
        self._lanes: dict[str, _Lane] = {}
        self._alone = asyncio.Lock()
        self._looks: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._again: set[str] = set()
        self._aside: dict[str, asyncio.Task[None]] = {}
        # An event lives as long as somebody waits for it.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def run(
        self,
        lane: str,
        work: Callable[[], _T | Later[_T]],
        context: grpc.aio.ServicerContext | None = None,
        alone: bool = False,
    ) -> _T:
        """Do blocking work in a lane.

        Args:
            work: gives the result, or what has to be waited for first; the lane stays taken.
            context: of the call, to leave work undone whose caller is gone.
            alone: one such work at a time, whatever the lane: what waits for the others takes no thread.

        Raises:
            ServiceError: DEADLINE_EXCEEDED when the deadline passed before the work began.
        """

        def guard(guards: _Lane) -> AbstractAsyncContextManager[None]:
            return _both(guards.lock, self._alone) if alone else guards.lock

        result = await self._carried(lane, guard, work, context)
        if context is not None:
            self._used[lane] = self._now()
        return result

    async def take_in(self, lane: str, work: Callable[[], _T], context: grpc.aio.ServicerContext | None = None) -> _T:
        """Read and check what was sent to a run, which need not have the run for itself; see ``run``."""
        return await self._carried(lane, lambda guards: guards.sent, work, context)

    async def read(self, lane: str, work: Callable[[], _T], context: grpc.aio.ServicerContext | None = None) -> _T:
        """Read a run's history, which need not have the run for itself; see ``run``."""
        return await self._carried(lane, lambda guards: guards.history, work, context)

    async def _carried(
        self,
        lane: str,
        guard: Callable[[_Lane], AbstractAsyncContextManager[None]],
        work: Callable[[], _T | Later[_T]],
        context: grpc.aio.ServicerContext | None,
    ) -> _T:
        gone = threading.Event()
        task = asyncio.ensure_future(self._guarded(lane, guard, work, context, gone))
        # When the caller is gone nobody else takes the outcome.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def patiently(
        self,
        lane: str,
        work: Callable[[], _T | Awaited[_T]],
        context: grpc.aio.ServicerContext | None = None,
    ) -> _T:
        """Do work in a lane that may first have to wait for something, during which the lane is free.

        Unlike ``Later``, others may change the run meanwhile: the rest of the work must look again.

        Raises:
            ServiceError: as ``run``; DEADLINE_EXCEEDED also when the deadline passed while it waited.
        """
        result: Any = await self.run(lane, work, context)
        while isinstance(result, Awaited):
            await _computed(result.awaited, None if context is None else context.time_remaining())
            result = await self.run(lane, result.work, context)
        return cast(_T, result)

    def aside(self, lane: str, work: Callable[[], Awaited[None] | None]) -> None:
        """Do work ``patiently`` that nobody waits for; its errors are only logged. No run's lane is called "".

        A lane has one such work at a time; what is to be done when there is one already is done once more after it.
        """
        if lane in self._aside:
            self._again.add(lane)
            return

        async def done() -> None:
            again = True
            try:
                while again:
                    self._again.discard(lane)
                    await self.patiently(lane, work)
                    again = lane in self._again
            except (ServiceError, RuntimeError) as error:
                # RuntimeError: the server has stopped.
                _log.info("%s: %s", lane, error)
            except Exception:
                _log.exception("%s: work aside failed", lane)
            finally:
                del self._aside[lane]

        self._aside[lane] = asyncio.ensure_future(done())

    def look(self, lane: str, kind: str, work: Callable[[], _T]) -> asyncio.Task[_T]:
        """Look at a run in its lane, together with everybody else who asks for the same kind of look meanwhile.

        A look that has not ended sees all that was answered before it was asked for, because that left the lane first.
        However many callers ask, a busy lane has one look of a kind to do.
        """
        there = self._looks.get((lane, kind))
        if there is not None and not there.done():
            return there
        task = asyncio.ensure_future(self.run(lane, work))
        self._looks[lane, kind] = task
        task.add_done_callback(partial(self._looked, (lane, kind)))
        return task

    async def look_at(
        self, kind: str, works: Mapping[str, Callable[[], _T]], timeout_s: float
    ) -> dict[str, asyncio.Task[_T]]:
        """Look at many runs; the looks that have not ended after ``timeout_s`` go on, and serve who asks next.

        A few are done at a time, so that calls do not queue behind all of them for a worker; busy lanes are not waited
        for before the others have had their turn.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        looks: dict[str, asyncio.Task[_T]] = {}
        under_way: set[asyncio.Task[_T]] = set()
        for lane, work in works.items():
            busy = lane in self._lanes
            looks[lane] = self.look(lane, kind, work)
            if not busy:
                under_way.add(looks[lane])
            if len(under_way) >= _LOOKS_AT_ONCE:
                _, under_way = await asyncio.wait(
                    under_way, timeout=max(end - loop.time(), 0.0), return_when=asyncio.FIRST_COMPLETED
                )
            if loop.time() >= end:
                break
        waiting = [look for look in looks.values() if not look.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=max(end - loop.time(), 0.0))
        return {lane: look for lane, look in looks.items() if look.done()}

    def _looked(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        if self._looks.get(key) is task:
            del self._looks[key]

    async def off_loop(self, work: Callable[[], _T]) -> _T:
        """Do blocking work that belongs to no lane."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def last_used(self, lane: str) -> float:
        """Unix seconds of the lane's latest call that got an answer, 0 before the first."""
        return self._used.get(lane, 0.0)

    def announce(self, lane: str) -> None:
        """Wake those who wait for a change of the lane."""
        event = self._changes.pop(lane, None)
        if event is not None:
            event.set()

    def change(self, lane: str) -> asyncio.Event:
        """Set at the lane's next announcement; fetch it before looking at the state."""
        return self._changes.setdefault(lane, asyncio.Event())

    def forget(self, lane: str) -> None:
        """Drop a lane whose run is gone."""
        self.announce(lane)
        self._used.pop(lane, None)

    async def _guarded(
        self,
        name: str,
        guard: Callable[[_Lane], AbstractAsyncContextManager[None]],
        work: Callable[[], _T | Later[_T]],
        context: grpc.aio.ServicerContext | None,
        gone: threading.Event,
    ) -> _T:
        lane = self._lanes.setdefault(name, _Lane())
        lane.callers += 1
        try:
            async with guard(lane):
                if context is not None and (gone.is_set() or _expired(context)):
                    raise ServiceError(
                        Reason.DEADLINE_EXCEEDED, "the call ended before its turn came; nothing was applied"
                    )
                result = await self.off_loop(work)
                while isinstance(result, Later):
                    await _computed(result.awaited, result.left_s)
                    result = await self.off_loop(result.work)
        finally:
            lane.callers -= 1
            if not lane.callers:
                del self._lanes[name]
        return result


@asynccontextmanager
async def _both(first: asyncio.Lock, second: asyncio.Lock) -> AsyncIterator[None]:
    async with first, second:
        yield


async def while_wanted(executor: Executor, work: Callable[[Callable[[], bool]], _T]) -> _T:
    """Do long blocking work, and let it know when its caller has gone.

    Args:
        work: called with a function that says whether to give up.
    """
    gone = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work, gone.is_set)
    except asyncio.CancelledError:
        gone.set()
        raise


async def _computed(awaited: Future[Any], left_s: float | None) -> None:
    """Wait until something has been computed, or failed, but not longer than a time."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        # A server that has stopped has no use for it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    awaited.add_done_callback(tell)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(done.wait(), left_s)


def _expired(context: grpc.aio.ServicerContext) -> bool:
    left = context.time_remaining()
    return left is not None and left <= 0
