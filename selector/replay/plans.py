"""What a push or a sample would do, worked out before anything is changed.

A plan is computed from the buffer without touching it, written to disk, and only then applied: a failed write leaves
the buffer as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np

from selector.replay.group import CheckedGroup
from selector.v1.reasons import Reason

# One group of the buffer, as kept in memory and on disk.
ROW = np.dtype(
    [
        ("position", "<i8"),  # in the log; where its payload is stored
        ("seq", "<i8"),  # 0, 1, 2, ... over the groups ever stored; counter of its noise. -1: never was live
        ("policy_version", "<i8"),
        ("pushed_step", "<i8"),
        ("nbytes", "<i8"),  # of the payload
        ("mean_outcome", "<f8"),
        ("evicted_position", "<i8"),  # of the event that evicted it; -1 = live
        ("evicted_log_step", "<i8"),  # the log's step at that event; -1 = live
        ("checksum", "<u4"),  # CRC-32 of the payload
        ("uses", "<i4"),  # samples that hold it; follows from the sample records, stored as 0
        ("informative", "?"),
        ("eviction", "u1"),
    ]
)


class Eviction(IntEnum):
    """Why a group is not live."""

    LIVE = 0
    CAPACITY = 1
    BYTES = 2
    NEWER = 3
    AGE = 4
    USES = 5
    # Kept although it never was live: it came late, and a rewind may drop what stood in its way.
    OUTDATED = 6
    UNCHANGED = 7

    @property
    def counts(self) -> bool:
        """Whether a group really left the buffer."""
        return Eviction.LIVE < self < Eviction.OUTDATED


class PushStatus(IntEnum):
    """What became of one group of a push."""

    STORED = 0
    UNINFORMATIVE = 1
    UNCHANGED = 2
    # A newer group of the prompt is there.
    OUTDATED = 3
    # Older than max_age_steps on arrival.
    TOO_OLD = 4
    REFUSED = 5


class SampleOrder(Enum):
    """Which eligible groups are taken."""

    UNIFORM = "UNIFORM"
    NEWEST = "NEWEST"


@dataclass(frozen=True)
class Arrival:
    """A sound group on its way into the buffer."""

    group: CheckedGroup
    nbytes: int
    checksum: int


@dataclass(frozen=True)
class Refusal:
    """Why one group of a push was refused; index = its position in the push."""

    index: int
    reason: Reason
    field: str
    description: str


@dataclass(frozen=True)
class SampleRequest:
    """Arguments of a sample.

    Attributes:
        step: the trainer's step, >= 0; ages are measured from it.
        count: groups wanted, > 0.
        order: UNIFORM without replacement, or NEWEST policy version first.
        min_age_steps: younger groups are passed over.
        exclude: groups of these prompts are passed over.
        informative_only: only groups whose outcomes differ.
    """

    step: int
    count: int
    order: SampleOrder = SampleOrder.UNIFORM
    min_age_steps: int = 0
    exclude: frozenset[str] = frozenset()
    informative_only: bool = False

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that tell two requests of one step apart."""
        content = (self.count, self.order.value, self.min_age_steps, sorted(self.exclude), bool(self.informative_only))
        return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()


@dataclass(frozen=True)
class PushPlan:
    """A push, worked out.

    Attributes:
        position: of the event.
        step: the trainer's step.
        statuses: per group of the push.
        refusals: of the groups with status REFUSED.
        rows: (n,) ROW, the groups to keep (a few of them already evicted), by position.
        identities: position -> (prompt_id, group_id) of ``rows``.
        changed: (m,) ROW, groups that were live and are now evicted, in their new state.
    """

    position: int
    step: int
    statuses: tuple[PushStatus, ...]
    refusals: tuple[Refusal, ...]
    rows: np.ndarray
    identities: Mapping[int, tuple[str, str]]
    changed: np.ndarray

    @property
    def evicted(self) -> int:
        """Groups that leave because of this push, those of the push itself included."""
        own = np.isin(self.rows["eviction"], [reason for reason in Eviction if reason.counts])
        return len(self.changed) + int(own.sum())


@dataclass(frozen=True)
class SamplePlan:
    """A sample, worked out.

    Attributes:
        position: of the event.
        request: the arguments.
        picks: (k,) int64 positions of the groups, in the order of the answer; k = 0: nothing is to be recorded.
        times_sampled: (k,) int64, this sample included.
        eligible: groups that were eligible.
        probability: with which each eligible group was taken.
        changed: (m,) ROW, groups that leave by age or by this use, in their new state.
    """

    position: int
    request: SampleRequest
    picks: np.ndarray
    times_sampled: np.ndarray
    eligible: int
    probability: float
    changed: np.ndarray
