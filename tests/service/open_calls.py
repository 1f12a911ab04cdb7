"""Callers that neither go on nor leave: streams that stay open, and what the server holds for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Queue
from types import TracebackType
from typing import Any

import grpc

from selector.service.calls import Calls
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub
from tests.service.running import InProcessService


class OpenRegistration:
    """A RegisterPrompts call whose messages are sent when the test says so."""

    def __init__(self, channel: grpc.Channel, run_id: str, timeout_s: float | None = 60.0) -> None:
        self._run_id = run_id
        self._requests: Queue[Any] = Queue()
        stub: Any = SelectorServiceStub(channel)
        self.call = stub.RegisterPrompts.future(self._sent(), timeout=timeout_s)

    def send(self, *prompt_ids: str, text: str = "") -> None:
        prompts = [pb.Prompt(prompt_id=prompt_id, text=text) for prompt_id in prompt_ids]
        self._requests.put(pb.RegisterPromptsRequest(run_id=self._run_id, prompts=prompts))

    def finish(self) -> Any:
        """The answer."""
        self._requests.put(None)
        return self.call.result()

    def __enter__(self) -> OpenRegistration:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.call.cancel()
        self._requests.put(None)

    def _sent(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request


def open_sample(channel: grpc.Channel, run_id: str, step: int, count: int) -> Any:
    """A SampleRollouts call of which nothing is read; its caller's window is as small as gRPC lets it be."""
    stub: Any = ReplayServiceStub(channel)
    return stub.SampleRollouts(replay_pb.SampleRolloutsRequest(run_id=run_id, step=step, count=count), timeout=60)


def narrow_channel(address: str) -> grpc.Channel:
    """A connection that takes in next to nothing ahead of its reader."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(address, options)


def calls_of(service: InProcessService) -> Calls:
    """What the server counts."""
    return service.server._calls


def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens in other threads; fails after a minute."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
