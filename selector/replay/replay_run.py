"""Rollout replay of one run: the buffer in memory, kept equal to what is on disk.

Whatever is answered is durable: a change is worked out on the buffer, written in one transaction, and only then applied
to the buffer, so a failed write leaves both as they were. Calls on one run must be serialised by the caller; different
runs may be used from different threads at once.

Samples:
    * (run, step) has one sample. Asked again with the same arguments it returns the same groups with the same ages,
      uses and probabilities, also after a restart, and counts no further use; with other arguments ``SampleDiffers``.
    * Fewer eligible groups than asked: all of them, and a shortfall. That answer is recorded like any other.
    * No eligible group: an empty answer, which records nothing and changes nothing; asked again it may find some.
    * The answer says which groups there are; ``read`` gives them piece by piece, so that a large sample never is in
      memory as a whole.
    * Once all groups of a sample are gone for good, only that its step was answered is remembered.
    * To wait for groups, poll ``eligible_count``, which has no effect, and call ``sample`` once it is large enough, or
      at once when the step is ``answered``: giving up the wait has consumed nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

import numpy as np

from selector.config import ReplayConfig
from selector.replay.answers import (
    PushResult,
    ReplayStats,
    RewindResult,
    Sample,
    SampledGroup,
    decode_push_result,
    encode_push_result,
    eviction_counts,
    push_counts,
    push_result,
)
from selector.replay.buffer import ReplayBuffer
from selector.replay.checksum import crc32
from selector.replay.errors import GroupRefused, RequestIdReused, SampleDiffers, StorageFailed
from selector.replay.group import CheckedGroup
from selector.replay.history import Gaps, Mark, PushEvent, ReplayLog, SampleEvent
from selector.replay.plans import Arrival, SampleRequest
from selector.replay.push import plan_push
from selector.replay.reading import check_there, gone, read_groups
from selector.replay.records import RunMeta
from selector.replay.rewind import rewound
from selector.replay.store import ReplayStore

# Newest pushes of a run whose request ids are known; 10,000 requests are promised.
REQUESTS_KEPT = 12_000


class ReplayRun:
    """Replay of one run.

    Args:
        store: the environment, shared by all runs.
        run: its number, 0 to 2**64 - 1.
        config: the run's replay configuration; the same whenever the run is opened.
        seed: the run's seed.
        rewind_window_steps: steps for which groups that left can be brought back, >= 1.
        room: (groups, payload bytes) that the run is about to keep, those that left included -> a context that the
            write happens in; raises before the block is entered when they are too many.
    """

    def __init__(
        self,
        store: ReplayStore,
        run: int,
        config: ReplayConfig,
        seed: int,
        rewind_window_steps: int = 100,
        room: Callable[[int, int], AbstractContextManager[None]] = lambda groups, size: nullcontext(),
    ) -> None:
        self._store = store
        self._run = run
        self._room = room
        self._buffer = ReplayBuffer(config, seed, rewind_window_steps)
        # What a rewind that could not be written yet makes of the buffer.
        self._shown: ReplayBuffer | None = None
        self._epoch = 0
        self._rewind_result = RewindResult(0, 0)
        self._counters: Counter[str] = Counter()
        # The log's step when the samples were last looked through for those without groups.
        self._looked_at = -1
        stored = store.load(run)
        if stored is not None:
            meta = stored.meta
            log = ReplayLog(meta.next_position, meta.next_seq, list(stored.marks), list(stored.pushes))
            log.gaps = Gaps(list(meta.gaps))
            self._buffer.log = log
            self._buffer.insert(stored.rows, stored.identities)
            self._buffer.count_uses([pick for event in store.samples(run) for pick in event.picks])
            self._epoch = meta.rewind_epoch
            self._rewind_result = RewindResult(*meta.rewind_result)
            self._counters.update(meta.counters)
        self._requests = self._index_requests()

    def push(
        self,
        groups: Sequence[tuple[CheckedGroup, bytes | memoryview]],
        step: int,
        request_id: str = "",
        fingerprint: bytes = b"",
        skip_refused: bool = False,
        checksums: Sequence[int] | None = None,
    ) -> PushResult:
        """Store groups, durably and together.

        Args:
            groups: checked group and payload, in order.
            step: the trainer's step; ``validate_group`` has checked that it is >= every policy version.
            request_id: applied once; empty = no such protection. Remembered over the newest ``REQUESTS_KEPT`` pushes
                at least, and for the rewind window.
            fingerprint: of the request's content; empty = computed from ids, sizes and checksums.
            skip_refused: store the others when groups are refused.

        Raises:
            GroupRefused: a group larger than the buffer, or the id of another group; nothing was applied.
            RequestIdReused: the request id came with other content.
            ServiceError: QUOTA_EXCEEDED; nothing was applied.
            StorageFailed: nothing was applied.
        """
        known = self._requests.get(request_id)
        if known is not None and fingerprint:
            return _answered_push(known, fingerprint)
        if checksums is None:
            checksums = [crc32(payload) for _, payload in groups]
        sums = zip(groups, checksums, strict=True)
        arrivals = [Arrival(group, len(payload), checksum) for (group, payload), checksum in sums]
        if request_id and not fingerprint:
            fingerprint = _fingerprint(arrivals, step)
        if known is not None:
            return _answered_push(known, fingerprint)
        if not groups:
            return PushResult()
        log = self._buffer.log
        plan = plan_push(self._buffer, arrivals, step, log.next_position)
        self._counters += Counter(refused=len(plan.refusals))
        if plan.refusals and not skip_refused:
            first = plan.refusals[0]
            raise GroupRefused(first.reason, first.field, first.description, first.index)
        result = push_result(plan)
        log_step = max(log.step, step)
        event = PushEvent(
            plan.position, step, log_step, len(groups), request_id, fingerprint, encode_push_result(result)
        )
        window = self._buffer.rewind_window_steps
        # A push that is still known can be folded again, so it stands in no rewind's way.
        surplus = log.pushes[: max(0, len(log.pushes) + 1 - REQUESTS_KEPT)]
        outlived = [old for old in surplus if log.step - old.log_step >= window]
        expired = self._buffer.expired()
        gaps = self._buffer.gaps_without(expired)
        for old in outlived:
            gaps.add(old.step, old.log_step)
        # The groups of one sample leave at different times, so looking through the samples pays off once a window.
        looking = log_step - self._looked_at >= window
        faded = self._faded_samples(expired) if looking else []
        counters = self._counters + push_counts(plan)
        kept, kept_bytes = self.kept()
        leaving = self._buffer.rows[self._buffer.find(expired.tolist())]
        room = self._room(
            kept + len(plan.rows) - len(leaving),
            kept_bytes + int(plan.rows["nbytes"].sum()) - int(leaving["nbytes"].sum()),
        )
        with room, self._store.write(self._run) as writer:
            writer.groups(plan.rows, plan.identities)
            for position in plan.rows["position"].tolist():
                writer.payload(position, groups[position - plan.position - 1][1])
            writer.groups(plan.changed, self._buffer.identities)
            writer.forget_groups(expired.tolist())
            for sample in faded:
                writer.sample(sample)
            writer.push(event)
            writer.forget_pushes(outlived)
            if step > log.step:
                writer.marks([Mark(step, plan.position, log.next_seq)])
            stored = log.next_seq + result.stored
            writer.meta(self._meta(plan.position + 1 + len(groups), stored, gaps, counters))
        self._buffer.apply_push(plan)
        self._buffer.forget(expired)
        if looking:
            self._looked_at = log_step
        log.gaps = gaps
        log.pushes = [*log.pushes[len(outlived) :], event]
        for old in outlived:
            self._requests.pop(old.request_id, None)
        if request_id:
            self._requests[request_id] = event
        self._counters = counters
        return result

    def pushed(self, request_id: str) -> bool:
        """Whether a push that is remembered has this id."""
        return request_id in self._requests

    def answered(self, step: int) -> bool:
        """Whether the step's sample is recorded."""
        return self._store.sample(self._run, step) is not None

    def eligible_count(self, request: SampleRequest) -> int:
        """Groups that the request could take now; no effect."""
        return len(self._buffer.eligible(request))

    def sample(self, request: SampleRequest, part: tuple[int, int] = (0, 1)) -> Sample:
        """The step's sample: drawn and recorded, or as recorded before.

        Args:
            request: the arguments.
            part: (index, count): only groups index, index + count, ... of the sample are returned.

        Raises:
            SampleDiffers: the step was answered for other arguments.
            RewindBeyondHistory: it was answered so long ago that its groups are gone.
            StorageFailed: nothing was applied.
        """
        recorded = self._store.sample(self._run, request.step)
        if recorded is None:
            recorded = self._draw(request)
        elif recorded.fingerprint != request.fingerprint:
            raise SampleDiffers(
                f"the sample of step {request.step} was answered for other arguments "
                f"({recorded.requested} groups asked for then, {request.count} now)"
            )
        if recorded is None:
            return Sample(request.step, (), (), 1.0, request.count, 0)
        if not recorded.picks:
            raise gone(recorded.step)
        mine = slice(part[0], None, part[1])
        check_there(self._buffer, recorded.step, recorded.picks[mine])
        return Sample(
            step=recorded.step,
            positions=recorded.picks[mine],
            times_sampled=recorded.times_sampled[mine],
            probability=recorded.probability,
            shortfall=recorded.requested - len(recorded.picks),
            eligible=recorded.eligible,
        )

    def read(self, sample: Sample, start: int, max_bytes: int) -> tuple[SampledGroup, ...]:
        """Groups of a sample from ``start`` on: as many as fit, but at least one if there is one.

        Args:
            sample: an answer of this run.
            start: number of groups that were read before.
            max_bytes: of payloads, each counted with 512 bytes more.

        Raises:
            RewindBeyondHistory: groups have gone since the answer.
            PayloadCorrupt: a group is not as it was acknowledged.
        """
        return read_groups(self._store, self._run, self._buffer, sample, start, max_bytes)

    @property
    def epoch(self) -> int:
        """The latest rewind that was applied; 0 before the first."""
        return self._epoch

    def preview_rewind(self, step: int) -> RewindResult:
        """What a rewind would do; no effect.

        Raises:
            RewindBeyondHistory: groups needed are gone.
        """
        outcome = rewound(self._buffer, step, self._store.samples(self._run))
        return RewindResult(outcome.dropped, outcome.restored)

    def rewind(self, step: int, epoch: int) -> RewindResult:
        """Go back to before every push and sample with this step or a larger one.

        Args:
            step: the first step to drop.
            epoch: 1, 2, ... over the run's rewinds; one that was applied is answered again without effect.

        Raises:
            RewindBeyondHistory: groups needed are gone; nothing was applied.
            StorageFailed: nothing was applied.
        """
        if epoch <= self._epoch:
            return self._rewind_result
        old = self._buffer
        outcome = rewound(old, step, self._store.samples(self._run))
        new = outcome.buffer
        result = RewindResult(outcome.dropped, outcome.restored)
        before, after = old.rows, new.rows
        kept_before = before[np.isin(before["position"], after["position"])]
        gone = before["position"][~np.isin(before["position"], after["position"])]
        pushes, marks = set(old.log.pushes), set(old.log.marks)
        # Figures are those of the rewound buffer even while it cannot be written.
        self._shown = new
        with self._store.write(self._run) as writer:
            writer.forget_groups(gone.tolist())
            writer.groups(after[kept_before != after], new.identities)
            writer.forget_samples(step)
            writer.forget_pushes(event for event in old.log.pushes if event.step >= step)
            for event in new.log.pushes:
                if event not in pushes:
                    writer.push(event)
            writer.forget_marks(step)
            writer.marks(mark for mark in new.log.marks if mark not in marks)
            meta = self._meta(new.log.next_position, new.log.next_seq, new.log.gaps, self._counters)
            writer.meta(replace(meta, rewind_epoch=epoch, rewind_result=(result.dropped, result.restored)))
        self._buffer, self._shown = new, None
        self._looked_at = min(self._looked_at, new.log.step)
        self._epoch = epoch
        self._rewind_result = result
        self._requests = self._index_requests()
        return result

    def fork(self, run: int, before_step: int) -> ReplayRun:
        """Another run that starts from this one as of before a step; whatever it held is replaced.

        Raises:
            RewindBeyondHistory, StorageFailed: as ``rewind``; the other run is not there then.
        """
        buffer = rewound(self._buffer, before_step, self._store.samples(self._run)).buffer
        self._store.drop_run(run)
        try:
            self._copy_to(run, buffer, before_step)
        except BaseException:
            # A store that cannot even delete keeps the remains until ``ReplayStore.runs`` shows them to the caller.
            with suppress(StorageFailed):
                self._store.drop_run(run)
            raise
        return ReplayRun(self._store, run, buffer.config, buffer.seed, buffer.rewind_window_steps)

    @property
    def buffer(self) -> ReplayBuffer:
        """The index; not to be changed from outside."""
        return self._buffer

    def kept(self) -> tuple[int, int]:
        """Groups on disk and their payload bytes, those included that left and are kept for a rewind."""
        rows = self._buffer.rows
        return len(rows), int(rows["nbytes"].sum())

    def stats(self) -> ReplayStats:
        """Figures of the buffer as it is."""
        buffer = self._shown or self._buffer
        rows = buffer.rows
        live = rows[buffer.live()]
        step = buffer.log.step
        ages, age_counts = np.unique(step - live["policy_version"], return_counts=True)
        uses, use_counts = np.unique(live["uses"], return_counts=True)
        live_bytes = int(live["nbytes"].sum())
        return ReplayStats(
            live_groups=len(live),
            live_bytes=live_bytes,
            tombstone_groups=len(rows) - len(live),
            tombstone_bytes=int(rows["nbytes"].sum()) - live_bytes,
            ages=dict(zip(ages.tolist(), age_counts.tolist(), strict=True)),
            times_sampled=dict(zip(uses.tolist(), use_counts.tolist(), strict=True)),
            counters=dict(self._counters),
            step=step,
        )

    def _copy_to(self, run: int, buffer: ReplayBuffer, before_step: int) -> None:
        self._store.copy_payloads(self._run, run, buffer.rows["position"].tolist())
        log = buffer.log
        samples = [event for event in self._store.samples(self._run) if event.step < before_step]
        with self._store.write(run) as writer:
            writer.groups(buffer.rows, buffer.identities)
            for push in log.pushes:
                writer.push(push)
            for sample in samples:
                writer.sample(sample)
            writer.marks(log.marks)
            writer.meta(RunMeta(log.next_position, log.next_seq, tuple(log.gaps.intervals)))

    def _draw(self, request: SampleRequest) -> SampleEvent | None:
        log = self._buffer.log
        plan = self._buffer.plan_sample(request, log.next_position)
        if not len(plan.picks):
            return None
        event = SampleEvent(
            position=plan.position,
            step=request.step,
            fingerprint=request.fingerprint,
            requested=request.count,
            eligible=plan.eligible,
            probability=plan.probability,
            picks=tuple(plan.picks.tolist()),
            times_sampled=tuple(plan.times_sampled.tolist()),
        )
        counters = self._counters + Counter(samples=1, sampled_groups=len(event.picks))
        counters += eviction_counts(plan.changed)
        with self._store.write(self._run) as writer:
            writer.sample(event)
            writer.groups(plan.changed, self._buffer.identities)
            if request.step > log.step:
                writer.marks([Mark(request.step, plan.position, log.next_seq)])
            writer.meta(self._meta(plan.position + 1, log.next_seq, log.gaps, counters))
        self._buffer.apply_sample(plan)
        self._counters = counters
        return event

    def _faded_samples(self, expired: np.ndarray) -> list[SampleEvent]:
        """Samples of which no group is left without the expired ones, as they are then kept.

        Neither a rewind nor a repeated request misses their picks: uses of groups that are gone need no undoing.
        """
        there = self._buffer.identities.keys() - set(expired.tolist())
        return [
            replace(event, picks=(), times_sampled=())
            for event in self._store.samples(self._run)
            if event.picks and there.isdisjoint(event.picks)
        ]

    def _meta(self, next_position: int, next_seq: int, gaps: Gaps, counters: Mapping[str, int]) -> RunMeta:
        return RunMeta(
            next_position=next_position,
            next_seq=next_seq,
            gaps=tuple(gaps.intervals),
            rewind_epoch=self._epoch,
            rewind_result=(self._rewind_result.dropped, self._rewind_result.restored),
            counters=counters,
        )

    def _index_requests(self) -> dict[str, PushEvent]:
        return {event.request_id: event for event in self._buffer.log.pushes if event.request_id}


def _fingerprint(arrivals: Sequence[Arrival], step: int) -> bytes:
    content = [(a.group.prompt_id, a.group.group_id, a.group.policy_version, a.nbytes, a.checksum) for a in arrivals]
    return hashlib.blake2b(repr((step, content)).encode(), digest_size=16).digest()


def _answered_push(event: PushEvent, fingerprint: bytes) -> PushResult:
    if event.fingerprint != fingerprint:
        raise RequestIdReused(event.request_id)
    return decode_push_result(event.result)
