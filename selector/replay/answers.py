"""What replay answers: results of pushes, samples and rewinds, and figures of the buffer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from selector.replay.plans import Eviction, PushPlan, PushStatus, Refusal
from selector.v1.reasons import Reason


@dataclass(frozen=True)
class PushResult:
    """What became of the groups of a push.

    Attributes:
        stored: now durable and in the buffer (or pushed out by later groups of the same push, counted in ``evicted``).
        uninformative: not kept, their outcomes do not differ.
        unchanged: there already, with the same content.
        outdated: not kept, a newer group of the same prompt is there.
        too_old: not kept, older than max_age_steps on arrival.
        evicted: groups that left because of this push.
        refused: only with ``skip_refused``.
        already_applied: the request id was applied before; the figures are those of that time.
    """

    stored: int = 0
    uninformative: int = 0
    unchanged: int = 0
    outdated: int = 0
    too_old: int = 0
    evicted: int = 0
    refused: tuple[Refusal, ...] = ()
    already_applied: bool = False


@dataclass(frozen=True)
class SampledGroup:
    """A group of a sample, as read.

    Attributes:
        payload: byte for byte as pushed.
        age_steps: step - policy_version.
        times_sampled: this sample included.
        probability: with which it was in this sample.
    """

    payload: bytes
    prompt_id: str
    group_id: str
    age_steps: int
    times_sampled: int
    probability: float


@dataclass(frozen=True)
class Sample:
    """Answer to a sample request: which groups the caller's part holds, and how the whole came out.

    Attributes:
        step: the step it was drawn for.
        positions: of the groups in the run's log, in order; ``ReplayRun.read`` gives the groups.
        times_sampled: per group, this sample included.
        probability: with which each eligible group was taken.
        shortfall: groups fewer than asked, in the whole sample.
        eligible: groups that were eligible.
    """

    step: int
    positions: tuple[int, ...]
    times_sampled: tuple[int, ...]
    probability: float
    shortfall: int
    eligible: int


@dataclass(frozen=True)
class RewindResult:
    """Groups that were live and no longer are, and the other way round."""

    dropped: int
    restored: int


@dataclass(frozen=True)
class ReplayStats:
    """Figures of a run's buffer.

    Attributes:
        live_groups, live_bytes: what can be sampled.
        tombstone_groups, tombstone_bytes: what left and is kept for rewinds.
        ages: age in steps -> live groups, measured from the log's step.
        times_sampled: uses -> live groups.
        counters: totals since the run began, rewinds notwithstanding: pushes, samples, sampled_groups, stored,
            uninformative, unchanged, outdated, too_old, refused, and evicted_capacity, _bytes, _newer, _age, _uses.
            Refusals of pushes that raise are saved with the next change.
        step: the log's step, -1 before the first event.
    """

    live_groups: int
    live_bytes: int
    tombstone_groups: int
    tombstone_bytes: int
    ages: Mapping[int, int]
    times_sampled: Mapping[int, int]
    counters: Mapping[str, int]
    step: int


def push_result(plan: PushPlan) -> PushResult:
    """The answer to a push that did what the plan says."""
    counts = Counter(plan.statuses)
    return PushResult(
        stored=counts[PushStatus.STORED],
        uninformative=counts[PushStatus.UNINFORMATIVE],
        unchanged=counts[PushStatus.UNCHANGED],
        outdated=counts[PushStatus.OUTDATED],
        too_old=counts[PushStatus.TOO_OLD],
        evicted=plan.evicted,
        refused=plan.refusals,
    )


def encode_push_result(result: PushResult) -> bytes:
    """The answer as kept with the push."""
    refused = [(r.index, r.reason.name, r.field, r.description) for r in result.refused]
    return json.dumps({**asdict(replace(result, refused=())), "refused": refused}).encode()


def decode_push_result(stored: bytes) -> PushResult:
    """The answer to a push that was applied before."""
    values = json.loads(stored)
    refused = tuple(Refusal(index, Reason[reason], *rest) for index, reason, *rest in values.pop("refused"))
    return PushResult(**{**values, "refused": refused, "already_applied": True})


def push_counts(plan: PushPlan) -> Counter[str]:
    """What a push adds to the counters."""
    counts = Counter(status.name.lower() for status in plan.statuses if status is not PushStatus.REFUSED)
    return counts + Counter(pushes=1) + eviction_counts(plan.changed) + eviction_counts(plan.rows)


def eviction_counts(rows: np.ndarray) -> Counter[str]:
    """Groups that left the buffer, among ROWs in their new state, by reason."""
    totals = np.bincount(rows["eviction"], minlength=len(Eviction)).tolist()
    return Counter({f"evicted_{reason.name.lower()}": totals[reason] for reason in Eviction if reason.counts})
