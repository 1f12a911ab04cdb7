"""The judge of fuzzing is wrong neither way: it takes what the contract allows and nothing else."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from selector.errors import ServiceError, invalid
from selector.service.status import message_of, status_code, trailing_metadata
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason
from tests.fuzz import verdict
from tests.fuzz.faults import Fault

_REPORT = pb.ReportOutcomesRequest(outcomes=[pb.PromptOutcomes(prompt_id="a", outcomes=[0.5, 1.0])])
_PUSH = replay_pb.PushRolloutsRequest(groups=[replay_pb.RolloutGroup(loss_mask=b"\1\2")])


def _judged(error: ServiceError, *requests: Any, code: grpc.StatusCode | None = None) -> str:
    details = verdict.details_of(trailing_metadata(error))
    return verdict.refusal(code or status_code(error), message_of(error), details, requests)


@pytest.mark.parametrize(
    ("path", "requests"),
    [
        ("step", [_REPORT]),
        ("outcomes", [_REPORT]),
        ("outcomes[0].outcomes[1]", [_REPORT]),
        ("outcomes[1].prompt_id", [_REPORT, _REPORT]),
        ("groups[0].loss_mask[1]", [_PUSH]),
        ("groups[0].sampling.top_p", [_PUSH]),
    ],
)
def test_fields_that_exist_may_be_named(path: str, requests: list[Any]) -> None:
    assert _judged(invalid(path, "expected this; got that"), *requests) == "INVALID_FIELD"


@pytest.mark.parametrize(
    ("path", "requests"),
    [
        ("", [_REPORT]),
        ("request", [_REPORT]),
        ("steps", [_REPORT]),
        ("step[0]", [_REPORT]),
        ("outcomes[1].prompt_id", [_REPORT]),
        ("outcomes[0].outcomes[2]", [_REPORT]),
        ("outcomes[0].prompt_id.step", [_REPORT]),
        ("groups[0].loss_mask[2]", [_PUSH]),
        ("groups[0].prompt_id[0]", [_PUSH]),
    ],
)
def test_fields_that_do_not_exist_may_not(path: str, requests: list[Any]) -> None:
    with pytest.raises(Fault, match="not there"):
        _judged(invalid(path, "expected this; got that"), *requests)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServiceError(Reason.INTERNAL, "a defect"), None),
        (ServiceError(Reason.STORAGE_FAILED, "no request is the cause of this"), None),
        (ServiceError(Reason.RUN_NOT_FOUND, "no such run"), grpc.StatusCode.UNKNOWN),
        (ServiceError(Reason.INVALID_FIELD, "which?"), None),
        (ServiceError(Reason.QUOTA_EXCEEDED, "without RetryInfo"), None),
        (ServiceError(Reason.DEADLINE_EXCEEDED, "too early"), None),
    ],
)
def test_other_refusals_are_faults(error: ServiceError, code: grpc.StatusCode | None) -> None:
    with pytest.raises(Fault):
        _judged(error, _REPORT, code=code)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"prompt_ids": ["a", "a"]}, id="twice"),
        pytest.param({"predicted_difficulties": [0.5, float("nan")]}, id="no-number"),
        pytest.param({"predicted_difficulties": [0.5, 1.5]}, id="out-of-range"),
        pytest.param({"rollouts": [8]}, id="not-parallel"),
        pytest.param({"shortfall": 1}, id="does-not-add-up"),
        pytest.param({"prompt_ids": ["a", "x"]}, id="excluded"),
    ],
)
def test_answers_that_cannot_be_are_faults(changes: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "prompt_ids": ["a", "b"],
        "predicted_difficulties": [0.5, 1.0],
        "standard_errors": [0.1, 0.1],
        "probabilities": [1.0, 0.5],
        "arms": [1, 2],
        "rollouts": [8, 8],
    }
    request = pb.SelectBatchRequest(batch_size=2, exclude_prompt_ids=["x"])
    verdict.answer("SelectBatch", [request], [pb.SelectBatchResponse(**sound)])
    with pytest.raises(Fault):
        verdict.answer("SelectBatch", [request], [pb.SelectBatchResponse(**{**sound, **changes})])
