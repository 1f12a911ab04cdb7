"""The service's handlers called in this process with bytes, without HTTP/2 between: deserialiser, interceptors, method.

Everything that gRPC is given is used as gRPC uses it, so that what is tried is what a server does with the bytes of a
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import grpc

from tests.fuzz.verdict import details_of

_DEADLINE_S = 30.0


class Refused(Exception):
    """The handler ended the call with a status."""

    def __init__(self, code: grpc.StatusCode, message: str, details: bytes | None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.details = details


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class _Context:
    """What handlers use of a call."""

    def __init__(self, contents: Sequence[bytes], decode: Any) -> None:
        self._began = asyncio.get_running_loop().time()
        self._contents = iter(contents)
        self._decode = decode
        self._callbacks: list[Any] = []
        self.written: list[Any] = []

    async def read(self) -> Any:
        """The next message."""
        content = next(self._contents, None)
        return grpc.aio.EOF if content is None else self._decode(content)

    async def write(self, message: Any) -> None:
        """An answer of a stream."""
        self.written.append(message)

    def cancelled(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return self._began + _DEADLINE_S - asyncio.get_running_loop().time()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def add_done_callback(self, callback: Any) -> None:
        self._callbacks.append(callback)

    def done(self) -> None:
        """The call has ended."""
        for callback in self._callbacks:
            callback(self)

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody looks at it."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise Refused(code, details, details_of(trailing_metadata))


class Handlers:
    """Calls the methods of a server that was started within ``recorded``."""

    def __init__(self) -> None:
        self.interceptors: Sequence[Any] = ()
        self.generic: list[Any] = []

    async def call(self, path: str, contents: Sequence[bytes]) -> list[bytes]:
        """Answers of a call whose messages are these bytes.

        Raises:
            Refused: it ended with a status.
        """

        async def lookup(details: _Details) -> Any:
            return next(h for generic in self.generic if (h := generic.service(details)) is not None)

        handler = await self._intercepted(lookup, _Details(path), list(self.interceptors))
        decode = handler.request_deserializer or (lambda content: content)
        encode = handler.response_serializer or (lambda message: message)
        context = _Context(contents, decode)

        async def messages() -> AsyncIterator[Any]:
            while (message := await context.read()) is not grpc.aio.EOF:
                yield message

        request = messages() if handler.request_streaming else await context.read()
        method = next(
            method
            for method in (handler.stream_stream, handler.stream_unary, handler.unary_stream, handler.unary_unary)
            if method is not None
        )
        try:
            answer = method(request, context)
            if hasattr(answer, "__aiter__"):
                return [encode(message) async for message in answer]
            # A streaming method may write its answers instead.
            result = await answer
            return [encode(message) for message in (context.written if handler.response_streaming else [result])]
        finally:
            context.done()

    async def _intercepted(self, lookup: Any, details: _Details, interceptors: list[Any]) -> Any:
        if not interceptors:
            return await lookup(details)
        first, *rest = interceptors
        return await first.intercept_service(lambda inner: self._intercepted(lookup, inner, rest), details)


@contextmanager
def recorded() -> Iterator[Handlers]:
    """Handlers of the server that is started within the block."""
    handlers = Handlers()
    make = grpc.aio.server

    def recording(**options: Any) -> grpc.aio.Server:
        server: Any = make(**options)
        handlers.interceptors = options.get("interceptors") or ()
        add = server.add_generic_rpc_handlers

        def record(generic: Any) -> None:
            handlers.generic += list(generic)
            add(generic)

        server.add_generic_rpc_handlers = record
        made: grpc.aio.Server = server
        return made

    with mock.patch.object(grpc.aio, "server", recording):
        yield handlers
