"""A relay between a client and the service that can break connections as networks do: cut short, or silent for ever."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress


class Relay:
    """Passes bytes on in both directions, on a port of its own, until it is told to ``cut`` or to ``freeze``."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._upstream: list[asyncio.StreamWriter] = []
        self._downstream: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._broken = asyncio.Event()
        self.address = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        for writer in self._downstream:
            writer.transport.abort()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """The service gets a reset in the middle of whatever was going on; nobody gets through any more."""
        self._broken.set()
        for writer in self._upstream:
            connection = writer.get_extra_info("socket")
            if connection is not None:
                with suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._upstream.clear()
        for writer in self._downstream:
            writer.transport.abort()

    def freeze(self) -> None:
        """The service's end stays open, and nothing comes or goes any more."""
        for pump in self._pumps:
            pump.cancel()

    async def closed_by_service(self, timeout_s: float) -> bool:
        """Whether the service gives the frozen connection up."""
        loop, end = asyncio.get_running_loop(), asyncio.get_running_loop().time() + timeout_s
        while loop.time() < end:
            if all(_is_gone(writer) for writer in self._upstream):
                return True
            await asyncio.sleep(0.2)
        return False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken.is_set():
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        if self._broken.is_set():
            upstream_writer.transport.abort()
            writer.transport.abort()
            return
        self._upstream.append(upstream_writer)
        self._downstream.append(writer)
        for source, target in ((reader, upstream_writer), (upstream_reader, writer)):
            self._pumps.append(asyncio.ensure_future(_pump(source, target)))


def _is_gone(writer: asyncio.StreamWriter) -> bool:
    """The kernel knows whether the other side has closed; nobody reads any more who would."""
    connection = writer.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return bool(state != 1)  # TCP_ESTABLISHED


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    # One side has ended, and the other is told; a relay that was frozen never gets here.
    target.close()
