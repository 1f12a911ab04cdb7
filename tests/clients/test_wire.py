"""What the client joins from parts is what protobuf would send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from clients import RolloutGroup
from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import delimited, split


def _group(tokens: int, **changes: Any) -> RolloutGroup:
    fields: dict[str, Any] = {
        "prompt_id": "prompt é",
        "policy_version": 3,
        "prompt_token_ids": np.arange(5),
        "response_token_ids": [np.arange(tokens), np.array([7])],
        "behavior_log_probs": [-np.ones(tokens), np.array([-0.5])],
        "rewards": [1.0, -2.0],
        "outcomes": [1.0, 0.0],
    }
    return RolloutGroup.from_arrays(**{**fields, **changes})


@pytest.mark.parametrize("tokens", [1, 31, 32, 5000, 600_000])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt_token_ids": [], "policy_version": 0, "group_id": "g"},
        {"columns": {"a": np.arange(6).reshape(2, 3), "b": b"opaque"}, "sampling": {"temperature": 0.5}},
        {"statuses": ["TRUNCATED", "COMPLETED"]},
    ],
)
def test_a_group_is_encoded_as_protobuf_encodes_it(tokens: int, changes: dict[str, Any]) -> None:
    masked = {"loss_masks": [np.arange(tokens) % 2, np.ones(1)]} if changes else {}
    group = _group(tokens, **changes, **masked)
    assert b"".join(group.encoded()) == group.to_proto().SerializeToString()


def test_arrays_that_are_not_contiguous_or_of_another_type_are_sent_by_value() -> None:
    made = _group(4)
    backwards = np.arange(10, dtype=np.int64)[::-2]
    group = RolloutGroup(
        prompt_id="p",
        group_id="",
        policy_version=1,
        lengths=made.lengths,
        rewards=made.rewards,
        outcomes=made.outcomes,
        prompt_token_ids=made.prompt_token_ids,
        response_token_ids=backwards,
        behavior_log_probs=made.behavior_log_probs.astype(np.float64),
    )
    sent = pb.RolloutGroup.FromString(b"".join(group.encoded()))
    assert np.frombuffer(sent.response_token_ids, "<i4").tolist() == backwards.tolist()
    assert np.frombuffer(sent.behavior_log_probs, "<f4").tolist() == made.behavior_log_probs.tolist()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_field_is_delimited_as_protobuf_does_it(size: int) -> None:
    content = bytes(size)
    expected = pb.Column(data=content).SerializeToString() or b"\x22\x00"
    assert b"".join(delimited(4, [content[: size // 3], memoryview(content)[size // 3 :]])) == expected


@pytest.mark.parametrize("bytes_of_tag, bytes_of_size", [(1, 1), (5, 5), (6, 1), (1, 6), (10, 10)])
def test_what_protobuf_cannot_decode_is_not_split(bytes_of_tag: int, bytes_of_size: int) -> None:
    """The service stores what it received, and other clients decode it with protobuf."""
    column = pb.Column(name="n").SerializeToString() + _longer(4 << 3 | 2, bytes_of_tag) + _longer(3, bytes_of_size)
    message = memoryview(column + b"abc")
    if max(bytes_of_tag, bytes_of_size) <= 5:
        assert pb.Column.FromString(bytes(message)).data == b"abc"
        assert [(number, bytes(content)) for number, content in split(message, (4,))[1]] == [(4, b"abc")]
        return
    with pytest.raises(DecodeError):
        pb.Column.FromString(bytes(message))
    with pytest.raises(ValueError, match="does not end"):
        split(message, (4,))


def _longer(number: int, size: int) -> bytes:
    """A small number as a varint of so many bytes."""
    return bytes([number]) if size == 1 else bytes([number | 0x80, *[0x80] * (size - 2), 0])
