"""The dataclasses of the client against the protocol's messages."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from clients import results
from clients.decoding import decode
from selector.v1 import replay_service_pb2, run_pb2, selector_service_pb2

PAIRS = [
    (results.Selection, selector_service_pb2.SelectBatchResponse),
    (results.RunInfo, run_pb2.Run),
    (results.PoolCounts, run_pb2.PoolCounts),
    (results.RunCreated, selector_service_pb2.CreateRunResponse),
    (results.Rewound, selector_service_pb2.RewindRunResponse),
    (results.Registered, selector_service_pb2.RegisterPromptsResponse),
    (results.PriorsImported, selector_service_pb2.ImportPriorsResponse),
    (results.Retired, selector_service_pb2.RetirePromptsResponse),
    (results.OutcomesReported, selector_service_pb2.ReportOutcomesResponse),
    (results.RefusedGroup, replay_service_pb2.RefusedGroup),
    (results.Pushed, replay_service_pb2.PushRolloutsResponse),
    (results.OutcomeRecord, selector_service_pb2.OutcomeRecord),
    (results.SelectionRecord, selector_service_pb2.SelectionRecord),
    (results.ReferenceWeight, selector_service_pb2.ReferenceWeight),
    (results.Explanation, selector_service_pb2.ExplainPromptResponse),
    (results.ArmQuality, selector_service_pb2.ArmQuality),
    (results.Quality, selector_service_pb2.GetSelectionQualityResponse),
    (results.OutcomeRow, selector_service_pb2.OutcomeRow),
    (results.SelectionRow, selector_service_pb2.SelectionRow),
]


# How a call was carried out is not its result.
_OF_THE_CLIENT = {"from_memory"}


@pytest.mark.parametrize(("cls", "message"), PAIRS)
def test_every_field_of_the_message_is_read(cls: Any, message: Any) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    assert fields == [name for name in message.DESCRIPTOR.fields_by_name if name not in _OF_THE_CLIENT]
    empty = decode(cls, message())
    assert all(hasattr(empty, name) for name in fields)


def test_the_pages_of_a_prediction_are_the_only_thing_left_out() -> None:
    fields = {field.name for field in dataclasses.fields(results.Predictions)}
    message = selector_service_pb2.PredictDifficultyResponse
    assert set(message.DESCRIPTOR.fields_by_name) - fields == {"next_page_token"}


def test_absent_figures_are_none_and_zero_is_zero() -> None:
    message = selector_service_pb2.GetSelectionQualityResponse(pearson=0.0, window_groups=3)
    message.arms.add(arm="ARM_UNIFORM", groups=2, informative_ratio=0.5)
    quality = decode(results.Quality, message)
    assert (quality.pearson, quality.brier, quality.window_groups, quality.coverage) == (0.0, None, 3, 0.0)
    assert quality.arms == (results.ArmQuality("UNIFORM", 2, 0, 0.5, None, 0.0, None, False),)


def test_an_explanation_holds_its_history() -> None:
    message = selector_service_pb2.ExplainPromptResponse(prompt_id="a", status="PROMPT_STATUS_RETIRED")
    message.outcomes.add(step=2, purpose="PURPOSE_REFERENCE", outcomes=[1, 0.5], arm="ARM_TARGETED")
    message.selections.add(step=2, arm="ARM_REVIEW", probability=0.5)
    message.references.add(prompt_id="b", weight=0.75, difficulty=0.5)
    explanation = decode(results.Explanation, message)
    assert (explanation.status, explanation.basis) == ("RETIRED", None)
    (outcome,) = explanation.outcomes
    assert (outcome.step, outcome.purpose, outcome.arm) == (2, "REFERENCE", "TARGETED")
    np.testing.assert_array_equal(outcome.outcomes, [1.0, 0.5])
    assert explanation.selections[0].arm == "REVIEW"
    assert explanation.references == (results.ReferenceWeight("b", 0.75, 0.5),)


def test_a_run_keeps_its_config_as_the_message() -> None:
    run = run_pb2.Run(run_id="r", state="RUN_STATE_READY", config=run_pb2.RunConfig(group_size=4))
    info = decode(results.RunInfo, run)
    assert (info.run_id, info.state, info.config.group_size) == ("r", "READY", 4)
    assert info.pool.active == 0


def test_a_value_newer_than_the_client_is_its_number() -> None:
    message = selector_service_pb2.SelectBatchResponse(arms=[1, 77], shortfall_reason=78)  # type: ignore[list-item, arg-type]
    selection = decode(results.Selection, message)
    assert (selection.arms, selection.shortfall_reason) == (("TARGETED", "77"), "78")


def test_a_run_is_shown_in_a_line() -> None:
    message = selector_service_pb2.CreateRunResponse(created=True, warnings=["mind"])
    message.run.run_id, message.run.pool.active = "r", 12
    message.run.config.group_size = 8
    created = decode(results.RunCreated, message)
    assert repr(created) == (
        "RunCreated(run=RunInfo(run_id='r', state=None, active_prompts=12, last_step=0, outcome_groups=0, "
        "replay_groups=0, …), created=True, warnings=('mind',))"
    )
    assert created.run.config.group_size == 8
