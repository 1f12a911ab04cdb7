"""Who gets in: nobody before the server is ready or while it drains, and only callers with a valid token.

Health and reflection stay open: orchestrators and tools ask them before they have anything else.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from selector.errors import ServiceError
from selector.service.rpc import tolerant
from selector.service.status import message_of, status_code, trailing_metadata
from selector.v1.reasons import Reason

_OPEN = ("/grpc.health.v1.", "/grpc.reflection.")
_BEARER = "Bearer "


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls through, or ends them with a status.

    Attributes:
        ready: everything is loaded.
        draining: the server is shutting down.
        unknown_method: told the name of every method that was called and is not served.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        """``tokens``: any of these is valid; none = no token is asked for."""
        self._tokens = [token.encode() for token in tokens]
        self.ready = False
        self.draining = False
        self.unknown_method: Callable[[str], None] = lambda method: None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Pass the call on, or answer it with a refusal of the same arity."""
        handler = await continuation(handler_call_details)
        if handler is None:
            self.unknown_method(handler_call_details.method)
            return None
        if handler_call_details.method.startswith(_OPEN):
            return handler
        error = self._refusal(handler_call_details)
        if error is not None:
            return _refusing(handler, error)
        return handler._replace(request_deserializer=tolerant(handler.request_deserializer))

    def _refusal(self, details: grpc.HandlerCallDetails) -> ServiceError | None:
        if self.draining:
            return ServiceError(Reason.DRAINING, "the server is shutting down; try again", retry_after_s=1.0)
        if not self.ready:
            return ServiceError(Reason.STARTING, "the server is still loading; try again", retry_after_s=1.0)
        if not self._tokens:
            return None
        values = [v for k, v in details.invocation_metadata if k == "authorization"]
        given = values[0] if values else ""
        given = given.decode() if isinstance(given, bytes) else given
        if not given.startswith(_BEARER):
            return ServiceError(Reason.UNAUTHENTICATED, "expected metadata authorization: Bearer TOKEN")
        presented = given[len(_BEARER) :].encode()
        # Every token is compared, in constant time, so that timing tells nothing about any of them.
        matches = [hmac.compare_digest(presented, token) for token in self._tokens]
        return None if any(matches) else ServiceError(Reason.UNAUTHENTICATED, "the bearer token is not valid")


def _refusing(handler: Any, error: ServiceError) -> Any:
    async def refuse(_request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(status_code(error), message_of(error), trailing_metadata(error))

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(handler.request_streaming, handler.response_streaming)]
    return make(refuse, handler.request_deserializer, handler.response_serializer)
