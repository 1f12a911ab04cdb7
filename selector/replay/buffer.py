"""The index of one run's replay buffer: which groups are live, which may be sampled, which leave.

The buffer is a pure function of the run's log: every push and every recorded sample, in order of acknowledgement, each
with its step. It holds no payload and does no I/O. ``push.plan_push`` and ``plan_sample`` say what an event would do,
``apply_push`` and ``apply_sample`` do it.

A sample at step t takes from the live groups with pushed_step <= t and min_age <= t - policy_version <= max_age_steps.
Then groups too old at t leave (AGE), and so do groups now sampled max_uses times (USES). A sample that would be empty
is no event: it changes nothing.

Uniform sampling without replacement: the group with sequence number q has the key
``uniforms_at(noise_key(seed, "replay", t), q)`` and the ``count`` smallest keys are taken, so every eligible group is
taken with probability min(1, count/eligible).

Groups that left stay as tombstones, so that a rewind can bring them back, until the log's step has moved on by
``rewind_window_steps``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from selector.config import ReplayConfig
from selector.noise import noise_key, uniforms_at
from selector.replay.history import Gaps, ReplayLog
from selector.replay.plans import ROW, Eviction, PushPlan, SampleOrder, SamplePlan, SampleRequest


class ReplayBuffer:
    """Live groups and tombstones of one run.

    Attributes:
        log: counters, marks and gaps of the run's log.
        identities: position -> (prompt_id, group_id), of every row.
    """

    def __init__(self, config: ReplayConfig, seed: int, rewind_window_steps: int = 100) -> None:
        self.config = config
        self.seed = seed
        self.rewind_window_steps = rewind_window_steps
        self.log = ReplayLog()
        self.identities: dict[int, tuple[str, str]] = {}
        self._rows = np.empty(64, dtype=ROW)
        self._count = 0
        # Live groups: id -> (position, size, checksum); prompt -> {position: policy version}.
        self._groups: dict[str, tuple[int, int, int]] = {}
        self._versions: dict[str, dict[int, int]] = {}

    @property
    def rows(self) -> np.ndarray:
        """(n,) ROW in order of position: a view that the next event makes stale."""
        return self._rows[: self._count]

    def live(self) -> np.ndarray:
        """(n,) bool over ``rows``."""
        return self.rows["evicted_position"] < 0

    def find(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Indices into ``rows`` of positions that are there: (k,) int64."""
        return np.searchsorted(self.rows["position"], np.asarray(positions, dtype=np.int64))

    def live_group(self, group_id: str) -> tuple[int, int, int] | None:
        """Position, payload size and checksum of the live group with this id."""
        return self._groups.get(group_id)

    def live_versions(self, prompt_id: str) -> Mapping[int, int]:
        """Position -> policy version of the prompt's live groups."""
        return self._versions.get(prompt_id, {})

    def too_old(self, step: int) -> np.ndarray:
        """Positions of live groups that are beyond max_age_steps at this step: (k,) int64."""
        if not self.config.max_age_steps:
            return np.empty(0, dtype=np.int64)
        rows = self.rows
        return rows["position"][self.live() & (step - rows["policy_version"] > self.config.max_age_steps)]

    def eligible(self, request: SampleRequest) -> np.ndarray:
        """Indices into ``rows`` of the groups the request may take, in order of arrival: (k,) int64."""
        rows = self.rows
        ages = request.step - rows["policy_version"]
        allowed = self.live() & (rows["pushed_step"] <= request.step) & (ages >= max(0, request.min_age_steps))
        if self.config.max_age_steps:
            allowed &= ages <= self.config.max_age_steps
        if request.informative_only:
            allowed &= rows["informative"]
        excluded = [position for prompt in request.exclude for position in self.live_versions(prompt)]
        allowed[self.find(excluded)] = False
        return np.flatnonzero(allowed)

    def plan_sample(self, request: SampleRequest, position: int) -> SamplePlan:
        """Work a sample out; the buffer is not changed."""
        rows = self.rows
        eligible = self.eligible(request)
        if request.order is SampleOrder.NEWEST:
            order = np.lexsort((rows["seq"][eligible], rows["policy_version"][eligible]))[::-1]
            probability = 1.0
        else:
            keys = uniforms_at(noise_key(self.seed, "replay", request.step), rows["seq"][eligible])
            order = np.argsort(keys, kind="stable")
            probability = min(1.0, request.count / max(1, len(eligible)))
        taken = eligible[order[: request.count]]
        picks = rows["position"][taken]
        changed = self._leaving_with(picks, request.step, position) if len(picks) else np.empty(0, dtype=ROW)
        times = rows["uses"][taken].astype(np.int64) + 1
        return SamplePlan(position, request, picks, times, len(eligible), probability, changed)

    def apply_sample(self, plan: SamplePlan) -> None:
        """Do what the plan says."""
        if len(plan.picks):
            self._take(plan.picks, plan.changed, plan.request.step, plan.position)

    def refold_sample(self, picks: np.ndarray, step: int, position: int) -> None:
        """Take in a sample that was answered before: its picks stand, whatever would be drawn now."""
        self._take(picks, self._leaving_with(picks, step, position), step, position)

    def apply_push(self, plan: PushPlan) -> None:
        """Do what the plan says."""
        self.log.advance(plan.step, plan.position)
        self.log.next_position = max(self.log.next_position, plan.position + 1 + len(plan.statuses))
        self.log.next_seq += int((plan.rows["seq"] >= 0).sum())
        self.insert(plan.rows, plan.identities)
        self._let_leave(plan.changed)

    def insert(self, rows: np.ndarray, identities: Mapping[int, tuple[str, str]]) -> None:
        """Take rows in; their positions are ascending and larger than those there."""
        total = self._count + len(rows)
        if total > len(self._rows):
            grown = np.empty(2 * total, dtype=ROW)
            grown[: self._count] = self.rows
            self._rows = grown
        self._rows[self._count : total] = rows
        self._count = total
        self.identities.update(identities)
        live = rows[rows["evicted_position"] < 0]
        columns = (live[name].tolist() for name in ("position", "policy_version", "nbytes", "checksum"))
        for position, version, nbytes, checksum in zip(*columns, strict=True):
            prompt_id, group_id = identities[position]
            self._groups[group_id] = (position, nbytes, checksum)
            self._versions.setdefault(prompt_id, {})[position] = version

    def expired(self) -> np.ndarray:
        """Positions of tombstones that no rewind within the window and no recent sample needs: (k,) int64."""
        rows = self.rows
        aged = self.log.step - rows["evicted_log_step"] >= self.rewind_window_steps
        # Pushed and evicted at one step, and in no sample: every rewind that could bring it back drops it too.
        passing = (rows["pushed_step"] >= rows["evicted_log_step"]) & (rows["uses"] == 0)
        return rows["position"][~self.live() & (aged | passing)]

    def gaps_without(self, positions: np.ndarray) -> Gaps:
        """The log's gaps once these tombstones are forgotten."""
        gaps = Gaps(list(self.log.gaps.intervals))
        rows = self.rows[self.find(positions)]
        for span in set(zip(rows["pushed_step"].tolist(), rows["evicted_log_step"].tolist(), strict=True)):
            gaps.add(*span)
        return gaps

    def forget(self, positions: np.ndarray) -> None:
        """Drop tombstones for good; ``gaps_without`` tells which rewinds become impossible."""
        if not len(positions):
            return
        self._rows = np.delete(self.rows, self.find(positions))
        self._count = len(self._rows)
        for position in positions.tolist():
            del self.identities[position]

    def count_uses(self, picks: Sequence[int] | np.ndarray) -> None:
        """Add a use for every occurrence of a pick that is there."""
        positions, counts = np.unique(np.asarray(picks, dtype=np.int64), return_counts=True)
        there = np.isin(positions, self.rows["position"])
        self._rows["uses"][self.find(positions[there])] += counts[there].astype(np.int32)

    def _take(self, picks: np.ndarray, changed: np.ndarray, step: int, position: int) -> None:
        self.log.advance(step, position)
        self.log.next_position = max(self.log.next_position, position + 1)
        self.count_uses(picks)
        self._let_leave(changed)

    def _leaving_with(self, picks: np.ndarray, step: int, position: int) -> np.ndarray:
        """Rows that leave with a sample of ``picks`` at ``step``, in their new state."""
        rows = self.rows
        aged = np.isin(rows["position"], self.too_old(step))
        taken = np.isin(rows["position"], picks)
        leaving = aged.copy()
        if self.config.max_uses:
            leaving |= taken & self.live() & (rows["uses"] + 1 >= self.config.max_uses)
        changed = rows[leaving].copy()
        changed["uses"] += taken[leaving]
        reasons = np.where(aged[leaving], np.uint8(Eviction.AGE), np.uint8(Eviction.USES))
        evict(changed, np.arange(len(changed)), reasons, position, max(self.log.step, step))
        return changed

    def _let_leave(self, changed: np.ndarray) -> None:
        self._rows[self.find(changed["position"])] = changed
        for position in changed["position"].tolist():
            prompt_id, group_id = self.identities[position]
            # The id may already belong to a group that came in with the same event.
            if self._groups[group_id][0] == position:
                del self._groups[group_id]
            versions = self._versions[prompt_id]
            del versions[position]
            if not versions:
                del self._versions[prompt_id]


def evict(rows: np.ndarray, which: np.ndarray, reasons: np.ndarray, position: int, log_step: int) -> None:
    """Mark ``rows[which]`` as evicted by the event at ``position``."""
    rows["evicted_position"][which] = position
    rows["evicted_log_step"][which] = log_step
    rows["eviction"][which] = reasons
