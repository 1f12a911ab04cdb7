"""Answers of the domain as messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from weakref import WeakKeyDictionary

from selector.explain import Explanation
from selector.history import OutcomeRecord, SelectionRecord, outcome_records, selection_records
from selector.requests import Batch
from selector.run import Run
from selector.v1 import selector_service_pb2 as pb


class BatchMessages:
    """Messages of batches, each kept for as long as its batch is."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Batch, pb.SelectBatchResponse] = WeakKeyDictionary()

    def of(self, batch: Batch) -> pb.SelectBatchResponse:
        """The message of a batch, which nobody changes."""
        message = self._made.get(batch)
        if message is None:
            message = self._made[batch] = batch_message(batch)
        return message


def batch_message(batch: Batch) -> pb.SelectBatchResponse:
    """A selected batch."""
    return pb.SelectBatchResponse(
        prompt_ids=batch.prompt_ids,
        predicted_difficulties=batch.difficulty.tolist(),
        standard_errors=batch.standard_error.tolist(),
        probabilities=batch.probability.tolist(),
        arms=batch.arm.tolist(),
        rollouts=batch.rollouts.tolist(),
        replay_groups=batch.replay_groups,
        shortfall=batch.shortfall,
        shortfall_reason=batch.shortfall_reason,  # type: ignore[arg-type]
        reference_due=batch.reference_due,
        estimate_step=batch.estimate_step,
        degraded=batch.degraded,
    )


def outcome_message(record: OutcomeRecord) -> pb.OutcomeRecord:
    """One reported group."""
    return pb.OutcomeRecord(
        step=record.step,
        purpose=record.purpose,  # type: ignore[arg-type]
        outcomes=record.outcomes.tolist(),
        difficulty=record.difficulty,
        informative=record.informative,
        predicted_difficulty=None if math.isnan(record.predicted_difficulty) else record.predicted_difficulty,
        arm=record.arm,  # type: ignore[arg-type]
    )


def selection_message(record: SelectionRecord) -> pb.SelectionRecord:
    """One selection of a prompt."""
    return pb.SelectionRecord(
        step=record.step,
        purpose=record.purpose,  # type: ignore[arg-type]
        round=record.round,
        arm=record.arm,  # type: ignore[arg-type]
        probability=record.probability,
        predicted_difficulty=record.predicted_difficulty,
        standard_error=record.standard_error,
    )


def outcome_frames(run: Run, rows: int) -> Iterator[pb.ExportRunResponse]:
    """The reported groups of a run, at most ``rows`` to a message."""
    found = outcome_records(run)
    while page := list(islice(found, rows)):
        yield pb.ExportRunResponse(
            outcomes=[
                pb.OutcomeRow(prompt_id=run.pool.prompt_ids[prompt], record=outcome_message(record))
                for prompt, record in page
            ]
        )


def selection_frames(run: Run, rows: int) -> Iterator[pb.ExportRunResponse]:
    """The selected prompts of a run, at most ``rows`` to a message."""
    found = selection_records(run)
    while page := list(islice(found, rows)):
        yield pb.ExportRunResponse(
            selections=[
                pb.SelectionRow(prompt_id=run.pool.prompt_ids[prompt], record=selection_message(record))
                for prompt, record in page
            ]
        )


def explanation_message(found: Explanation) -> pb.ExplainPromptResponse:
    """One prompt, explained."""
    return pb.ExplainPromptResponse(
        prompt_id=found.prompt_id,
        status=found.status,  # type: ignore[arg-type]
        status_reason=found.status_reason,
        predicted_difficulty=found.predicted_difficulty,
        standard_error=found.standard_error,
        basis=found.basis,  # type: ignore[arg-type]
        own_weight=found.own_weight,
        references=[
            pb.ReferenceWeight(prompt_id=prompt_id, weight=weight, difficulty=difficulty)
            for prompt_id, weight, difficulty in found.references
        ],
        outcomes=[outcome_message(record) for record in found.outcomes],
        selections=[selection_message(record) for record in found.selections],
        not_selected_because=found.not_selected_because,
        score_rank=found.score_rank,
        domain=found.domain,
        text=found.text,
        twin_prompt_ids=found.twin_prompt_ids,
    )
