"""What a push would do to the buffer.

A push at step t, in this order:
    1. live groups with t - policy_version > max_age_steps leave (AGE);
    2. each group in turn: uninformative (informative_only) or already too old: not kept; the id of a live group:
       unchanged with the same content, refused with other content; newest_per_prompt and a live group of its prompt has
       a larger policy version: outdated, else that one leaves (NEWER) and the group is stored;
    3. the oldest in order of arrival leave until capacity_groups (CAPACITY) and capacity_bytes (BYTES) hold. A push
       larger than the buffer pushes its own first groups out.

Late groups that are outdated or unchanged on arrival are kept as tombstones: what stands in their way may be rewound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selector.config import ReplayConfig
from selector.replay.buffer import ReplayBuffer, evict
from selector.replay.plans import ROW, Arrival, Eviction, PushPlan, PushStatus, Refusal
from selector.v1.reasons import Reason


def plan_push(
    buffer: ReplayBuffer, arrivals: Sequence[Arrival], step: int, position: int, places: Sequence[int] | None = None
) -> PushPlan:
    """Work a push out; the buffer is not changed.

    Args:
        buffer: the run's buffer.
        arrivals: the groups, in order.
        step: the trainer's step.
        position: of the event in the log.
        places: positions of the groups; by default they follow the event.
    """
    if places is None:
        places = range(position + 1, position + 1 + len(arrivals))
    planned = _Push(buffer, step)
    for index, (arrival, place) in enumerate(zip(arrivals, places, strict=True)):
        planned.admit(index, place, arrival)

    log_step = max(buffer.log.step, step)
    added = _rows(planned.kept, buffer.log.next_seq, step)
    never_live = np.flatnonzero(added["eviction"] != Eviction.LIVE)
    evict(added, never_live, added["eviction"][never_live], position, log_step)
    leaving = np.asarray(sorted(planned.evictions), dtype=np.int64)
    reasons = np.asarray([planned.evictions[place] for place in leaving.tolist()], dtype=np.uint8)
    own = leaving > position
    evict(added, np.searchsorted(added["position"], leaving[own]), reasons[own], position, log_step)
    changed = buffer.rows[buffer.find(leaving[~own])].copy()
    evict(changed, np.arange(len(changed)), reasons[~own], position, log_step)

    staying = buffer.rows[buffer.live() & ~np.isin(buffer.rows["position"], changed["position"])]
    fresh = np.flatnonzero(added["evicted_position"] < 0)
    overflow = _overflow(np.concatenate([staying["nbytes"], added["nbytes"][fresh]]), buffer.config)
    pushed_out = staying[: len(overflow)].copy()
    evict(pushed_out, np.arange(len(pushed_out)), overflow[: len(pushed_out)], position, log_step)
    evict(added, fresh[: max(0, len(overflow) - len(staying))], overflow[len(pushed_out) :], position, log_step)
    return PushPlan(
        position=position,
        step=step,
        statuses=tuple(planned.statuses),
        refusals=tuple(planned.refusals),
        rows=added,
        identities={place: (arrival.group.prompt_id, arrival.group.group_id) for place, arrival, _ in planned.kept},
        changed=np.sort(np.concatenate([changed, pushed_out]), order="position"),
    )


class _Push:
    """The groups of one push, admitted one after the other."""

    def __init__(self, buffer: ReplayBuffer, step: int) -> None:
        self._buffer = buffer
        self._config = buffer.config
        self._step = step
        self._late = step < buffer.log.step
        # Groups of this push that are live so far: id -> (size, checksum); prompt -> (place, version, id).
        self._contents: dict[str, tuple[int, int]] = {}
        self._newest: dict[str, tuple[int, int, str]] = {}
        self.evictions = dict.fromkeys(buffer.too_old(step).tolist(), Eviction.AGE)
        self.kept: list[tuple[int, Arrival, Eviction]] = []
        self.statuses: list[PushStatus] = []
        self.refusals: list[Refusal] = []

    def admit(self, index: int, place: int, arrival: Arrival) -> None:
        """Decide on the next group."""
        refusal = self._refusal(index, arrival)
        if refusal is not None:
            self.refusals.append(refusal)
            self.statuses.append(PushStatus.REFUSED)
            return
        status = self._status(arrival)
        self.statuses.append(status)
        if status is PushStatus.STORED:
            self._store(place, arrival)
        elif self._late and status is PushStatus.UNCHANGED:
            self.kept.append((place, arrival, Eviction.UNCHANGED))
        elif self._late and status is PushStatus.OUTDATED:
            self.kept.append((place, arrival, Eviction.OUTDATED))

    def _refusal(self, index: int, arrival: Arrival) -> Refusal | None:
        group = arrival.group
        limit = self._config.capacity_bytes
        if limit and arrival.nbytes > limit:
            description = f"expected at most replay.capacity_bytes = {limit} bytes in one group; got {arrival.nbytes}"
            return Refusal(index, Reason.QUOTA_EXCEEDED, "", description)
        there = self._content(group.group_id)
        if there is not None and there != (arrival.nbytes, arrival.checksum):
            own = group.group_id == f"{group.prompt_id}@{group.policy_version}"
            description = f"{group.group_id!r} is there with other content; ids are unique in a run" + (
                ", and prompt_id@policy_version unless a group_id is given: give each group one" if own else ""
            )
            return Refusal(index, Reason.INVALID_GROUP, "group_id", description)
        return None

    def _status(self, arrival: Arrival) -> PushStatus:
        group = arrival.group
        if self._config.informative_only and not group.informative:
            return PushStatus.UNINFORMATIVE
        if self._config.max_age_steps and self._step - group.policy_version > self._config.max_age_steps:
            return PushStatus.TOO_OLD
        if self._content(group.group_id) is not None:
            return PushStatus.UNCHANGED
        newest = self._newest_version(group.prompt_id)
        if newest is not None and newest[1] > group.policy_version:
            return PushStatus.OUTDATED
        return PushStatus.STORED

    def _store(self, place: int, arrival: Arrival) -> None:
        group = arrival.group
        replaced = self._newest_version(group.prompt_id)
        if replaced is not None:
            self.evictions[replaced[0]] = Eviction.NEWER
            self._contents.pop(replaced[2], None)
        self._contents[group.group_id] = (arrival.nbytes, arrival.checksum)
        self._newest[group.prompt_id] = (place, group.policy_version, group.group_id)
        self.kept.append((place, arrival, Eviction.LIVE))

    def _content(self, group_id: str) -> tuple[int, int] | None:
        """Size and checksum of the live group with this id."""
        if group_id in self._contents:
            return self._contents[group_id]
        there = self._buffer.live_group(group_id)
        return None if there is None or there[0] in self.evictions else there[1:]

    def _newest_version(self, prompt_id: str) -> tuple[int, int, str] | None:
        """Place, policy version and id of the prompt's live group, of which newest_per_prompt leaves at most one."""
        if not self._config.newest_per_prompt:
            return None
        if prompt_id in self._newest:
            return self._newest[prompt_id]
        for place, version in self._buffer.live_versions(prompt_id).items():
            if place not in self.evictions:
                return place, version, self._buffer.identities[place][1]
        return None


