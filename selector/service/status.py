"""From domain errors to gRPC statuses with ``google.rpc`` details."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from selector.errors import ServiceError
from selector.v1 import error_details_pb2 as details_pb
from selector.v1.reasons import ERROR_DOMAIN

_TYPE_URL = "type.googleapis.com/google.rpc."

# gRPC carries the message percent-encoded and the details base64-encoded in HTTP/2 headers, which peers limit to 8 KiB
# by default. A message that may be sent twice (as it is, and in the details) and ten violations stay below that.
_LONGEST_MESSAGE_ENCODED = 1500
_LONGEST_FIELD_BYTES = 100
_LONGEST_DESCRIPTION_BYTES = 150
_MOST_VIOLATIONS = 10
# An id, the longest of what is told by name.
_LONGEST_VALUE_BYTES = 256
_CUT = "…"


def status_code(error: ServiceError) -> grpc.StatusCode:
    """The code that the error's reason is sent with."""
    return grpc.StatusCode[error.reason.code]


def message_of(error: ServiceError) -> str:
    """The status message, short enough for a header."""
    return _shortened(error.message, _LONGEST_MESSAGE_ENCODED, _percent_encoded_size)


def trailing_metadata(error: ServiceError) -> tuple[tuple[str, bytes], ...]:
    """The ``grpc-status-details-bin`` trailer: BadRequest, ErrorInfo and RetryInfo."""
    details: list[Any] = []
    if error.violations:
        bad = details_pb.BadRequestDetail()
        for violation in error.violations[:_MOST_VIOLATIONS]:
            bad.field_violations.add(
                field=_shortened(violation.field, _LONGEST_FIELD_BYTES, _utf8_size),
                description=_shortened(violation.description, _LONGEST_DESCRIPTION_BYTES, _utf8_size),
            )
        details.append(_pack("BadRequest", bad))
    metadata = {key: _shortened(value, _LONGEST_VALUE_BYTES, _utf8_size) for key, value in error.metadata.items()}
    info = details_pb.ErrorInfoDetail(reason=error.reason.name, domain=ERROR_DOMAIN, metadata=metadata)
    details.append(_pack("ErrorInfo", info))
    if error.retry_after_s is not None:
        fraction, whole = math.modf(error.retry_after_s)
        delay = Duration(seconds=int(whole), nanos=int(fraction * 1e9))
        details.append(_pack("RetryInfo", details_pb.RetryInfoDetail(retry_delay=delay)))
    status = details_pb.StatusDetails(code=status_code(error).value[0], message=message_of(error), details=details)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def _shortened(text: str, limit: int, size: Callable[[str], int]) -> str:
    """The text, or as much of its beginning as fits with an ellipsis."""
    # A character takes a byte at least, so more of them need not be looked at.
    sizes = list(accumulate((size(character) for character in text[: limit + 1]), initial=0))
    if sizes[-1] <= limit:
        return text
    return text[: bisect_right(sizes, limit - size(_CUT)) - 1] + _CUT


def _utf8_size(character: str) -> int:
    return len(character.encode())


def _percent_encoded_size(character: str) -> int:
    """Printable ASCII but for the percent sign is sent as it is, any other byte as three characters."""
    return 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())


def _pack(name: str, message: Message) -> Any:
    return Any(type_url=_TYPE_URL + name, value=message.SerializeToString())
