"""Bytes of PushRollouts that no client of ours sends: refused before they cost much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from selector.v1 import replay_service_pb2 as pb
from tests.service.running import InProcessService

_HEAD = pb.PushRolloutsRequest(run_id="run").SerializeToString()
_EMPTY_GROUP = b"\x2a\x00"


@pytest.fixture
def refused(own_service: InProcessService) -> Iterator[Callable[[bytes], str]]:
    """Pushes an encoded message; what was wrong with it."""
    own_service.client("run").create_run({})
    with grpc.insecure_channel(own_service.address) as channel:
        push: Any = channel.stream_unary("/selector.v1.ReplayService/PushRollouts")

        def pushed(message: bytes) -> str:
            with pytest.raises(grpc.RpcError) as error:
                push(iter([message]), timeout=60)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            return str(error.value.details())

        yield pushed


@pytest.mark.parametrize("field", [_EMPTY_GROUP, b"\x18\x01"], ids=["groups", "fields"])
def test_a_message_of_too_many_fields_is_not_taken_apart(refused: Callable[[bytes], str], field: bytes) -> None:
    """Two bytes of it would become hundreds of bytes and a while of everybody's time."""
    assert "cannot be decoded" in refused(_HEAD + field * 100_000)


def test_the_group_that_is_none_is_named(refused: Callable[[bytes], str]) -> None:
    assert refused(_HEAD + _EMPTY_GROUP + b"\x2a\x01\xff").startswith("groups[1]: expected a group")
    assert refused(_HEAD + _EMPTY_GROUP * 50).startswith("groups[0].prompt_id")
