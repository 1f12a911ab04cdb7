"""Who gets in: nobody before the server is ready or while it drains, and only callers with a valid token.

Health and reflection stay open: orchestrators and tools ask them before they have anything else. What the holder of a
token may do is not known before the request is: see ``selector.service.rpc``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from selector.errors import ServiceError
from selector.service.access import Access
from selector.service.status import message_of, status_code, trailing_metadata
from selector.v1.reasons import Reason

_OPEN = ("/grpc.health.v1.", "/grpc.reflection.")


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls through, or ends them with a status.

    Attributes:
        ready: everything is loaded.
        draining: the server is shutting down.
        turned_away: told the method and the code's name of every call that was not let in.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.ready = False
        self.draining = False
        self.turned_away: Callable[[str, str], None] = lambda method, code: None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Pass the call on, or answer it with a refusal of the same arity."""
        path = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            self.turned_away(path, "UNIMPLEMENTED")
            return None
        if path.startswith(_OPEN):
            return handler
        method = path.rpartition("/")[2]
        try:
            self._admit(method, handler_call_details)
        except ServiceError as error:
            self.turned_away(method, status_code(error).name)
            return _refusing(handler, error)
        return handler

    def _admit(self, method: str, details: grpc.HandlerCallDetails) -> None:
        if self.draining:
            raise ServiceError(Reason.DRAINING, "the server is shutting down; try again", retry_after_s=1.0)
        if not self.ready:
            raise ServiceError(Reason.STARTING, "the server is still loading; try again", retry_after_s=1.0)
        self._access.authenticate(details.invocation_metadata)
        self._access.check_method(method)


def _refusing(handler: Any, error: ServiceError) -> Any:
    async def refuse(_request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(status_code(error), message_of(error), trailing_metadata(error))

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(handler.request_streaming, handler.response_streaming)]
    return make(refuse, None, handler.response_serializer)
