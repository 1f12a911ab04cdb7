"""The requests of a training step, checked for form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from selector.errors import invalid
from selector.requests import ReportRequest, SelectRequest, TrainingRequest
from selector.service import checks
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason

_LARGEST_BATCH = 1_000_000


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
    reported = request.outcomes
    if not reported:
        raise invalid("outcomes", "expected at least one prompt; got none")
    prompt_ids = [each.prompt_id for each in reported]
    checks.distinct_prompts(prompt_ids, "outcomes", ".prompt_id")
    columns = [each.outcomes for each in reported]
    count = list(map(len, columns))
    if 0 in count:
        at = count.index(0)
        raise invalid(f"outcomes[{at}].outcomes", f"expected at least one outcome of {prompt_ids[at]!r}; got none")
    return ReportRequest(
        step=checks.step(request.step),
        purpose=purpose,
        prompt_ids=prompt_ids,
        count=np.array(count, dtype=np.int32),
        # One array: a thousand small ones take longer than all the rest.
        outcomes=np.fromiter(chain.from_iterable(columns), dtype=np.float64, count=sum(count)),
        statuses=_statuses([each.statuses for each in reported], count),
        key=checks.request_key(request, "ReportOutcomes"),
    )


def _statuses(sent: Sequence[Sequence[int]], count: Sequence[int]) -> np.ndarray:
    """(sum of count,) uint8, 0 where a prompt came without."""
    found: list[int] = []
    for i, (statuses, outcomes) in enumerate(zip(sent, count, strict=True)):
        if statuses and len(statuses) != outcomes:
            raise invalid(
                f"outcomes[{i}].statuses", f"expected none or one per outcome, {outcomes}; got {len(statuses)}"
            )
        found += statuses or repeat(0, outcomes)
    unknown = set(found).difference(pb.RolloutStatus.values())
    if unknown:
        bounds = np.cumsum(count)
        at = next(j for j, status in enumerate(found) if status in unknown)
        i = int(np.searchsorted(bounds, at, side="right"))
        checks.known(pb.RolloutStatus.values(), found[at], f"outcomes[{i}].statuses[{at - bounds[i] + count[i]}]")
    return np.array(found, dtype=np.uint8)


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
