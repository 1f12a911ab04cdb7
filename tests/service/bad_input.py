"""Requests that must be refused: what a case is, a filled run to try it on, and what has to hold afterwards.

A refused call answers the right code, a named reason, the path of the field that is wrong and a message that says what
was expected and what came; everything stored is as it was, and the service goes on serving.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from clients import SelectorError
from clients.errors import from_rpc_error
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import ERROR_DOMAIN, Reason
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub
from tests.service.running import InProcessService

RUN = "filled"
PROMPTS = tuple(f"p{i}" for i in range(12))
WIDTH = 4
STEPS = 3

SERVICES = (
    (pb.DESCRIPTOR.services_by_name["SelectorService"], pb),
    (replay_pb.DESCRIPTOR.services_by_name["ReplayService"], replay_pb),
)
METHODS: dict[str, tuple[Any, Any]] = {
    method.name: (method, module) for service, module in SERVICES for method in service.methods
}


@dataclass(frozen=True)
class Case:
    """A request that must be refused.

    Attributes:
        name: readable, unique within its RPC.
        rpc: name of the method.
        request: the message, or the messages of a client stream.
        field: path that BadRequest must name; empty = the error is not about one field.
        reason: the named reason, which fixes the code.
        says: parts that the message must hold; by default "expected …; got …".
        covers: a field of the request type that the case is about where ``field`` does not name it.
    """

    name: str
    rpc: str
    request: Message | Sequence[Message]
    field: str = ""
    reason: Reason = Reason.INVALID_FIELD
    says: tuple[str, ...] = ()
    covers: str = ""

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.rpc}-{self.name}"

    def path(self) -> tuple[str, ...]:
        """The field that the case is about, as names from the request message down."""
        field = self.field or self.covers
        return tuple(re.sub(r"\[\d*]", "", field).split(".")) if field else ()


class Stubs:
    """Raw stubs of a service, by method name.

    Attributes:
        seen: ``everything`` after the latest refused call.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)])
        self.seen: list[bytes] = []
        self._stubs = (SelectorServiceStub(self._channel), ReplayServiceStub(self._channel))

    def call(self, rpc: str, request: Any, timeout_s: float | None = 20.0, **options: Any) -> Any:
        """One call; a request stream from a sequence, a response stream as a list."""
        method, _ = METHODS[rpc]
        stub = next(getattr(stub, rpc) for stub in self._stubs if hasattr(stub, rpc))
        if method.client_streaming:
            request = iter([request] if isinstance(request, Message) else request)
        answer = stub(request, timeout=timeout_s, **options)
        return list(answer) if method.server_streaming else answer

    def close(self) -> None:
        self._channel.close()


@dataclass(frozen=True)
class Refusal:
    """A refused call, as a standard gRPC client and our own read it."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    violations: list[tuple[str, str]]
    retry_after_s: float | None
    exception: SelectorError


def refusal_of(call: Callable[[], Any]) -> Refusal:
    """How a call is refused, decoded with grpcio-status and googleapis' own types."""
    try:
        call()
    except grpc.RpcError as error:
        rpc_error: Any = error
    else:
        raise AssertionError("the call was not refused")
    status = rpc_status.from_call(rpc_error)
    assert status is not None, rpc_error
    found: dict[str, Any] = {}
    for detail in status.details:
        for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
            if detail.Is(kind.DESCRIPTOR):
                message = kind()
                assert detail.Unpack(message)
                found[kind.DESCRIPTOR.name] = message
    assert len(found) == len(status.details), "a detail is of no standard type, or there twice"
    assert status.code == rpc_error.code().value[0]
    assert status.message == rpc_error.details()
    info, bad, retry = (found.get(name) for name in ("ErrorInfo", "BadRequest", "RetryInfo"))
    assert info is not None and info.domain == ERROR_DOMAIN
    return Refusal(
        code=rpc_error.code(),
        message=status.message,
        reason=info.reason,
        metadata=dict(info.metadata),
        violations=[(v.field, v.description) for v in bad.field_violations] if bad is not None else [],
        retry_after_s=None if retry is None else retry.retry_delay.ToTimedelta().total_seconds(),
        exception=from_rpc_error(rpc_error),
    )


def check_refused(stubs: Stubs, case: Case, timeout_s: float | None = 20.0) -> Refusal:
    """The case is refused as it says, and nothing has changed."""
    before = stubs.seen or everything(stubs)
    refusal = refusal_of(lambda: stubs.call(case.rpc, case.request, timeout_s))
    assert refusal.reason == case.reason.name, refusal
    assert refusal.code is grpc.StatusCode[case.reason.code], refusal
    if case.field:
        assert case.field in [field for field, _ in refusal.violations], refusal
        assert all(description for _, description in refusal.violations)
    if case.says:
        assert [part for part in case.says if part not in refusal.message] == [], refusal.message
    else:
        assert re.search(r"expected .+; got .+", refusal.message), refusal.message
    ours = refusal.exception
    assert (ours.code, ours.reason, ours.message) == (refusal.code, refusal.reason, refusal.message)
    assert [(v.field, v.description) for v in ours.violations] == refusal.violations
    assert (ours.metadata, ours.retry_after_s) == (refusal.metadata, refusal.retry_after_s)
    # The next case's "before", which spares it half of its calls.
    stubs.seen = everything(stubs)
    assert stubs.seen == before, "a refused call has changed something"
    return refusal


