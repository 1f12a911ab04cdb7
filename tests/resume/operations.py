"""One call of a trainer, and what it was answered, in a form that can be compared byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from selector.v1 import replay_service_pb2 as replay_pb

# Of these RPCs every operation belongs to a step, which a rewind to that step or an earlier one takes back; of the
# last one where it says so.
STEPPED = frozenset({"SelectBatch", "ReportOutcomes", "ReportTraining", "PushRollouts", "SampleRollouts"})
_PERHAPS_STEPPED = "ImportPriors"


@dataclass(frozen=True)
class Operation:
    """A call: the name of the RPC and its message, or those of a request stream."""

    rpc: str
    messages: tuple[Any, ...]

    @property
    def request(self) -> Any:
        """The message, or the first one of a stream, which says what the stream is about."""
        return self.messages[0]

    @property
    def step(self) -> int | None:
        """The step it belongs to; None = to none, so that a rewind leaves it."""
        stepped = self.rpc in STEPPED or (self.rpc == _PERHAPS_STEPPED and self.request.HasField("step"))
        return int(self.request.step) if stepped else None

    @property
    def request_id(self) -> str:
        """Empty = none."""
        return str(self.request.request_id)

    def changed(self, **fields: Any) -> Operation:
        """The same call with other fields of its first message."""
        request = type(self.request)()
        request.CopyFrom(self.request)
        for name, value in fields.items():
            setattr(request, name, value)
        return Operation(self.rpc, (request, *self.messages[1:]))


@dataclass(frozen=True)
class Answer:
    """What a call was answered.

    Attributes:
        reason: the named reason of a refusal; empty = it was answered.
        content: the answer's bytes, but for what must differ: names and times of runs.
        message: the answer itself.
    """

    reason: str
    content: bytes = b""
    message: Any = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"refused: {self.reason}" if self.reason else f"{type(self.message).__name__}({self.message})"


def answered(message: Message) -> Answer:
    """An answer of one message."""
    run = getattr(message, "run", None)
    if run is not None:
        shown = type(message)()
        shown.CopyFrom(message)
        for name in ("run_id", "created_unix_seconds", "forked_from", "forked_at_step"):
            shown.run.ClearField(name)  # type: ignore[attr-defined]
        message = shown
    return Answer("", message.SerializeToString(deterministic=True), message)


def answered_stream(rpc: str, messages: list[Any]) -> Answer:
    """An answer of several messages, however they were cut."""
    whole = type(messages[0])() if messages else replay_pb.SampleRolloutsResponse()
    for message in messages:
        whole.MergeFrom(message)
    return answered(whole)
