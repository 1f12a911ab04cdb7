"""Typed errors, decoded from what Google's own libraries encode."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

import clients
from clients import FieldViolation, SelectorError
from clients.errors import from_rpc_error
from selector.v1.reasons import Reason


class FailedCall(grpc.RpcError):
    """A failed call as a client sees it."""

    def __init__(self, code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, Any]] | None) -> None:
        super().__init__()
        self._answer = (code, details, trailing)

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str | None:
        return self._answer[1]

    def trailing_metadata(self) -> Any:
        return self._answer[2]


def failed(code: grpc.StatusCode, message: str, *details: Any) -> FailedCall:
    """Encoded by grpcio-status and googleapis-common-protos."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
    return FailedCall(status.code, status.details, status.trailing_metadata)


BAD_REQUEST = error_details_pb2.BadRequest(
    field_violations=[
        {"field": "config.group_size", "description": "expected in [1, 4096], got 0"},
        {"field": "config.seed", "description": "got -1"},
    ]
)
INFO = error_details_pb2.ErrorInfo(reason="INVALID_FIELD", domain="selector.v1", metadata={"limit": "4096"})
RETRY = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=250_000_000))


def test_all_details_of_googles_own_encoding() -> None:
    error = from_rpc_error(failed(grpc.StatusCode.INVALID_ARGUMENT, "bad config", RETRY, BAD_REQUEST, INFO))
    assert type(error) is clients.InvalidArgument
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message == "bad config"
    assert error.reason == "INVALID_FIELD"
    assert error.metadata == {"limit": "4096"}
    assert error.retry_after_s == 1.25
    assert error.violations == (
        FieldViolation("config.group_size", "expected in [1, 4096], got 0"),
        FieldViolation("config.seed", "got -1"),
    )
    assert str(error) == (
        "INVALID_FIELD: bad config [config.group_size: expected in [1, 4096], got 0; config.seed: got -1]"
    )


def test_violations_that_the_message_tells_are_shown_once() -> None:
    error = SelectorError("a.b: too long; nothing was stored", violations=[FieldViolation("a.b", "too long")])
    assert str(error).count("too long") == 1
    assert error.violations


@pytest.mark.parametrize(
    ("code", "kind", "standard"),
    [
        ("INVALID_ARGUMENT", clients.InvalidArgument, ValueError),
        ("NOT_FOUND", clients.NotFound, LookupError),
        ("ALREADY_EXISTS", clients.AlreadyExists, SelectorError),
        ("FAILED_PRECONDITION", clients.FailedPrecondition, SelectorError),
        ("RESOURCE_EXHAUSTED", clients.ResourceExhausted, SelectorError),
        ("UNAUTHENTICATED", clients.Unauthenticated, SelectorError),
        ("PERMISSION_DENIED", clients.PermissionDenied, PermissionError),
        ("DEADLINE_EXCEEDED", clients.DeadlineExceeded, TimeoutError),
        ("UNAVAILABLE", clients.Unavailable, ConnectionError),
        ("INTERNAL", clients.Internal, SelectorError),
        ("ABORTED", SelectorError, Exception),
    ],
)
def test_every_code_has_its_type_under_one_root(code: str, kind: type[Exception], standard: type[Exception]) -> None:
    error = from_rpc_error(failed(grpc.StatusCode[code], "no", INFO))
    assert type(error) is kind
    assert isinstance(error, SelectorError) and isinstance(error, standard)
    assert error.code is grpc.StatusCode[code]
    assert str(error) == "INVALID_FIELD: no"


def test_every_reason_of_the_table_has_a_typed_error() -> None:
    for reason in Reason:
        error = from_rpc_error(failed(grpc.StatusCode[reason.code], reason.meaning))
        assert type(error) is not SelectorError, reason


def test_errors_without_details_show_their_code() -> None:
    error = from_rpc_error(FailedCall(grpc.StatusCode.UNAVAILABLE, None, None))
    assert (error.reason, error.violations, error.metadata, error.retry_after_s) == (None, (), {}, None)
    assert str(error) == "UNAVAILABLE: UNAVAILABLE"


def test_unreadable_and_foreign_details_are_passed_over() -> None:
    broken = FailedCall(grpc.StatusCode.NOT_FOUND, "gone", [("x", "y"), ("grpc-status-details-bin", b"\xff\xff\xff")])
    assert str(from_rpc_error(broken)) == "NOT_FOUND: gone"
    status = status_pb2.Status(code=code_pb2.NOT_FOUND, message="gone")
    status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff\xff")
    status.details.add().Pack(error_details_pb2.Help())
    status.details.add().Pack(INFO)
    trailing = [("grpc-status-details-bin", status.SerializeToString())]
    assert from_rpc_error(FailedCall(grpc.StatusCode.NOT_FOUND, "gone", trailing)).reason == "INVALID_FIELD"


def test_errors_travel_between_processes() -> None:
    for kind in (clients.InvalidArgument, clients.Unavailable, SelectorError):
        error = kind("no", reason="X", violations=[FieldViolation("a", "b")], metadata={"k": "v"}, retry_after_s=0.5)
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert (str(back), vars(back)) == (str(error), vars(error))
