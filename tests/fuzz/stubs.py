"""Stubs that also send bytes that are no message, and leave calls to themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message

from tests.service.bad_input import METHODS, Stubs


class FuzzStubs(Stubs):
    """Stubs of one server, over one connection."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._address = address
        self._raw_channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])

    def raw(self, rpc: str, contents: Sequence[bytes], timeout_s: float) -> Any:
        """A call with these bytes as its messages."""
        call = self._method(rpc)
        answer = call(iter(contents) if METHODS[rpc][0].client_streaming else contents[0], timeout=timeout_s)
        return list(answer) if METHODS[rpc][0].server_streaming else answer

    def begin(self, rpc: str, requests: Sequence[Message], timeout_s: float) -> Any:
        """A call that nobody waits for; what is returned can be cancelled."""
        call = self._method(rpc)
        contents = [request.SerializeToString() for request in requests]
        method, _ = METHODS[rpc]
        if method.client_streaming and not method.server_streaming:
            return call.future(iter(contents), timeout=timeout_s)
        if method.server_streaming:
            return call(contents[0], timeout=timeout_s)
        return call.future(contents[0], timeout=timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._raw_channel.close()
        super().close()

    def _method(self, rpc: str) -> Any:
        method, _ = METHODS[rpc]
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        cls: Any = message_factory.GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{rpc}"
        return getattr(self._raw_channel, kind)(path, response_deserializer=cls.FromString)
