"""Who is served when: not before everything is loaded, only with a token, and nobody new while the service drains."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from clients.errors import Unauthenticated, Unavailable
from clients.retry import RetryPolicy
from selector.grants import admin
from selector.runs import Runs
from selector.service.server import Server
from selector.settings import ServerSettings
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.service.bad_input import METHODS, SERVICES, Stubs, refusal_of
from tests.service.running import InProcessService, ServiceProcess

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_HEALTH_NAMES = ("", *(service.full_name for service, _ in SERVICES))


def _empty_request(rpc: str) -> Message:
    method, module = METHODS[rpc]
    request: Message = getattr(module, method.input_type.name)()
    return request


def _health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status)


def test_health_says_when_calls_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT_SERVING and STARTING while runs are loaded, SERVING once they are, NOT_SERVING again on the way out."""
    loaded = threading.Event()
    open_runs = Runs.open

    def slow(self: Runs) -> None:
        loaded.wait(30)
        open_runs(self)

    monkeypatch.setattr(Runs, "open", slow)
    settings = ServerSettings(
        tmp_path, listen="127.0.0.1:0", metrics_listen="", encoder="none", grace_s=600.0, predictor_threads=0
    )

    async def watch(address: str) -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
                yield answer.status, channel

    async def scenario() -> None:
        server = Server(settings)
        starting = asyncio.ensure_future(server.start())
        while not server.address:
            await asyncio.sleep(0.01)
        statuses = watch(server.address)
        status, channel = await anext(statuses)
        assert status == _NOT_SERVING
        get_run = channel.unary_unary(
            "/selector.v1.SelectorService/GetRun",
            request_serializer=pb.GetRunRequest.SerializeToString,
            response_deserializer=pb.GetRunResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_run(pb.GetRunRequest(run_id="a"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "still loading" in (caught.value.details() or "")
        loaded.set()
        await starting
        assert (await anext(statuses))[0] == _SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_run(pb.GetRunRequest(run_id="a"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        stopping = asyncio.ensure_future(server.stop())
        assert (await anext(statuses))[0] == _NOT_SERVING
        # A watcher does not leave by itself; the grace time of ten minutes is not for it.
        with pytest.raises(StopAsyncIteration):
            await anext(statuses)
        await asyncio.wait_for(stopping, 60)

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """A service that asks for one of two tokens."""
    running = InProcessService(tmp_path_factory.mktemp("state"), tokens=(admin("right"), admin("also-right")))
    yield running
    running.close()


@pytest.fixture
def guarded_stubs(guarded: InProcessService) -> Iterator[Stubs]:
    made = Stubs(guarded.address)
    yield made
    made.close()


@pytest.mark.parametrize("rpc", METHODS)
def test_every_method_asks_for_the_token(guarded_stubs: Stubs, rpc: str) -> None:
    refusal = refusal_of(lambda: guarded_stubs.call(rpc, _empty_request(rpc)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "authorization",
    ["", "right", "Bearer", "Bearer ", "Bearer wrong", "Bearer righ", "Bearer right ", "Bearer right2", "Basic right"],
)
def test_only_a_valid_bearer_token_is_let_in(guarded_stubs: Stubs, authorization: str) -> None:
    metadata = [("authorization", authorization)]
    request = pb.ListRunsRequest()
    refusal = refusal_of(lambda: guarded_stubs.call("ListRuns", request, metadata=metadata))
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert "right" not in refusal.message


@pytest.mark.parametrize("token", ["right", "also-right"])
def test_every_configured_token_is_let_in(guarded: InProcessService, token: str) -> None:
    assert guarded.client("a", token=token).list_runs() == []


def test_the_client_names_a_missing_token(guarded: InProcessService) -> None:
    with pytest.raises(Unauthenticated):
        guarded.client("a").list_runs()


@pytest.mark.parametrize("service", _HEALTH_NAMES)
def test_health_needs_no_token(guarded: InProcessService, service: str) -> None:
    assert _health(guarded.address, service) == _SERVING


def test_health_of_a_service_that_does_not_exist(guarded: InProcessService) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        _health(guarded.address, "selector.v1.Nobody")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_describes_every_method_and_needs_no_token(guarded: InProcessService) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=s.full_name) for s, _ in SERVICES),
    ]
    with grpc.insecure_channel(guarded.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, *described = list(stub.ServerReflectionInfo(iter(requests), timeout=10))
    names = {service.name for service in listed.list_services_response.service}
    assert {service.full_name for service, _ in SERVICES} <= names
    assert "grpc.health.v1.Health" in names
    methods = set()
    for answer in described:
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            methods |= {method.name for service in file.service for method in service.method}
    assert methods == set(METHODS)


@pytest.mark.parametrize("rpc", METHODS)
def test_every_method_is_refused_while_draining(service: InProcessService, rpc: str) -> None:
    """Calls on connections that are still open; new connections are refused by the closed port."""
    gate = service.server._gate
    stubs = Stubs(service.address)
    gate.draining = True
    try:
        refusal = refusal_of(lambda: stubs.call(rpc, _empty_request(rpc)))
    finally:
        gate.draining = False
        stubs.close()
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert refusal.retry_after_s is not None and refusal.retry_after_s > 0


class _OpenRegistration:
    """A RegisterPrompts stream that stays open until it is finished."""

    def __init__(self, address: str) -> None:
        self._requests: Queue[pb.RegisterPromptsRequest | None] = Queue()
        self._channel = grpc.insecure_channel(address)
        stub = self._channel.stream_unary(
            "/selector.v1.SelectorService/RegisterPrompts",
            request_serializer=pb.RegisterPromptsRequest.SerializeToString,
            response_deserializer=pb.RegisterPromptsResponse.FromString,
        )
        self._call = stub.future(iter(self._requests.get, None), timeout=60)

    def send(self, *prompt_ids: str) -> None:
        prompts = [pb.Prompt(prompt_id=prompt_id) for prompt_id in prompt_ids]
        self._requests.put(pb.RegisterPromptsRequest(run_id="a", prompts=prompts))

    def finish(self) -> Any:
        """The answer, or the error it ended with."""
        self._requests.put(None)
        try:
            return self._call.result()
        except grpc.RpcError as error:
            return error
        finally:
            self._channel.close()


def test_sigterm_lets_a_call_in_flight_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    """And the process ends with exit code 0, with everything it acknowledged on disk."""
    process = ServiceProcess(tmp_path / "state", "--grace-s=30")
    with process.client("a") as client:
        client.create_run({})
    call = _OpenRegistration(process.address)
    call.send("p0")
    _wait_until_in_flight(process.metrics_address)
    with process.client("a", retry=RetryPolicy(max_attempts=1)) as other:
        other.get_run()
        process.process.terminate()
        # The port stays open while a call is in flight, and says why nobody else gets in.
        _wait_until_not_serving(process.address)
        with pytest.raises(Unavailable) as refused:
            other.get_run()
        assert refused.value.reason == "DRAINING"
        assert refused.value.retry_after_s is not None
    call.send("p1")
    answer = call.finish()
    assert answer.added == 2, answer
    assert process.terminate() == 0
    assert any("calls in flight have 30 s" in line for line in process.stderr)
    again = InProcessService(tmp_path / "state")
    try:
        assert again.client("a").get_run().pool.registered == 2
    finally:
        again.close()


def test_a_call_that_outlasts_the_grace_time_is_ended_and_changes_nothing(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", grace_s=0.2)
    service.client("a").create_run({})
    call = _OpenRegistration(service.address)
    call.send("p0")
    # The stream's first message has been read once the same loop has answered a later call.
    service.client("a").get_run()
    service.restart()
    error = call.finish()
    assert isinstance(error, grpc.RpcError)
    assert service.client("a").get_run().pool.registered == 0
    service.close()


def test_a_call_that_waits_gives_up_when_the_service_stops(tmp_path: Path) -> None:
    """A trainer that waits for rollouts does not keep the service for the grace time: nobody can push any more."""
    service = InProcessService(tmp_path / "state", grace_s=600.0)
    service.client("a").create_run({})
    with grpc.insecure_channel(service.address) as channel:
        sample = channel.unary_stream(
            "/selector.v1.ReplayService/SampleRollouts",
            request_serializer=replay_pb.SampleRolloutsRequest.SerializeToString,
            response_deserializer=replay_pb.SampleRolloutsResponse.FromString,
        )
        call = sample(replay_pb.SampleRolloutsRequest(run_id="a", count=1, wait=True), timeout=60)
        service.client("a").get_run()
        service.close()
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in error.details()


def _wait_until_in_flight(metrics_address: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        if any("RegisterPrompts" in line and line.endswith(" 1.0") for line in text.splitlines() if "flight" in line):
            return
        time.sleep(0.02)
    raise AssertionError("the call did not begin")


def _wait_until_not_serving(address: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if _health(address) == _NOT_SERVING:
            return
        time.sleep(0.02)
    raise AssertionError("the service went on serving")


def test_bytes_that_are_no_message_are_bad_input_and_unknown_methods_are_counted(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", metrics_listen="127.0.0.1:0")
    try:
        with grpc.insecure_channel(service.address) as channel:
            for method in ("SelectorService/SelectBatch", "SelectorService/RegisterPrompts"):
                stream = method.endswith("RegisterPrompts")
                make: Any = channel.stream_unary if stream else channel.unary_unary
                call = make(f"/selector.v1.{method}", request_serializer=bytes, response_deserializer=bytes)
                refusal = refusal_of(partial(call, iter([b"\xff"]) if stream else b"\xff"))
                assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
                assert refusal.violations[0][0] == "request"
            with pytest.raises(grpc.RpcError) as caught:
                unserved: Any = channel.unary_unary("/no.such.Service/Method")
                unserved(b"")
            unknown: Any = caught.value
            assert unknown.code() is grpc.StatusCode.UNIMPLEMENTED
        with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'selector_rpc_total{code="UNIMPLEMENTED",method="other"} 1.0' in text
        assert 'selector_rpc_total{code="INVALID_ARGUMENT",method="SelectBatch"} 1.0' in text
    finally:
        service.close()
