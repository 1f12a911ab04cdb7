"""Messages of PushRollouts, with their groups as they came: what is stored are the bytes that were received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import split

_GROUPS = pb.PushRolloutsRequest.DESCRIPTOR.fields_by_name["groups"].number
_FIELDS = pb.RolloutGroup.DESCRIPTOR.fields_by_name
_PAYLOAD = {
    _FIELDS[name].number: name for name in ("prompt_token_ids", "response_token_ids", "behavior_log_probs", "loss_mask")
}


@dataclass(frozen=True)
class PushedGroup:
    """A group of a message.

    Attributes:
        head: without what is in ``payload``.
        payload: tokens, log-probs and mask by name of the field, where there are any.
        encoded: all of it.
    """

    head: pb.RolloutGroup
    payload: Mapping[str, memoryview]
    encoded: memoryview


@dataclass(frozen=True)
class PushMessage:
    """A message: what it says besides its groups, and these, each encoded."""

    head: pb.PushRolloutsRequest
    groups: tuple[memoryview, ...]

    @property
    def run_id(self) -> str:
        """By which calls are admitted and counted."""
        return self.head.run_id


def decode_push(data: bytes) -> PushMessage:
    """A message as received; nothing large is copied.

    Raises:
        DecodeError: it is none.
    """
    try:
        head, groups = split(memoryview(data), (_GROUPS,))
        return PushMessage(pb.PushRolloutsRequest.FromString(head), tuple(encoded for _, encoded in groups))
    except ValueError as error:
        raise DecodeError(str(error)) from error


def decode_group(encoded: memoryview) -> PushedGroup:
    """A group of a message; nothing large is copied.

    Raises:
        DecodeError: it is none.
    """
    try:
        head, payload = split(encoded, _PAYLOAD)
        return PushedGroup(
            pb.RolloutGroup.FromString(head), {_PAYLOAD[number]: content for number, content in payload}, encoded
        )
    except ValueError as error:
        raise DecodeError(str(error)) from error
