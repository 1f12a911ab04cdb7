"""What every RPC method shares: scopes are checked, errors become statuses, and calls are counted and timed.

A method never sees a request that its caller may not send. Of a stream the first message names the run, so that is
looked at before the method gets it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from selector.errors import ServiceError, invalid
from selector.service.access import Access
from selector.service.calls import Calls
from selector.service.status import message_of, status_code, trailing_metadata
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.service")


class RpcObserver(Protocol):
    """Counts and times calls."""

    def observe_rpc(self, method: str, code: str, seconds: float) -> None:
        """A call has ended."""

    def in_flight(self, method: str) -> AbstractContextManager[None]:
        """Counts a call as being answered for as long as the context lasts."""


class Undecodable:
    """Stands for a message whose bytes are not of its type."""


class Servicer(Protocol):
    """What the decorators need of a servicer."""

    access: Access
    calls: Calls
    observer: RpcObserver
    monotonic: Callable[[], float]


_Unary = TypeVar("_Unary", bound=Callable[..., Awaitable[Any]])
_Stream = TypeVar("_Stream", bound=Callable[..., AsyncIterator[Any]])


def tolerant(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that leaves it to the method to refuse what cannot be decoded, as any other bad input."""

    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError:
            return Undecodable()

    return deserialize


@contextmanager
def caller_may_be_gone() -> Iterator[None]:
    """What fails inside because there is nobody to send to is the end of the call, and no error."""
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
        raise asyncio.CancelledError from error


def unary(method: _Unary) -> _Unary:
    """Wrap a method that answers one message."""

    @functools.wraps(method)
    async def wrapped(self: Servicer, request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with _Call(self, method.__name__, context) as call:
            try:
                return await method(self, _admitted(self.access, method.__name__, request, context), context)
            except Exception as error:
                await call.abort(error)

    return wrapped  # type: ignore[return-value]


def streaming(method: _Stream) -> _Stream:
    """Wrap a method that answers a stream."""

    @functools.wraps(method)
    async def wrapped(self: Servicer, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with _Call(self, method.__name__, context) as call:
            try:
                admitted = _admitted(self.access, method.__name__, request, context)
                async for message in method(self, admitted, context):
                    yield message
            except Exception as error:
                await call.abort(error)

    return wrapped  # type: ignore[return-value]


def _admitted(access: Access, method: str, request: Any, context: grpc.aio.ServicerContext) -> Any:
    """The request, or requests, if the caller may send them."""
    if hasattr(request, "__aiter__"):
        return _all_admitted(access, method, request, context)
    decoded = _decoded(request)
    access.check(context, method, decoded)
    return decoded


async def _all_admitted(
    access: Access, method: str, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext
) -> AsyncIterator[Any]:
    checked = False
    async for request in requests:
        decoded = _decoded(request)
        if not checked:
            access.check(context, method, decoded)
            checked = True
        yield decoded


def _decoded(request: Any) -> Any:
    if isinstance(request, Undecodable):
        raise invalid("request", "expected a message of the method's type; got bytes that cannot be decoded")
    return request


class _Call:
    """One call, from its beginning to its status."""

    def __init__(self, servicer: Servicer, method: str, context: grpc.aio.ServicerContext) -> None:
        self._servicer = servicer
        self._method = method
        self._context = context
        self._code = "OK"
        self._refused = False

    async def __aenter__(self) -> _Call:
        self._servicer.calls.began()
        self._in_flight = self._servicer.observer.in_flight(self._method)
        self._in_flight.__enter__()
        self._began = self._servicer.monotonic()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._code == "OK":
            self._code = "CANCELLED" if issubclass(kind, asyncio.CancelledError | GeneratorExit) else "INTERNAL"
        self._in_flight.__exit__(None, None, None)
        if not self._refused:
            self._servicer.calls.ended()
        elapsed = self._servicer.monotonic() - self._began
        self._servicer.observer.observe_rpc(self._method, self._code, elapsed)

    async def abort(self, error: Exception) -> NoReturn:
        """End the call with the error's status."""
        if not isinstance(error, ServiceError):
            _log.error("%s failed", self._method, exc_info=error)
            error = ServiceError(Reason.INTERNAL, f"{self._method} failed; the server's log has the details")
        code = status_code(error)
        self._code = code.name
        # A caller that takes nothing would otherwise keep a server that drains waiting.
        self._refused = True
        self._servicer.calls.ended()
        with caller_may_be_gone():
            await self._context.abort(code, message_of(error), trailing_metadata(error))
        raise AssertionError("abort returns")
