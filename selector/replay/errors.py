"""Errors of rollout replay, each under one named reason."""

from __future__ import annotations

from selector.errors import FieldViolation, ServiceError
from selector.v1.reasons import Reason


class GroupRefused(ServiceError):
    """A pushed group that cannot be stored.

    Attributes:
        field: path within the group, such as ``behavior_log_probs``.
        description: expected and got.
        index: position of the group in the push; -1 when the group was looked at on its own.
    """

    def __init__(self, reason: Reason, field: str, description: str, index: int = -1) -> None:
        path = ".".join(part for part in (f"groups[{index}]" if index >= 0 else "", field) if part)
        super().__init__(reason, f"{path}: {description}", violations=[FieldViolation(path, description)])
        self.field = field
        self.description = description
        self.index = index


class StorageFailed(ServiceError):
    """The state directory could not be written: disk or map full, or an I/O error. Nothing was applied."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.STORAGE_FAILED, message, retry_after_s=1.0)


class PayloadCorrupt(ServiceError):
    """A stored payload is not what was acknowledged."""

    def __init__(self, prompt_id: str, group_id: str, description: str) -> None:
        super().__init__(
            Reason.INTERNAL,
            f"payload of group {group_id!r} of prompt {prompt_id!r} is corrupt: {description}",
            metadata={"prompt_id": prompt_id, "group_id": group_id},
        )


class RewindBeyondHistory(ServiceError):
    """Groups that the answer needs left the buffer so long ago that they were deleted."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.REWIND_BEYOND_HISTORY, message)


class SampleDiffers(ServiceError):
    """The step's sample was answered before, for other arguments."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.SELECTION_DIFFERS, message, violations=[FieldViolation("step", message)])


class RequestIdReused(ServiceError):
    """The request id was used before with other content."""

    def __init__(self, request_id: str) -> None:
        message = f"request_id {request_id!r} was used before with other content"
        super().__init__(Reason.REQUEST_ID_REUSED, message, violations=[FieldViolation("request_id", message)])
