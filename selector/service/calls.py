"""The calls in flight: counted, so that a server that drains knows when it is done, and limited.

A call takes its place before any of its messages is read, and keeps it until the last byte of its answer has been
taken over by gRPC or the caller is gone. What a caller can make the server hold is therefore bounded by the number of
places and the bytes in flight, whatever the caller does or fails to do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

from selector.service.limits import FREE_BYTES, Limits, overloaded


class Calls:
    """Calls in flight on one server; used on its event loop only.

    Attributes:
        draining: set when the server begins to shut down; a call that waits for something gives up then.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.draining = asyncio.Event()
        # By run id, and under None of all runs. No run has the empty id.
        self.places: Counter[str | None] = Counter()
        self.streams: Counter[str | None] = Counter()
        self.bytes: Counter[str | None] = Counter()
        # By the context of the call, from when its first message is read until the call ends.
        self.of_context: dict[Any, Place] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def place(self, streams: bool) -> Place:
        """A place for one more call.

        Raises:
            ServiceError: OVERLOADED.
        """
        limits = self.limits
        place = Place(self, streams)
        place.take(None, "max_total", limits.max_total_calls, limits.max_total_streams)
        return place

    @property
    def answering(self) -> int:
        """Calls that have begun and whose answer is not on its way yet."""
        return self._count

    def began(self) -> None:
        """A call is being answered."""
        self._count += 1
        self._idle.clear()

    def ended(self) -> None:
        """A call's answer is on its way."""
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def drain(self, grace_s: float) -> None:
        """Tell calls that wait to give up, and wait until all have ended, at most ``grace_s`` seconds."""
        self.draining.set()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)


class Place:
    """What one call takes of the limits."""

    def __init__(self, calls: Calls, streams: bool) -> None:
        self._calls = calls
        self._streams = int(streams)
        # Who the call counts for: all runs together, and its own.
        self._owners: list[str | None] = []
        self._bytes = 0

    def take(self, owner: str | None, prefix: str, max_calls: int, max_streams: int) -> None:
        """Count for somebody from now on, if there is room."""
        calls = self._calls
        if calls.places[owner] + 1 > max_calls:
            raise overloaded(f"{prefix}_calls", max_calls)
        if self._streams and calls.streams[owner] + 1 > max_streams:
            raise overloaded(f"{prefix}_streams", max_streams)
        calls.places[owner] += 1
        calls.streams[owner] += self._streams
        calls.bytes[owner] += self._charged()
        self._owners.append(owner)

    def belongs_to(self, run_id: str) -> None:
        """The call's first message has come and names its run.

        Raises:
            ServiceError: OVERLOADED.
        """
        limits = self._calls.limits
        self.take(run_id, "max", limits.max_calls, limits.max_streams)
        self._check_bytes()

    def hold(self, size: int) -> None:
        """So many more bytes of messages are held for the call.

        Raises:
            ServiceError: OVERLOADED; they count nevertheless until the call leaves.
        """
        before = self._charged()
        self._bytes += size
        added = self._charged() - before
        for owner in self._owners:
            self._calls.bytes[owner] += added
        if added > 0:
            self._check_bytes()

    def let_go(self, size: int) -> None:
        """So many bytes are no longer held."""
        self.hold(-size)

    def leave(self) -> None:
        """The call has ended."""
        self.let_go(self._bytes)
        calls = self._calls
        while self._owners:
            owner = self._owners.pop()
            calls.places[owner] -= 1
            calls.streams[owner] -= self._streams
            for counter in (calls.places, calls.streams, calls.bytes):
                if not counter[owner]:
                    del counter[owner]

    def _charged(self) -> int:
        return max(self._bytes - FREE_BYTES, 0)

    def _check_bytes(self) -> None:
        limits = self._calls.limits
        for owner in self._owners:
            name = "max_total_inflight_bytes" if owner is None else "max_inflight_bytes"
            limit = limits.max_total_inflight_bytes if owner is None else limits.max_inflight_bytes
            if self._charged() and self._calls.bytes[owner] > limit:
                raise overloaded(name, limit)
