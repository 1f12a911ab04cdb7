"""A server that answers from a script, for how the clients fail, retry and encode. It holds no rules of the service."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from clients import AsyncSelectorClient, RetryPolicy, SelectorClient
from selector.v1 import replay_service_pb2, selector_service_pb2

_SERVICES = {
    module.DESCRIPTOR.services_by_name[name].full_name: module.DESCRIPTOR.services_by_name[name]
    for module, name in ((selector_service_pb2, "SelectorService"), (replay_service_pb2, "ReplayService"))
}
_MODULES = (selector_service_pb2, replay_service_pb2)
_REQUEST_STREAMS = ("RegisterPrompts", "PushRollouts")
_RESPONSE_STREAMS = ("SampleRollouts", "ExportRun")


@dataclass(frozen=True)
class Refusal:
    """Fails a call."""

    code: grpc.StatusCode
    retry_after_s: int | None = None


@dataclass
class Script(grpc.GenericRpcHandler):
    """What the server does, by RPC: refusals, messages, functions of the request; lists of them for response streams.

    The last entry is repeated; an RPC without entries answers its empty message. ``attempts`` holds what was received:
    one request, or a list of them, per attempt.
    """

    answers: dict[str, list[Any]] = field(default_factory=dict)
    attempts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    metadata: list[dict[str, Any]] = field(default_factory=list)
    remaining_s: list[float] = field(default_factory=list)

    def service(self, handler_call_details: Any) -> Any:
        service, _, rpc = handler_call_details.method[1:].partition("/")
        if service not in _SERVICES:
            return None
        method = _SERVICES[service].methods_by_name[rpc]
        request_type = _message(method.input_type.name)
        response_type = _message(method.output_type.name)

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self.metadata.append(dict(context.invocation_metadata()))
            self.remaining_s.append(context.time_remaining())
            self.attempts[rpc].append(list(request) if rpc in _REQUEST_STREAMS else request)
            script = self.answers.get(rpc, [response_type()])
            entry = script.pop(0) if len(script) > 1 else script[0]
            return entry(self.attempts[rpc][-1]) if callable(entry) else entry

        def unary(request: Any, context: grpc.ServicerContext) -> Any:
            entry = answer(request, context)
            return _refuse(entry, context) if isinstance(entry, Refusal) else entry

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            entry = answer(request, context)
            for part in entry if isinstance(entry, list) else [entry]:
                yield _refuse(part, context) if isinstance(part, Refusal) else part

        codec = {
            "request_deserializer": request_type.FromString,
            "response_serializer": response_type.SerializeToString,
        }
        if rpc in _REQUEST_STREAMS:
            return grpc.stream_unary_rpc_method_handler(unary, **codec)
        if rpc in _RESPONSE_STREAMS:
            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        return grpc.unary_unary_rpc_method_handler(unary, **codec)


def _message(name: str) -> Any:
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))


def _refuse(refusal: Refusal, context: grpc.ServicerContext) -> Any:
    status = status_pb2.Status(code=refusal.code.value[0], message="refused by the script")
    if refusal.retry_after_s is not None:
        delay = duration_pb2.Duration(seconds=refusal.retry_after_s)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    context.abort_with_status(rpc_status.to_status(status))


@pytest.fixture
def script() -> Script:
    """The script of this test's server."""
    return Script()


@pytest.fixture
def target(script: Script) -> Iterator[str]:
    """Address of a server that follows the script."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), handlers=[script], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


Caller = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest, target: str) -> Caller:
    """``call(method, *arguments, client_options…)``: one method of either client."""

    def blocking(method: str, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        with SelectorClient(target, "run", **_fast(options)) as client:
            answer = getattr(client, method)(*args, **kwargs)
            return list(answer) if inspect.isgenerator(answer) else answer

    def asynchronous(method: str, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        async def run() -> Any:
            async with AsyncSelectorClient(target, "run", **_fast(options)) as client:
                answer = getattr(client, method)(*args, **kwargs)
                return [row async for row in answer] if inspect.isasyncgen(answer) else await answer

        return asyncio.run(run())

    return blocking if request.param == "blocking" else asynchronous


def _fast(options: dict[str, Any] | None) -> dict[str, Any]:
    return {"retry": RetryPolicy(initial_backoff_s=0.01), **(options or {})}
