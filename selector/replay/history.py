"""What a run's log of pushes and samples remembers besides the groups: positions, steps and what is gone.

Every event (a push or a recorded sample) takes a position, and so does each group of a push, right behind its event.
Positions are never used twice, not even after a rewind. The log's step is the largest step of its events so far; an
event with a smaller step is *late*. Rewinding to step s leaves the events with step < s, in their order.

Because the log's step only grows, the first event with step >= s is always one that raised it. One ``Mark`` per raise
therefore tells where the log has to be cut, and with which counters it then goes on.

Groups, uses and events whose payload or record was deleted make some rewinds impossible: something that was pushed at
step p and stopped counting when the log was at step e is needed exactly by rewinds to p < s <= e. ``Gaps`` is the union
of these intervals.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


# A run keeps one for each of its steps.
@dataclass(frozen=True, slots=True)
class Mark:
    """An event that raised the log's step.

    Attributes:
        step: the log's step from this event on.
        position: position of the event.
        next_seq: sequence number that the next stored group would have had before this event.
    """

    step: int
    position: int
    next_seq: int


# A run keeps one for each of its latest pushes, more than 10,000.
@dataclass(frozen=True, slots=True)
class PushEvent:
    """A push that was applied.

    Attributes:
        position: its place in the log; group i of the push is at ``position + 1 + i``.
        step: the step it was pushed at.
        log_step: the log's step after it.
        groups: groups in the push, whatever became of them.
        request_id: empty if none was given.
        fingerprint: of the request's content.
        result: its encoded answer.
    """

    position: int
    step: int
    log_step: int
    groups: int
    request_id: str = ""
    fingerprint: bytes = b""
    result: bytes = b""


@dataclass(frozen=True)
class SampleEvent:
    """A sample that was answered.

    Attributes:
        position: its place in the log.
        step: the step it was drawn for; one sample per step.
        fingerprint: of the arguments.
        requested: groups asked for.
        eligible: groups that were eligible.
        probability: with which each of them was taken.
        picks: positions of the groups, in order; none once all of the groups are gone for good.
        times_sampled: per pick, this sample included.
    """

    position: int
    step: int
    fingerprint: bytes
    requested: int
    eligible: int
    probability: float
    picks: tuple[int, ...]
    times_sampled: tuple[int, ...]


@dataclass
class Gaps:
    """Rewind targets that have become impossible: disjoint intervals (low, high] of steps, ascending."""

    intervals: list[tuple[int, int]] = field(default_factory=list)

    def add(self, low: int, high: int) -> None:
        """Make rewinds to low < s <= high impossible; nothing when high <= low."""
        if high <= low:
            return
        apart = [(a, b) for a, b in self.intervals if b < low or a > high]
        touching = [(a, b) for a, b in self.intervals if not (b < low or a > high)]
        merged = (min([low, *(a for a, _ in touching)]), max([high, *(b for _, b in touching)]))
        self.intervals = sorted([*apart, merged])

    def covers(self, step: int) -> bool:
        """Whether a rewind to this step is impossible."""
        return any(low < step <= high for low, high in self.intervals)

    def cut(self, step: int) -> None:
        """Forget what a rewind to this step made irrelevant."""
        self.intervals = [(low, high) for low, high in self.intervals if high < step]


@dataclass
class ReplayLog:
    """Counters and marks of one run's log."""

    next_position: int = 0
    next_seq: int = 0
    marks: list[Mark] = field(default_factory=list)
    pushes: list[PushEvent] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)

    @property
    def step(self) -> int:
        """Largest step of an event so far; -1 before the first."""
        return self.marks[-1].step if self.marks else -1

    def advance(self, step: int, position: int) -> Mark | None:
        """Take an event in; the mark it made, if it raised the log's step. Call before its groups get numbers."""
        if step <= self.step:
            return None
        mark = Mark(step, position, self.next_seq)
        self.marks.append(mark)
        return mark

    def first_at_or_after(self, step: int) -> Mark | None:
        """The first event of the log with at least this step."""
        index = bisect_left(self.marks, step, key=lambda mark: mark.step)
        return self.marks[index] if index < len(self.marks) else None

    def copy(self) -> ReplayLog:
        """An independent copy."""
        gaps = Gaps(list(self.gaps.intervals))
        return ReplayLog(self.next_position, self.next_seq, list(self.marks), list(self.pushes), gaps)
