"""Callers that neither go on nor leave: streams that stay open, and what the server holds for them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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


class StalledCaller:
    """A caller that speaks HTTP/2 by itself: it answers pings and takes ``window`` bytes of an answer, no more."""

    def __init__(self, port: int, window: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        # SETTINGS_INITIAL_WINDOW_SIZE
        settings = struct.pack(">HI", 4, window)
        self._connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))
        self._thread = threading.Thread(target=self._converse)
        self._thread.start()

    def call(self, path: bytes, message: bytes) -> None:
        headers = {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": path,
            b":authority": b"stalled",
            b"content-type": b"application/grpc",
            b"te": b"trailers",
        }
        # Literal fields without Huffman coding and without a table.
        block = b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in headers.items())
        data = b"\0" + struct.pack(">I", len(message)) + message
        self._connection.sendall(_frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, data))

    def ended(self) -> bool:
        """Whether the server ends the connection within a minute."""
        self._thread.join(60)
        return not self._thread.is_alive()

    def __enter__(self) -> StalledCaller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _converse(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as received:
            while head := received.read(9):
                kind, flags = head[3], head[4]
                content = received.read(int.from_bytes(head[:3], "big"))
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    self._connection.sendall(_frame(kind, _ACK, 0, content if kind == _PING else b""))


_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


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
