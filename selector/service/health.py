"""Health by grpc.health.v1, whose watchers leave when the server drains.

A watch never ends by itself, so one watcher would keep the server from stopping until the grace time is used up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2

# Time for a watcher to be told the last status.
_LAST_STATUS_S = 0.1


class Health(health.aio.HealthServicer):
    """NOT_SERVING until ``serve``, and again from ``drain`` on."""

    def __init__(self, services: Sequence[str]) -> None:
        """``services``: full names; the empty name, the server as a whole, comes with them."""
        super().__init__()
        self._names = ("", *services)
        self._draining = asyncio.Event()

    async def load(self) -> None:
        """Say NOT_SERVING: the server is there and not ready."""
        await self._set_all(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def serve(self) -> None:
        """Say SERVING."""
        await self._set_all(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Say NOT_SERVING, and end all watches."""
        await self._set_all(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._draining.set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Send every status until the caller leaves or the server drains."""
        watching = asyncio.ensure_future(super().Watch(request, context))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait((watching, draining), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((watching,), timeout=_LAST_STATUS_S)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            draining.cancel()

    async def _set_all(self, status: Any) -> None:
        for name in self._names:
            await self.set(name, status)
