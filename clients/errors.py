"""Typed exceptions of the client, under one root.

Every failed call raises a ``SelectorError``. The child follows from the gRPC status code and, where there is one, also
inherits the standard exception of the same meaning, so ``except TimeoutError`` works without importing anything here:

======================  ===================================
``InvalidArgument``     ``ValueError``
``NotFound``            ``LookupError``
``DeadlineExceeded``    ``TimeoutError``
``Unavailable``         ``ConnectionError``
``PermissionDenied``    ``PermissionError``
======================  ===================================

``reason`` is a name of ``selector.v1.reasons.Reason``; it never changes between releases, while messages may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc
from google.protobuf.message import DecodeError

from selector.v1 import error_details_pb2

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class FieldViolation:
    """One field of the request that the service refused."""

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description


class SelectorError(Exception):
    """A call failed. Nothing was applied unless ``code`` is UNAVAILABLE or DEADLINE_EXCEEDED, which leave it open.

    Attributes:
        code: gRPC status code.
        reason: named reason (``selector.v1.reasons.Reason``), None if the error did not come from the service itself.
        message: the service's sentence.
        violations: fields that were refused, in the service's order.
        metadata: further facts by name, such as the limit that was hit.
        retry_after_s: seconds after which the service suggests trying again, None if it does not.
    """

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str | None = None,
        violations: Iterable[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.reason = reason
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        text = f"{self.code.name}: {self.message}" if self.reason is None else f"{self.reason}: {self.message}"
        # The message often tells the first of them already.
        untold = [str(violation) for violation in self.violations if str(violation) not in self.message]
        return f"{text} [{'; '.join(untold)}]" if untold else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between processes of a trainer; the default would lose the keyword arguments.
        keywords = {
            "code": self.code,
            "reason": self.reason,
            "violations": self.violations,
            "metadata": self.metadata,
            "retry_after_s": self.retry_after_s,
        }
        return _rebuild, (type(self), self.message, keywords)


class InvalidArgument(SelectorError, ValueError):
    """A field of the request is wrong; ``violations`` name it. Trying again cannot help."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(SelectorError, LookupError):
    """There is no such run or prompt."""

    default_code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(SelectorError):
    """The run exists with another config."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(SelectorError):
    """The run or the server is not set up for this call, such as log-probs of other sampling settings."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhausted(SelectorError):
    """A quota or the largest message size is exceeded; the limit is in the message."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unauthenticated(SelectorError):
    """The bearer token is missing or wrong."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(SelectorError, PermissionError):
    """The bearer token may not do this."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class DeadlineExceeded(SelectorError, TimeoutError):
    """The deadline passed before an answer came."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(SelectorError, ConnectionError):
    """The service cannot be reached or is shutting down, and stayed so for all attempts."""

    default_code = grpc.StatusCode.UNAVAILABLE


class Internal(SelectorError):
    """A defect of the service."""

    default_code = grpc.StatusCode.INTERNAL


class ClientClosed(SelectorError):
    """The client was closed before the call: make another one."""

    default_code = grpc.StatusCode.CANCELLED

    def __init__(self, message: str = "the client was closed; make a new one", **details: Any) -> None:
        super().__init__(message, **details)


class MalformedAnswer(SelectorError):
    """What came back is no answer to the call: another service, another version, or something on the way changed it.

    Whether the call was applied is open.
    """

    default_code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[grpc.StatusCode, type[SelectorError]] = {
    child.default_code: child
    for child in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        ResourceExhausted,
        Unauthenticated,
        PermissionDenied,
        DeadlineExceeded,
        Unavailable,
        Internal,
    )
}


def from_rpc_error(error: grpc.RpcError, plaintext: bool = False) -> SelectorError:
    """The typed exception of a failed call, of ``grpc`` or of ``grpc.aio``, over a channel with or without TLS.

    Details are read from ``grpc-status-details-bin`` (``google.rpc.Status``); unreadable or unknown ones are passed
    over, since a proxy between client and service may put its own there.
    """
    code: grpc.StatusCode = error.code()
    message = error.details() or code.name
    # How a service with TLS looks to whoever connects without; one that goes away in the middle of a call differs.
    if plaintext and code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in message and "closed" in message:
        message += " (does the service use TLS?)"
    # What answered is not TLS; a plaintext service speaks first, and so is taken for this.
    if code is grpc.StatusCode.UNAVAILABLE and "WRONG_VERSION_NUMBER" in message:
        message += " (the service seems to be without TLS, which the client was told to use)"
    reason: str | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_after_s: float | None = None
    for detail in _details(error):
        kind = detail.type_url.rpartition("/")[2]
        try:
            if kind == "google.rpc.BadRequest":
                bad_request = error_details_pb2.BadRequestDetail.FromString(detail.value)
                violations += [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
            elif kind == "google.rpc.ErrorInfo":
                info = error_details_pb2.ErrorInfoDetail.FromString(detail.value)
                reason, metadata = info.reason or None, dict(info.metadata)
            elif kind == "google.rpc.RetryInfo":
                delay = error_details_pb2.RetryInfoDetail.FromString(detail.value).retry_delay
                retry_after_s = delay.seconds + delay.nanos * 1e-9
        except DecodeError:
            continue
    return _BY_CODE.get(code, SelectorError)(
        message, code=code, reason=reason, violations=violations, metadata=metadata, retry_after_s=retry_after_s
    )


def _details(error: grpc.RpcError) -> list[Any]:
    trailing: Any = error.trailing_metadata()
    for key, value in trailing or ():
        if key == _DETAILS_KEY:
            try:
                return list(error_details_pb2.StatusDetails.FromString(value).details)
            except DecodeError:
                return []
    return []


def _rebuild(cls: type[SelectorError], message: str, keywords: dict[str, Any]) -> SelectorError:
    return cls(message, **keywords)
