"""From a request to a report: what its outcomes count for, and what is said about them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE, RunConfig
from selector.errors import FieldViolation, invalid_fields
from selector.events import ReportEvent, ReportFacts
from selector.outcomes import ABORTED, UNSCORABLE, MappedOutcomes, map_outcomes
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
    facts = ReportFacts(mapped.skipped, mapped.dropped, mapped.clipped)
    event = ReportEvent(
        seq=state.next_seq,
        step=request.step,
        purpose=request.purpose,
        prompt=prompts.astype(np.int32),
        count=mapped.count,
        outcomes=mapped.outcomes,
        predicted=np.array([selection.difficulty for selection in belonging]),
        population=np.array([selection.population for selection in belonging]),
        arm=np.array([selection.arm for selection in belonging], dtype=np.uint8),
        facts=facts,
    )
    counted = mapped.count > 0
    informative = 0
    if counted.any():
        starts = event.starts()[:-1][counted]
        spread = np.maximum.reduceat(mapped.outcomes, starts) - np.minimum.reduceat(mapped.outcomes, starts)
        informative = int(np.count_nonzero(spread > INFORMATIVE_TOLERANCE))
    applied = int(np.count_nonzero(counted))
    result = ReportResult(
        applied_groups=applied,
        informative_groups=informative,
        empty_groups=len(counted) - applied,
        skipped_rollouts=facts.skipped_rollouts,
        dropped_rollouts=facts.dropped_rollouts,
        clipped_outcomes=facts.clipped_outcomes,
    )
    return event, result


@dataclass(frozen=True)
class _Mapped:
    """Outcomes that count, (sum of count,) in [0, 1]; (M,) int32 how many of each prompt; and what was left out."""

    outcomes: np.ndarray
    count: np.ndarray
    skipped: int
    dropped: int
    clipped: int


def _mapped(config: RunConfig, request: ReportRequest) -> _Mapped:
    """Where nothing is left out or refused, which is nearly always, all prompts together."""
    low, high = config.outcome_range
    raw, statuses = request.outcomes, request.statuses
    if raw.min() >= low and raw.max() <= high and not ((statuses == ABORTED) | (statuses == UNSCORABLE)).any():
        return _Mapped((raw - low) / (high - low), request.count, 0, 0, 0)
    mapped: list[MappedOutcomes] = []
    violations: list[FieldViolation] = []
    ends = np.cumsum(request.count).tolist()
    for i, (prompt_id, start, end) in enumerate(zip(request.prompt_ids, [0, *ends], ends, strict=False)):
        found = map_outcomes(config, raw[start:end], statuses[start:end], f"outcomes[{i}].outcomes")
        if isinstance(found, MappedOutcomes):
            mapped.append(found)
        else:
            description = f"{found.description} (prompt {prompt_id!r})"
            violations.append(dataclasses.replace(found, description=description))
    if violations:
        raise invalid_fields(violations, Reason.INVALID_OUTCOME)
    return _Mapped(
        np.concatenate([each.outcomes for each in mapped]),
        np.array([len(each.outcomes) for each in mapped], dtype=np.int32),
        sum(each.skipped for each in mapped),
        sum(each.dropped for each in mapped),
        sum(each.clipped for each in mapped),
    )
