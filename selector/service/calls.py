"""The calls in flight: counted, so that a server that drains knows when it is done."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Calls:
    """Calls in flight on one server; used on its event loop only.

    Attributes:
        draining: set when the server begins to shut down; a call that waits for something gives up then.
    """

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def began(self) -> None:
        """A call has begun."""
        self._count += 1
        self._idle.clear()

    def ended(self) -> None:
        """A call has ended."""
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def drain(self, grace_s: float) -> None:
        """Tell calls that wait to give up, and wait until all have ended, at most ``grace_s`` seconds."""
        self.draining.set()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
