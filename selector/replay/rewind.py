"""The buffer as it would be had the events of step >= s never happened.

The log is cut at the first event with step >= s. Before the cut, groups that were evicted by a later event come back
and the uses by later samples are undone. Behind the cut only late events (step < s) are left; they are folded again, in
their order, since what they met may have gone: an outdated group may now be the newest, a full buffer may have room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selector.replay.buffer import ReplayBuffer
from selector.replay.errors import RewindBeyondHistory
from selector.replay.group import CheckedGroup
from selector.replay.history import PushEvent, ReplayLog, SampleEvent
from selector.replay.plans import Arrival, Eviction
from selector.replay.push import plan_push


@dataclass(frozen=True)
class Rewound:
    """Outcome of a rewind.

    Attributes:
        buffer: the buffer from now on; the same object when there was nothing to rewind.
        dropped: groups that were live and no longer are.
        restored: groups that were not live and are again.
    """

    buffer: ReplayBuffer
    dropped: int
    restored: int


def rewound(buffer: ReplayBuffer, step: int, samples: Iterable[SampleEvent]) -> Rewound:
    """Rewind to ``step``, leaving the given buffer as it is.

    Args:
        buffer: the run's buffer.
        step: events with this step or a larger one are dropped.
        samples: every recorded sample of the run.

    Raises:
        RewindBeyondHistory: groups that would have to come back were deleted.
    """
    cut = buffer.log.first_at_or_after(step)
    if cut is None:
        return Rewound(buffer, 0, 0)
    if buffer.log.gaps.covers(step):
        kept = buffer.rewind_window_steps
        raise RewindBeyondHistory(
            f"cannot rewind replay from step {buffer.log.step} to step {step}: groups that left the buffer are kept "
            f"for {kept} steps, and some of those needed are gone"
        )
    behind = sorted((event for event in samples if event.position >= cut.position), key=lambda event: event.position)
    result = _before(buffer, step, cut.position, cut.next_seq, behind)
    late_pushes = [e for e in buffer.log.pushes if e.position >= cut.position and e.step < step]
    late_samples = [e for e in behind if e.step < step]
    late: list[PushEvent | SampleEvent] = sorted([*late_pushes, *late_samples], key=lambda event: event.position)
    for event in late:
        if isinstance(event, PushEvent):
            _push_again(result, buffer, event)
        else:
            picks = np.asarray(event.picks, dtype=np.int64)
            there = picks[np.isin(picks, result.rows["position"])]
            result.refold_sample(there, event.step, event.position)
    were_live = buffer.rows["position"][buffer.live()]
    are_live = result.rows["position"][result.live()]
    return Rewound(
        result, len(np.setdiff1d(were_live, are_live)), len(np.setdiff1d(are_live, were_live, assume_unique=True))
    )


def _before(
    buffer: ReplayBuffer, step: int, position: int, next_seq: int, behind: Sequence[SampleEvent]
) -> ReplayBuffer:
    """The buffer right before the event at ``position``; ``behind`` are the samples from there on."""
    result = ReplayBuffer(buffer.config, buffer.seed, buffer.rewind_window_steps)
    log = buffer.log.copy()
    log.gaps.cut(step)
    result.log = ReplayLog(
        next_position=log.next_position,
        next_seq=next_seq,
        marks=[mark for mark in log.marks if mark.step < step],
        pushes=[event for event in log.pushes if event.position < position],
        gaps=log.gaps,
    )
    rows = buffer.rows[buffer.rows["position"] < position].copy()
    back = rows["evicted_position"] >= position
    rows["evicted_position"][back] = -1
    rows["evicted_log_step"][back] = -1
    rows["eviction"][back] = Eviction.LIVE
    for event in behind:
        rows["uses"] -= np.isin(rows["position"], event.picks)
    result.insert(rows, {place: buffer.identities[place] for place in rows["position"].tolist()})
    return result


def _push_again(result: ReplayBuffer, source: ReplayBuffer, event: PushEvent) -> None:
    rows = source.rows
    own = rows[(rows["position"] > event.position) & (rows["position"] <= event.position + event.groups)]
    arrivals = []
    for row in own:
        prompt_id, group_id = source.identities[int(row["position"])]
        group = CheckedGroup(
            prompt_id=prompt_id,
            group_id=group_id,
            policy_version=int(row["policy_version"]),
            mean_outcome=float(row["mean_outcome"]),
            informative=bool(row["informative"]),
        )
        arrivals.append(Arrival(group, int(row["nbytes"]), int(row["checksum"])))
    result.apply_push(plan_push(result, arrivals, event.step, event.position, own["position"].tolist()))
    result.log.pushes.append(replace(event, log_step=result.log.step))
