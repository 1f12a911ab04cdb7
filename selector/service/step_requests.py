"""The requests of a training step, checked for form."""

from __future__ import annotations

import numpy as np

from selector.errors import invalid
from selector.requests import PromptReport, ReportRequest, SelectRequest, TrainingRequest
from selector.service import checks
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason

_LARGEST_BATCH = 1_000_000
_NO_STATUSES = np.zeros(0, dtype=np.uint8)


def select_request(request: pb.SelectBatchRequest) -> SelectRequest:
    """A batch to select."""
    purpose = checks.choice(request, "purpose") or pb.PURPOSE_TRAIN
    least = 0 if purpose == pb.PURPOSE_REFERENCE else 1
    index, count = checks.shard(request)
    if request.fresh_only and purpose == pb.PURPOSE_REFERENCE:
        raise invalid("fresh_only", "is for purpose TRAIN: references are always fresh", Reason.CONTRADICTORY_FIELDS)
    excluded = sorted(set(request.exclude_prompt_ids))
    # What identifies the batch: neither the request id nor the shard, and exclusions as a set.
    content = pb.SelectBatchRequest()
    content.CopyFrom(request)
    content.purpose = purpose  # type: ignore[assignment]
    content.ClearField("shard")
    # A fork repeats the selections it inherited.
    content.ClearField("run_id")
    del content.exclude_prompt_ids[:]
    content.exclude_prompt_ids.extend(excluded)
    key = checks.request_key(content, "SelectBatch")
    return SelectRequest(
        step=checks.step(request.step),
        round=checks.between(request.round, 0, 1_000_000, "round"),
        batch_size=checks.between(request.batch_size, least, _LARGEST_BATCH, "batch_size"),
        purpose=purpose,
        fresh_only=request.fresh_only,
        exclude_prompt_ids=list(request.exclude_prompt_ids),
        shard_index=index,
        shard_count=count,
        key=key,
    )


def report_request(request: pb.ReportOutcomesRequest) -> ReportRequest:
    """Outcomes of rolled-out prompts."""
    purpose = checks.choice(request, "purpose") or pb.PURPOSE_TRAIN
    if not request.outcomes:
        raise invalid("outcomes", "expected at least one prompt; got none")
    checks.distinct_prompts((o.prompt_id for o in request.outcomes), "outcomes", ".prompt_id")
    statuses_known = pb.RolloutStatus.values()
    prompts = []
    for i, outcomes in enumerate(request.outcomes):
        if not outcomes.outcomes:
            raise invalid(
                f"outcomes[{i}].outcomes", f"expected at least one outcome of {outcomes.prompt_id!r}; got none"
            )
        if outcomes.statuses and len(outcomes.statuses) != len(outcomes.outcomes):
            raise invalid(
                f"outcomes[{i}].statuses",
                f"expected none or one per outcome, {len(outcomes.outcomes)}; got {len(outcomes.statuses)}",
            )
        for j, status in enumerate(outcomes.statuses):
            checks.known(statuses_known, status, f"outcomes[{i}].statuses[{j}]")
        prompts.append(
            PromptReport(
                prompt_id=outcomes.prompt_id,
                outcomes=np.array(outcomes.outcomes, dtype=np.float64),
                statuses=np.array(outcomes.statuses, dtype=np.uint8) if outcomes.statuses else _NO_STATUSES,
            )
        )
    return ReportRequest(
        step=checks.step(request.step),
        purpose=purpose,
        prompts=prompts,
        key=checks.request_key(request, "ReportOutcomes"),
    )


def training_request(request: pb.ReportTrainingRequest) -> TrainingRequest:
    """What the trainer saw in a step."""

    def optional(field: str, high: float) -> float | None:
        if not request.HasField(field):
            return None
        return checks.real_between(getattr(request, field), 0.0, high, field)

    signals = {}
    for i, signal in enumerate(request.signals):
        path = f"signals[{i}]"
        name = checks.name(signal.name, f"{path}.name")
        if name in signals:
            raise invalid(f"{path}.name", f"expected each name once; got {name!r} again")
        checks.distinct_prompts(signal.prompt_ids, f"{path}.prompt_ids")
        values = np.array(signal.values, dtype=np.float64)
        if len(values) != len(signal.prompt_ids):
            raise invalid(f"{path}.values", f"expected one per prompt id, {len(signal.prompt_ids)}; got {len(values)}")
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise invalid(f"{path}.values[{at}]", f"expected a finite number; got {values[at]}")
        signals[name] = (list(signal.prompt_ids), values)
    updates = checks.between(request.updates, 0, 2**31 - 1, "updates") if request.HasField("updates") else None
    return TrainingRequest(
        step=checks.step(request.step),
        effective_sample_size=optional("effective_sample_size", 1.0),
        max_importance_weight=optional("max_importance_weight", float("inf")),
        clip_fraction=optional("clip_fraction", 1.0),
        updates=updates,
        key=checks.request_key(request, "ReportTraining"),
        signals=signals,
    )