def everything(stubs: Stubs) -> list[bytes]:
    """What the service shows of its runs: also a call after the refused one, so it is still serving."""
    requests: list[tuple[str, Message]] = [
        ("ListRuns", pb.ListRunsRequest()),
        ("PredictDifficulty", pb.PredictDifficultyRequest(run_id=RUN)),
        ("GetSelectionQuality", pb.GetSelectionQualityRequest(run_id=RUN)),
    ]
    return [stubs.call(rpc, request).SerializeToString(deterministic=True) for rpc, request in requests]


def log_probs(*values: float) -> bytes:
    """As they are sent."""
    return np.array(values, dtype="<f4").tobytes()


def token_ids(*values: int) -> bytes:
    """As they are sent."""
    return np.array(values, dtype="<i4").tobytes()


SAMPLING = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "log_prob_mode": 2}


def group(**changes: Any) -> replay_pb.RolloutGroup:
    """A sound group of two rollouts with two and one response tokens, unless changed; None leaves a field out."""
    fields: dict[str, Any] = {
        "prompt_id": "p0",
        "policy_version": STEPS,
        "sampling": SAMPLING,
        "lengths": [2, 1],
        "rewards": [0.5, -1.0],
        "outcomes": [0.0, 1.0],
        "prompt_token_ids": token_ids(7, 8),
        "response_token_ids": token_ids(1, 2, 3),
        "behavior_log_probs": log_probs(-0.5, -0.25, -1.0),
        **changes,
    }
    return replay_pb.RolloutGroup(**{name: value for name, value in fields.items() if value is not None})


def push(*groups: replay_pb.RolloutGroup, **head: Any) -> list[replay_pb.PushRolloutsRequest]:
    """A stream of one message."""
    return [replay_pb.PushRolloutsRequest(**{"run_id": RUN, "step": STEPS, "groups": groups, **head})]


def embedding(seed: int, width: int = WIDTH) -> bytes:
    """A ready embedding."""
    return np.random.default_rng(seed).normal(size=width).astype("<f4").tobytes()


def filled(service: InProcessService) -> Iterator[Stubs]:
    """Stubs of a service whose run has prompts, selections, outcomes, training reports and replay groups."""
    stubs = Stubs(service.address)
    config = {
        "group_size": 2,
        "outcome_range": [-1.0, 1.0],
        "sampling": SAMPLING,
        "replay": {"capacity_bytes": 4096},
        "lease_steps": 2,
    }
    stubs.call("CreateRun", pb.CreateRunRequest(run_id=RUN, config=config))
    prompts = [
        pb.Prompt(prompt_id=name, text=f"what is {i} + {i}?", embedding=embedding(i), domain=f"d{i % 2}")
        for i, name in enumerate(PROMPTS)
    ]
    stubs.call("RegisterPrompts", pb.RegisterPromptsRequest(run_id=RUN, prompts=prompts, request_id="register-1"))
    stubs.call("RetirePrompts", pb.RetirePromptsRequest(run_id=RUN, prompt_ids=["p11"], request_id="retire-1"))
    for step in range(STEPS):
        select = pb.SelectBatchRequest(
            run_id=RUN, step=step, batch_size=4, fresh_only=True, request_id=f"select-{step}"
        )
        batch = stubs.call("SelectBatch", select)
        report = pb.ReportOutcomesRequest(
            run_id=RUN,
            step=step,
            request_id=f"report-{step}",
            outcomes=[pb.PromptOutcomes(prompt_id=p, outcomes=[-1.0, 1.0, 0.5]) for p in batch.prompt_ids],
        )
        stubs.call("ReportOutcomes", report)
        training = pb.ReportTrainingRequest(run_id=RUN, step=step, request_id=f"train-{step}", clip_fraction=0.1)
        stubs.call("ReportTraining", training)
        groups = [group(prompt_id=p, policy_version=step) for p in batch.prompt_ids]
        stubs.call("PushRollouts", push(*groups, step=step, request_id=f"push-{step}"))
    sample = replay_pb.SampleRolloutsRequest(run_id=RUN, step=STEPS - 1, count=2)
    assert len(stubs.call("SampleRollouts", sample)[-1].groups) == 2
    yield stubs
    stubs.close()
