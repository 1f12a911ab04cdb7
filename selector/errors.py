"""Errors of the domain: what is wrong, in which field, and under which named reason.

Domain modules raise these; the service layer turns them into gRPC statuses with ``google.rpc`` details. Nothing here
knows about gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.v1.reasons import Reason


@dataclass(frozen=True)
class FieldViolation:
    """One field that is wrong.

    Attributes:
        field: path within the request, such as ``config.replay.fresh_fraction`` or ``outcomes[3].outcomes[1]``.
        description: expected and got.
    """

    field: str
    description: str


class ServiceError(Exception):
    """A request that cannot be answered.

    Attributes:
        reason: the named reason; it fixes the status code.
        message: one sentence for a person.
        violations: the fields that are wrong, if any.
        metadata: machine-readable facts, such as a limit.
        retry_after_s: seconds after which trying again may help, if it may.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s


def invalid(field: str, description: str, reason: Reason = Reason.INVALID_FIELD) -> ServiceError:
    """An error about one field; the message names it."""
    return ServiceError(reason, f"{field}: {description}", violations=[FieldViolation(field, description)])


def invalid_fields(violations: Sequence[FieldViolation], reason: Reason = Reason.INVALID_FIELD) -> ServiceError:
    """An error about several fields; the message names the first ten and says how many there are."""
    shown = "; ".join(f"{v.field}: {v.description}" for v in violations[:10])
    more = f" (and {len(violations) - 10} more)" if len(violations) > 10 else ""
    return ServiceError(reason, shown + more, violations=violations[:100])
