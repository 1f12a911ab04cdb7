"""Whether an answer is one that the contract allows.

A refusal has the code of a reason of the table in ``selector.v1.reasons`` that a client's mistake can have, names that
reason, and names fields that exist in the request. An answer holds finite numbers and adds up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from selector.v1 import error_details_pb2 as details_pb
from selector.v1.reasons import ERROR_DOMAIN, Reason
from tests.fuzz.faults import Fault

# What no request can be the cause of, while the server runs, its disk is sound and no token is asked for.
_NOT_BY_REQUEST = {
    Reason.INTERNAL,
    Reason.STARTING,
    Reason.DRAINING,
    Reason.STORAGE_FAILED,
    Reason.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED,
    Reason.OVERLOADED,
    Reason.STREAM_IDLE,
}
# Peers limit headers to 8 KiB by default.
_LARGEST_DETAILS = 8 * 1024
# What a trainer pushed comes back as it was, be it NaN.
_AS_PUSHED = {"selector.v1.RolloutGroup", "selector.v1.RunConfig"}
_PART = re.compile(r"([a-z][a-z0-9_]*)((?:\[\d*\])?)")


def refusal(
    code: grpc.StatusCode,
    message: str,
    details: bytes | None,
    requests: Sequence[Message] | None,
    may_expire: bool = False,
) -> str:
    """The reason of a refusal that is as documented.

    Args:
        details: the ``grpc-status-details-bin`` trailer.
        requests: the messages sent; None when what was sent is no message.
        may_expire: the deadline was short.

    Raises:
        Fault: it is not.
    """
    if details is None:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and may_expire:
            return "DEADLINE_EXCEEDED"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
            return "MESSAGE_TOO_LARGE"
        raise Fault(f"{code.name} without details", message)
    if len(details) > _LARGEST_DETAILS:
        raise Fault("details too large for a header", f"{len(details)} bytes: {message[:200]}")
    reason, bad_request, retry = _decoded(details)
    if reason in _NOT_BY_REQUEST:
        raise Fault(f"reason {reason.name}", message)
    if code.name != reason.code:
        raise Fault("wrong code", f"{code.name} with reason {reason.name}: {message}")
    if reason is Reason.DEADLINE_EXCEEDED and not may_expire:
        raise Fault("DEADLINE_EXCEEDED well before the deadline", message)
    if reason is Reason.QUOTA_EXCEEDED and not retry and "expected at most" not in message:
        raise Fault("QUOTA_EXCEEDED without RetryInfo", message)
    fields = [violation.field for violation in bad_request.field_violations]
    if reason.code == "INVALID_ARGUMENT" and not fields:
        raise Fault(f"{reason.name} names no field", message)
    for field in fields:
        if not (_exists(field, requests) if requests is not None else field):
            raise Fault(f"{reason.name} names a field that is not there", f"{field!r}: {message}")
    return reason.name


def answer(rpc: str, requests: Sequence[Message], answers: Sequence[Message]) -> None:
    """An answer holds finite numbers and adds up.

    Raises:
        Fault: it does not.
    """
    for message in answers:
        for path, value in _reals(message, ""):
            if not math.isfinite(value):
                raise Fault(f"{rpc} answered {value}", path)
    request: Any = requests[0] if requests else None
    first: Any = answers[0] if answers else None
    if rpc == "SelectBatch":
        _check_batch(request, first)
    if rpc == "PushRollouts":
        pushed: Any = requests
        sent = sum(len(message.groups) for message in pushed)
        counted = first.stored + first.uninformative + first.unchanged + first.outdated + len(first.refused)
        if counted != sent:
            raise Fault("a push does not add up", f"{counted} of {sent} groups")


def _check_batch(request: Any, batch: Any) -> None:
    count = len(batch.prompt_ids)
    for column in ("predicted_difficulties", "standard_errors", "probabilities", "arms", "rollouts"):
        if len(getattr(batch, column)) != count:
            raise Fault("columns of a batch are not parallel", column)
    if len(set(batch.prompt_ids)) != count:
        raise Fault("a batch holds a prompt twice", str(batch.prompt_ids))
    if set(batch.prompt_ids) & set(request.exclude_prompt_ids):
        raise Fault("a batch holds an excluded prompt", str(batch.prompt_ids))
    if not all(0 <= d <= 1 for d in batch.predicted_difficulties) or not all(0 < p <= 1 for p in batch.probabilities):
        raise Fault("difficulty or probability out of range", str(batch))
    whole = not request.HasField("shard") and request.batch_size
    if whole and count + batch.replay_groups + batch.shortfall != request.batch_size:
        raise Fault("a batch does not add up", str(batch))


def _decoded(details: bytes) -> tuple[Reason, Any, bool]:
    status = details_pb.StatusDetails.FromString(details)
    reason, retry, bad = None, False, details_pb.BadRequestDetail()
    for detail in status.details:
        name = detail.type_url.rpartition(".")[2]
        if name == "ErrorInfo":
            info = details_pb.ErrorInfoDetail.FromString(detail.value)
            if info.domain != ERROR_DOMAIN or info.reason not in Reason.__members__:
                raise Fault("unknown reason", f"{info.domain} {info.reason}")
            reason = Reason[info.reason]
        elif name == "BadRequest":
            bad = details_pb.BadRequestDetail.FromString(detail.value)
        elif name == "RetryInfo":
            retry = True
    if reason is None:
        raise Fault("an error without ErrorInfo", status.message)
    return reason, bad, retry


def _exists(path: str, requests: Sequence[Message]) -> bool:
    """Whether the path leads to a field of the request; messages of a stream count as one, their lists joined."""
    if not requests:
        return bool(path)
    current: list[Any] = list(requests)
    for part in path.split("."):
        found = _PART.fullmatch(part)
        descriptor = current[0].DESCRIPTOR if current and isinstance(current[0], Message) else None
        field = descriptor.fields_by_name.get(found[1]) if found and descriptor else None
        if field is None or found is None:
            return False
        index = found[2]
        if not field.is_repeated:
            if index:
                return field.type == FieldDescriptor.TYPE_BYTES and _within(index, field.name, current)
            current = [getattr(message, field.name) for message in current]
            continue
        elements = [element for message in current for element in getattr(message, field.name)]
        if not index:
            return path.endswith(part)
        if index == "[]":
            current = elements or [None]
            continue
        position = int(index[1:-1])
        if position >= len(elements):
            return False
        current = [elements[position]]
    return True


def _within(index: str, name: str, messages: Sequence[Any]) -> bool:
    """Whether a packed column, whose numbers take a byte at least, can have this entry."""
    return index != "[]" and int(index[1:-1]) < max((len(getattr(message, name)) for message in messages), default=0)


def _reals(message: Message, path: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            if field.message_type.full_name not in _AS_PUSHED:
                for inner in values:
                    if isinstance(inner, Message):
                        found += _reals(inner, f"{path}{field.name}.")
        elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            found += [(path + field.name, number) for number in values]
    return found


def details_of(trailing: Any) -> bytes | None:
    """The details trailer among trailing metadata."""
    for key, value in trailing or ():
        if key == "grpc-status-details-bin":
            return bytes(value)
    return None


def decodable(cls: Any, data: bytes) -> Message | None:
    """The message, or None for bytes that are none."""
    try:
        message: Message = cls.FromString(data)
    except DecodeError:
        return None
    return message
