"""What happens around every method of our services: a place is taken, messages are read and written within limits.

Every call is served as a stream, also where one message is due: so it is here, and not in gRPC, that its message is
waited for, measured and decoded, and nothing of a call is read before it has its place (``selector.service.calls``).

==========================  ========================================================================
a caller that ...           is answered
==========================  ========================================================================
comes while all is taken    OVERLOADED, before any of its messages is read
sends a message too large   QUOTA_EXCEEDED, before it is decoded; far too large ones are refused by gRPC
sends nothing for too long  STREAM_IDLE, and its place is free
takes nothing for too long  STREAM_IDLE, and is hung up on when it takes not even that in the same time again
leaves                      nothing; its place is free, and what had not begun is not begun
==========================  ========================================================================
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc

from selector.errors import ServiceError, invalid
from selector.service.calls import Calls, Place
from selector.service.hang_up import hang_up
from selector.service.limits import Limits, stood_still
from selector.service.rpc import RpcObserver, caller_may_be_gone, tolerant
from selector.service.status import message_of, status_code, trailing_metadata

_log = logging.getLogger("selector.service")

_T = TypeVar("_T")

OPEN = ("/grpc.health.v1.", "/grpc.reflection.")


class Intake(grpc.aio.ServerInterceptor):
    """Puts the limits around the methods; health and reflection are left alone."""

    def __init__(
        self, calls: Calls, observer: RpcObserver, decoders: Mapping[str, Callable[[bytes], Any]] | None = None
    ) -> None:
        """``decoders``: by name of the method, what decodes its messages in place of the stubs."""
        self._calls = calls
        self._observer = observer
        self._decoders = decoders or {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, with everything around it."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or path.startswith(OPEN):
            return handler
        return self._limited(handler, path.rpartition("/")[2])

    def _limited(self, handler: Any, name: str) -> Any:
        streams = handler.request_streaming or handler.response_streaming
        method = handler.stream_unary or handler.unary_stream or handler.unary_unary
        decode = tolerant(self._decoders.get(name, handler.request_deserializer))
        calls, limits = self._calls, self._calls.limits

        async def request_of(place: Place, context: Any) -> Any:
            requests = _Requests(place, context, decode, limits)
            if handler.request_streaming:
                return requests
            request = await requests.next()
            if request is grpc.aio.EOF:
                raise invalid("request", "expected one message; got none")
            return request

        async def begun(context: Any) -> tuple[Place, Any]:
            try:
                place = calls.of_context[context] = calls.place(streams)

                def leave(_: object) -> None:
                    del calls.of_context[context]
                    place.leave()

                # Called when gRPC has nothing left to do for the call, its answer included.
                context.add_done_callback(leave)
                return place, await request_of(place, context)
            except ServiceError as error:
                code = status_code(error)
                self._observer.observe_rpc(name, code.name, 0.0)
                with caller_may_be_gone():
                    await context.abort(code, message_of(error), trailing_metadata(error))
                raise

        async def answer(_requests: object, context: Any) -> Any:
            _, request = await begun(context)
            response = await method(request, context)
            _hang_up_later(name, context, limits)
            return response

        async def answers(_requests: object, context: Any) -> None:
            place, request = await begun(context)
            await _written(name, method(request, context), handler.response_serializer, place, context, limits)
            _hang_up_later(name, context, limits)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(answers, None, None)
        return grpc.stream_unary_rpc_method_handler(answer, None, handler.response_serializer)


class _Requests:
    """The messages of a call as they come, an asynchronous iterator."""

    def __init__(self, place: Place, context: Any, decode: Callable[[bytes], Any], limits: Limits) -> None:
        self._place = place
        self._context = context
        self._decode = decode
        self._limits = limits
        self._of_run = False
        self._received = 0

    async def next(self) -> Any:
        """The next message, or ``grpc.aio.EOF``."""
        data = await _in_time(self._context.read(), "sent", self._limits)
        if data is grpc.aio.EOF:
            await self._check_there()
            return data
        self._limits.check_message(len(data))
        self._place.hold(len(data))
        self._received += len(data)
        message = self._decode(data)
        if not self._of_run:
            self._of_run = True
            self._place.belongs_to(getattr(message, "run_id", ""))
        return message

    async def _check_there(self) -> None:
        """The caller has ended its stream, and has not broken it off: to a reader gRPC shows both as the end.

        Nothing can be sent on a stream that was broken off.
        """
        with caller_may_be_gone():
            await self._context.send_initial_metadata(())

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        message = await self.next()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        self._limits.check_stream(self._received)
        return message


async def _written(
    name: str, answers: Any, encode: Callable[[Any], bytes], place: Place, context: Any, limits: Limits
) -> None:
    """Write the answers of a stream, one after the other as the caller takes them."""
    try:
        # Metadata that went out with the first message, and that message not taken, would leave gRPC unable to send a
        # status.
        with caller_may_be_gone():
            await context.send_initial_metadata(())
        async for message in answers:
            # Encoded here, since to ask a message for its size encodes it as well; a method may have done it itself.
            data = message if isinstance(message, bytes) else encode(message)
            size = len(data)
            try:
                place.hold(size)
                with caller_may_be_gone():
                    await _in_time(context.write(data), "taken", limits)
            except ServiceError as error:
                _hang_up_later(name, context, limits)
                # The method itself turns it into the call's status.
                await answers.athrow(error)
            place.let_go(size)
    finally:
        await answers.aclose()


def _hang_up_later(name: str, context: Any, limits: Limits) -> None:
    """The last of an answer is on its way: hang up on a caller who does not take it, and so would keep its place."""

    def hang_up_now() -> None:
        peer = context.peer()
        if hang_up(peer):
            _log.warning("hung up on %s, which took nothing of its answer to %s in time", peer, name)

    timer = asyncio.get_running_loop().call_later(limits.stream_idle_s, hang_up_now)
    context.add_done_callback(lambda _: timer.cancel())


async def _in_time(step: Awaitable[_T], done: str, limits: Limits) -> _T:
    """As ``asyncio.wait_for``, which would make a task of every message."""
    task = asyncio.current_task()
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(limits.stream_idle_s, expire)
    try:
        return await step
    except asyncio.CancelledError:
        if not expired:
            raise
        if sys.version_info >= (3, 11):
            task.uncancel()
        raise stood_still(done, limits.stream_idle_s) from None
    finally:
        timer.cancel()