def _rows(kept: Sequence[tuple[int, Arrival, Eviction]], next_seq: int, step: int) -> np.ndarray:
    rows = np.zeros(len(kept), dtype=ROW)
    rows["position"] = [place for place, _, _ in kept]
    rows["policy_version"] = [arrival.group.policy_version for _, arrival, _ in kept]
    rows["nbytes"] = [arrival.nbytes for _, arrival, _ in kept]
    rows["mean_outcome"] = [arrival.group.mean_outcome for _, arrival, _ in kept]
    rows["checksum"] = [arrival.checksum for _, arrival, _ in kept]
    rows["informative"] = [arrival.group.informative for _, arrival, _ in kept]
    rows["eviction"] = [eviction for _, _, eviction in kept]
    stored = rows["eviction"] == Eviction.LIVE
    rows["seq"] = np.where(stored, next_seq + np.cumsum(stored) - 1, -1)
    rows["pushed_step"] = step
    rows["evicted_position"] = -1
    rows["evicted_log_step"] = -1
    return rows


def _overflow(sizes: np.ndarray, config: ReplayConfig) -> np.ndarray:
    """Why the first groups, in order of arrival, leave: (k,) uint8, k = how many have to."""
    by_count = max(0, len(sizes) - config.capacity_groups)
    by_bytes = 0
    if config.capacity_bytes:
        # bytes_from[i]: of the groups from i on; the buffer starts at the first i where they fit.
        bytes_from = np.append(np.cumsum(sizes[::-1])[::-1], 0)
        by_bytes = int(np.argmax(bytes_from <= config.capacity_bytes))
    reasons = np.full(max(by_count, by_bytes), Eviction.BYTES, dtype=np.uint8)
    reasons[:by_count] = Eviction.CAPACITY
    return reasons
