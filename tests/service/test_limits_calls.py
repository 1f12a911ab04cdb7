"""Limits of what is under way at once: what is refused and how, who goes on, and that everything is free afterwards."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clients import SelectorClient
from clients.retry import RetryPolicy
from selector.service.limits import FREE_BYTES
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.service.bad_input import Refusal, Stubs, refusal_of
from tests.service.open_calls import OpenRegistration, StalledCaller, calls_of, narrow_channel, open_sample, until
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import group_of

_GET = pb.GetRunRequest(run_id="a")


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[InProcessService]:
    """A service with runs a and b that takes few calls at a time."""
    running = InProcessService(
        tmp_path / "state",
        max_calls=3,
        max_total_calls=5,
        max_streams=2,
        max_total_streams=3,
        max_message_bytes=4 * FREE_BYTES,
        max_inflight_bytes=3 * FREE_BYTES,
        max_total_inflight_bytes=4 * FREE_BYTES,
    )
    for run_id in ("a", "b", "c"):
        running.client(run_id).create_run()
    until(lambda: not calls_of(running).places)
    yield running
    running.close()


@pytest.fixture
def channel(narrow: InProcessService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(narrow.address) as made:
        yield made


def _refused(refusal: Refusal, name: str, value: int) -> None:
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert refusal.metadata == {"limit": name, "value": str(value)}
    assert f"{name}={value}" in refusal.message
    assert refusal.retry_after_s is not None and refusal.retry_after_s > 0


def _register(channel: grpc.Channel, run_id: str) -> Refusal:
    with OpenRegistration(channel, run_id) as registration:
        registration.send("x")
        return refusal_of(registration.finish)


def test_streams_are_limited_per_run_and_in_total(narrow: InProcessService, channel: grpc.Channel) -> None:
    calls = calls_of(narrow)
    with ExitStack() as stack:
        held = [stack.enter_context(OpenRegistration(channel, run_id)) for run_id in ("a", "a", "b")]
        for i, registration in enumerate(held[:2]):
            registration.send(f"p{i}")
        until(lambda: calls.streams["a"] == 2 and calls.streams[None] == 3)
        # Whose stream it is shows with the first message; the third has not sent one.
        _refused(_register(channel, "a"), "max_total_streams", 3)
        held[2].send("p0")
        assert held[2].finish().added == 1
        until(lambda: calls.streams[None] == 2)
        _refused(_register(channel, "a"), "max_streams", 2)
        assert narrow.client("b").register_prompts(["p1"]).added == 1
        assert held[0].finish().added == 1
        assert narrow.client("a").get_run().pool.registered == 1
        assert narrow.client("a").register_prompts(["p2"]).added == 1
    until(lambda: not (calls.places or calls.streams or calls.bytes))
    assert narrow.client("a").get_run().pool.registered == 2


def test_calls_are_limited_per_run_and_in_total(narrow: InProcessService, channel: grpc.Channel) -> None:
    """Also calls of one message: they take a place before that message has come."""
    calls = calls_of(narrow)
    stubs = Stubs(narrow.address)
    unary: Any = channel.stream_unary(
        "/selector.v1.SelectorService/GetRun",
        request_serializer=pb.GetRunRequest.SerializeToString,
        response_deserializer=pb.GetRunResponse.FromString,
    )
    release = threading.Event()

    def late(run_id: str) -> Iterator[pb.GetRunRequest]:
        release.wait(60)
        yield pb.GetRunRequest(run_id=run_id)

    held = [unary.future(late(run_id), timeout=60) for run_id in "aaabb"]
    until(lambda: calls.places[None] == 5)
    _refused(refusal_of(lambda: stubs.call("GetRun", _GET)), "max_total_calls", 5)
    health: Any = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.SERVING
    release.set()
    assert {call.result().run.run_id for call in held} == {"a", "b"}
    until(lambda: not calls.places)
    stubs.close()


def test_a_run_that_floods_leaves_room_for_others(narrow: InProcessService, channel: grpc.Channel) -> None:
    calls = calls_of(narrow)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(OpenRegistration(channel, "a")).send("p")
        until(lambda: calls.places["a"] == 2)
        waiting = open_sample(channel, "a", 0, 1)
        with pytest.raises(grpc.RpcError) as caught:
            next(waiting)
        assert "max_streams=2" in str(caught.value.details())
        assert narrow.client("b").get_run(timeout_s=20).run_id == "b"


def test_the_client_tries_again_when_the_server_was_overloaded(narrow: InProcessService, channel: grpc.Channel) -> None:
    impatient = narrow.client("a", retry=RetryPolicy(max_attempts=1))
    patient = narrow.client("a", retry=RetryPolicy(max_attempts=100))
    calls = calls_of(narrow)
    with OpenRegistration(channel, "a") as first, OpenRegistration(channel, "a") as second:
        first.send("p0")
        second.send("p1")
        until(lambda: calls.streams["a"] == 2)
        with pytest.raises(Exception, match="OVERLOADED"):
            impatient.register_prompts(["q"])
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(patient.register_prompts(["q"], timeout_s=50).added))
        thread.start()
        assert first.finish().added == 1
        thread.join(60)
        assert answers == [1]


def test_bytes_in_flight_are_limited_and_small_calls_go_on(narrow: InProcessService, channel: grpc.Channel) -> None:
    calls = calls_of(narrow)
    large = "x" * FREE_BYTES
    with ExitStack() as stack:
        first = stack.enter_context(OpenRegistration(channel, "a"))
        for i in range(4):
            first.send(f"p{i}", text=large)
        # The first MiB of a call is free, and beside each text a few bytes are sent.
        until(lambda: calls.bytes["a"] > 3 * FREE_BYTES - 100 or first.call.done())
        _refused(refusal_of(first.finish), "max_inflight_bytes", 3 * FREE_BYTES)
        until(lambda: not calls.bytes)
        second, third = (stack.enter_context(OpenRegistration(channel, run_id)) for run_id in ("a", "b"))
        for i in range(3):
            second.send(f"p{i}", text=large)
        until(lambda: calls.bytes[None] > 2 * FREE_BYTES)
        for i in range(3):
            third.send(f"p{i}", text=large)
        _refused(refusal_of(third.finish), "max_total_inflight_bytes", 4 * FREE_BYTES)
        assert narrow.client("c").register_prompts(["p"], texts=["y" * 1000]).added == 1
        assert second.finish().added == 3
    until(lambda: not (calls.places or calls.streams or calls.bytes))


def test_a_message_beyond_the_limit_is_refused_with_details(narrow: InProcessService) -> None:
    stubs = Stubs(narrow.address)
    prompts = [pb.Prompt(prompt_id=f"p{i}", text="x" * FREE_BYTES) for i in range(5)]
    for request in (
        [pb.RegisterPromptsRequest(run_id="a", prompts=prompts)],
        [pb.RegisterPromptsRequest(run_id="a"), pb.RegisterPromptsRequest(prompts=prompts)],
    ):
        refusal = refusal_of(partial(stubs.call, "RegisterPrompts", request))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert refusal.metadata == {"limit": "max_message_bytes", "value": str(4 * FREE_BYTES)}
        assert refusal.retry_after_s is not None
    # So large that gRPC does not take it in.
    with pytest.raises(grpc.RpcError) as caught:
        stubs.call("RegisterPrompts", pb.RegisterPromptsRequest(run_id="a", prompts=prompts * 2))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert narrow.client("a").get_run().pool.registered == 0
    stubs.close()


def test_a_call_of_no_message_is_bad_input(narrow: InProcessService, channel: grpc.Channel) -> None:
    unary: Any = channel.stream_unary("/selector.v1.SelectorService/GetRun")
    refusal = refusal_of(lambda: unary(iter([]), timeout=20))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


# --- callers that stand still -------------------------------------------------------------------------------------


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[InProcessService]:
    """A service that waits for nobody, with a run that has 64 groups of 256 KiB."""
    running = InProcessService(tmp_path / "state", stream_idle_s=0.3, keepalive_s=0.3, max_calls=2)
    client = running.client("a")
    client.create_run({"replay": {"max_age_steps": 0}})
    prompts = [f"p{i}" for i in range(64)]
    client.register_prompts(prompts)
    tokens = np.zeros(2**16, dtype=np.int32)
    client.push_rollouts(0, [group_of(prompt_id, 0, prompt_token_ids=tokens) for prompt_id in prompts])
    until(lambda: not calls_of(running).places)
    yield running
    running.close()


def test_a_stream_that_sends_nothing_is_ended_and_changes_nothing(impatient: InProcessService) -> None:
    calls = calls_of(impatient)
    with grpc.insecure_channel(impatient.address) as channel:
        with OpenRegistration(channel, "a") as registration:
            registration.send("late")
            refusal = refusal_of(registration.call.result)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE")
        assert refusal.metadata == {"limit": "stream_idle_s", "value": "0.3"}
        until(lambda: not calls.places)
        silent: Any = channel.stream_unary("/selector.v1.SelectorService/GetRun")
        assert refusal_of(silent.future(iter(threading.Event().wait, True), timeout=60).result).reason == "STREAM_IDLE"
    until(lambda: not calls.places)
    assert impatient.client("a").get_run().pool.registered == 64


def test_a_reader_that_takes_nothing_holds_a_place_and_no_lane(impatient: InProcessService) -> None:
    # Time enough for taking what there is once the server has given up, and before it hangs up.
    impatient.restart(stream_idle_s=2.0)
    calls = calls_of(impatient)
    with narrow_channel(impatient.address) as channel:
        sample = open_sample(channel, "a", 0, 64)
        until(lambda: calls.streams["a"] == 1)
        # The run goes on meanwhile.
        client = impatient.client("a")
        chosen = client.select_batch(1, 2)
        client.report_outcomes(1, dict.fromkeys(chosen.prompt_ids, (1.0, 0.0)))
        # Of the sample nothing is in memory but the frames that are on their way.
        until(lambda: calls.bytes["a"] == 0)
        # The server gives up; only then is there a reader.
        until(lambda: not calls.answering)
        groups: list[Any] = []
        with pytest.raises(grpc.RpcError) as caught:
            for frame in sample:
                groups.extend(frame.groups)
        assert "no message was taken for 2 s" in str(caught.value.details())
        assert 0 < len(groups) < 64
    until(lambda: not calls.places)
    assert len(impatient.client("a").sample_rollouts(0, 64)) == 64


def test_a_reader_that_takes_not_even_the_refusal_is_hung_up_on(impatient: InProcessService) -> None:
    calls = calls_of(impatient)
    with narrow_channel(impatient.address) as channel:
        sample = open_sample(channel, "a", 0, 64)
        until(lambda: calls.streams["a"] == 1)
        until(lambda: not calls.places)
        with pytest.raises(grpc.RpcError) as caught:
            list(sample)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(impatient.client("a").sample_rollouts(0, 64)) == 64


@pytest.mark.parametrize("host", ["127.0.0.1", "[::]"])
@pytest.mark.parametrize("window", [0, 5])
def test_a_caller_that_takes_nothing_of_a_single_answer_is_hung_up_on(tmp_path: Path, host: str, window: int) -> None:
    """It answers pings, so that its connection seems well; a caller who reads is left alone."""
    service = InProcessService(
        tmp_path / "state", listen=f"{host}:0", insecure=True, stream_idle_s=0.3, keepalive_s=0.3
    )
    port = int(service.address.rpartition(":")[2])
    calls = calls_of(service)
    with SelectorClient(f"127.0.0.1:{port}", "a") as client:
        client.create_run()
        with StalledCaller(port, window) as stalled:
            stalled.call(b"/selector.v1.SelectorService/GetRun", _GET.SerializeToString())
            until(lambda: calls.places["a"] == 1)
            until(lambda: not calls.places)
            assert stalled.ended()
        assert client.get_run().run_id == "a"
    service.close()


def test_a_reader_that_takes_nothing_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", stream_idle_s=0.3, grace_s=600.0)
    client = service.client("a")
    client.create_run()
    client.register_prompts([f"p{i}" for i in range(64)])
    tokens = np.zeros(2**16, dtype=np.int32)
    client.push_rollouts(0, [group_of(f"p{i}", 0, prompt_token_ids=tokens) for i in range(64)])
    with narrow_channel(service.address) as channel:
        sample = open_sample(channel, "a", 0, 64)
        until(lambda: calls_of(service).streams["a"] == 1)
        service.close()
        sample.cancel()


# --- callers that vanish ------------------------------------------------------------------------------------------


def test_callers_that_leave_free_everything(impatient: InProcessService) -> None:
    """In whatever they were: sending, waiting for groups, or taking an answer."""
    calls, loop = calls_of(impatient), impatient._loop
    stub_request = replay_pb.SampleRolloutsRequest(run_id="a", step=5, count=100, wait=True)

    def tasks() -> int:
        return len(asyncio.all_tasks(loop))

    impatient.client("a").get_run()
    before = tasks()
    for _ in range(3):
        with narrow_channel(impatient.address) as channel, OpenRegistration(channel, "a") as registration:
            registration.send("x")
            wait: Any = channel.unary_stream(
                "/selector.v1.ReplayService/SampleRollouts",
                request_serializer=replay_pb.SampleRolloutsRequest.SerializeToString,
                response_deserializer=replay_pb.SampleRolloutsResponse.FromString,
            )
            waiting = wait(stub_request, timeout=50)
            until(lambda: calls.streams["a"] == 2)
            waiting.cancel()
        until(lambda: not calls.places)
    until(lambda: tasks() <= before)
    lanes = impatient.server._lanes
    assert not lanes._lanes and not lanes._looks
    readers = impatient.server._runs._replay._env.info()["num_readers"]
    for step in range(6, 12):
        with narrow_channel(impatient.address) as channel:
            sample = open_sample(channel, "a", step, 64)
            until(lambda: calls.streams["a"] == 1)
            sample.cancel()
        until(lambda: not calls.places)
    assert impatient.server._runs._replay._env.info()["num_readers"] <= readers + 8
    assert impatient.server._runs._replay._env.lmdb.reader_check() == 0


def test_a_stream_that_is_broken_off_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    """What had come by then is a part of something, and nothing of it is applied."""
    service = ServiceProcess(tmp_path / "state")
    with service.client("a") as client:
        client.create_run()
        for i in range(40):
            with narrow_channel(service.address) as channel, OpenRegistration(channel, "a") as registration:
                registration.send(f"part-{i}")
                # The server has read the part by the time that it answers this.
                client.get_run()
        assert client.get_run().pool.registered == 0
    assert service.terminate() == 0
    assert not [line for line in service.stderr if " ERROR " in line]


def test_a_connection_that_answers_no_ping_is_dropped(impatient: InProcessService) -> None:
    """A machine that is gone without a word: its calls end, its place is free."""
    host, _, port = impatient.address.rpartition(":")
    # Without the answer to a ping gRPC's own patience is a minute.
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        # A client's beginning and its settings, and nothing ever after.
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
        while connection.recv(4096):
            pass
