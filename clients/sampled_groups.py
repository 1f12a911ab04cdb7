"""The groups of an answer to SampleRollouts: their tokens, log-probs and masks are views of the answer's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from clients.rollout_group import PAYLOAD_FIELDS, RolloutGroup
from clients.same_host import Memory
from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import split

_GROUPS = pb.SampleRolloutsResponse.DESCRIPTOR.fields_by_name["groups"].number
_GROUP = pb.SampledGroup.DESCRIPTOR.fields_by_name["group"].number


def decoded(
    messages: Sequence[bytes], memory: Memory | None
) -> tuple[list[RolloutGroup], pb.SampleRolloutsResponse | None]:
    """The groups of all messages, and the last message without them, None if there is no message.

    Args:
        messages: as received.
        memory: where messages are that were not sent.

    Raises:
        ValueError: they do not fit together.
    """
    groups: list[RolloutGroup] = []
    last = None
    try:
        for message in messages:
            rest, found = split(memoryview(message), (_GROUPS,))
            last = pb.SampleRolloutsResponse.FromString(rest)
            if last.memory_bytes:
                if memory is None:
                    raise ValueError("memory_bytes: expected none, no memory was lent")
                rest, found = split(memory.message(last.memory_bytes), (_GROUPS,))
                last = pb.SampleRolloutsResponse.FromString(rest)
            groups += _groups(found)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return groups, last


def _groups(found: Sequence[tuple[int, memoryview]]) -> Iterator[RolloutGroup]:
    for _, encoded in found:
        rest, group = split(encoded, (_GROUP,))
        about = pb.SampledGroup.FromString(rest)
        head, payload = split(group[-1][1] if group else memoryview(b""), PAYLOAD_FIELDS)
        yield RolloutGroup.from_parts(
            pb.RolloutGroup.FromString(head),
            {PAYLOAD_FIELDS[number]: content for number, content in payload},
            age_steps=about.age_steps,
            times_sampled=about.times_sampled,
            probability=about.probability,
        )
