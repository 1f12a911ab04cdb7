"""From a request to a report: what its outcomes count for, and what is said about them."""

from __future__ import annotations

import dataclasses

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE, RunConfig
from selector.errors import FieldViolation, invalid_fields
from selector.events import ReportEvent, ReportFacts
from selector.outcomes import MappedOutcomes, map_outcomes
from selector.requests import ReportRequest, ReportResult
from selector.state import RunState
from selector.v1.reasons import Reason


def new_report(
    config: RunConfig, state: RunState, request: ReportRequest, prompts: np.ndarray
) -> tuple[ReportEvent, ReportResult]:
    """Work a report out; nothing changes.

    Args:
        prompts: (n,) int64, indices of the reported prompts.

    Raises:
        ServiceError: INVALID_OUTCOME.
    """
    mapped = _mapped(config, request)
    belonging = state.open.belonging(prompts.tolist(), request.purpose, request.step)
    facts = ReportFacts(sum(m.skipped for m in mapped), sum(m.dropped for m in mapped), sum(m.clipped for m in mapped))
    event = ReportEvent(
        seq=state.next_seq,
        step=request.step,
        purpose=request.purpose,
        prompt=prompts.astype(np.int32),
        count=np.array([len(m.outcomes) for m in mapped], dtype=np.int32),
        outcomes=np.concatenate([np.zeros(0), *(m.outcomes for m in mapped)]),
        predicted=np.array([selection.difficulty for selection in belonging]),
        population=np.array([selection.population for selection in belonging]),
        arm=np.array([selection.arm for selection in belonging], dtype=np.uint8),
        facts=facts,
    )
    empty = sum(len(m.outcomes) == 0 for m in mapped)
    informative = sum(len(m.outcomes) > 0 and np.ptp(m.outcomes) > INFORMATIVE_TOLERANCE for m in mapped)
    result = ReportResult(
        applied_groups=len(mapped) - empty,
        informative_groups=int(informative),
        empty_groups=empty,
        skipped_rollouts=facts.skipped_rollouts,
        dropped_rollouts=facts.dropped_rollouts,
        clipped_outcomes=facts.clipped_outcomes,
    )
    return event, result


def _mapped(config: RunConfig, request: ReportRequest) -> list[MappedOutcomes]:
    mapped: list[MappedOutcomes] = []
    violations: list[FieldViolation] = []
    for i, prompt in enumerate(request.prompts):
        found = map_outcomes(config, prompt.outcomes, prompt.statuses, f"outcomes[{i}].outcomes")
        if isinstance(found, MappedOutcomes):
            mapped.append(found)
        else:
            description = f"{found.description} (prompt {prompt.prompt_id!r})"
            violations.append(dataclasses.replace(found, description=description))
    if violations:
        raise invalid_fields(violations, Reason.INVALID_OUTCOME)
    return mapped
