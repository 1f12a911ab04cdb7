"""From domain errors to gRPC statuses with ``google.rpc`` details."""

from __future__ import annotations

import math

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from selector.errors import ServiceError
from selector.v1 import error_details_pb2 as details_pb
from selector.v1.reasons import ERROR_DOMAIN

_TYPE_URL = "type.googleapis.com/google.rpc."

# gRPC carries status messages and details in HTTP/2 headers, which peers limit to 8 KiB by default.
_LONGEST_MESSAGE = 2000
_LONGEST_DESCRIPTION = 200
_MOST_VIOLATIONS = 10


def status_code(error: ServiceError) -> grpc.StatusCode:
    """The code that the error's reason is sent with."""
    return grpc.StatusCode[error.reason.code]


def message_of(error: ServiceError) -> str:
    """The status message, short enough for a header."""
    text = error.message
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def trailing_metadata(error: ServiceError) -> tuple[tuple[str, bytes], ...]:
    """The ``grpc-status-details-bin`` trailer: BadRequest, ErrorInfo and RetryInfo."""
    details: list[Any] = []
    if error.violations:
        bad = details_pb.BadRequestDetail()
        for violation in error.violations[:_MOST_VIOLATIONS]:
            bad.field_violations.add(
                field=violation.field[:_LONGEST_DESCRIPTION],
                description=violation.description[:_LONGEST_DESCRIPTION],
            )
        details.append(_pack("BadRequest", bad))
    info = details_pb.ErrorInfoDetail(reason=error.reason.name, domain=ERROR_DOMAIN, metadata=error.metadata)
    details.append(_pack("ErrorInfo", info))
    if error.retry_after_s is not None:
        fraction, whole = math.modf(error.retry_after_s)
        delay = Duration(seconds=int(whole), nanos=int(fraction * 1e9))
        details.append(_pack("RetryInfo", details_pb.RetryInfoDetail(retry_delay=delay)))
    status = details_pb.StatusDetails(code=status_code(error).value[0], message=message_of(error), details=details)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def _pack(name: str, message: Message) -> Any:
    return Any(type_url=_TYPE_URL + name, value=message.SerializeToString())
