"""The events of a run and their binary form: fixed little-endian records, so that a log is read at memory speed.

A run's state is the fold of its events in order. Whatever an event needs later is recorded in it: the prediction a
prompt was selected with, for instance, so that folding never has to repeat a past estimate.

Rows have no checksum; decoding takes only bytes that an event of the kind could have been written as, to the last one,
and raises ``ValueError`` for all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from selector.stored_json import loads, record

SELECTION, REPORT, TRAINING, REPLACEMENT = "selection", "report", "training", "replacement"
PRIORS = "priors"

TRAIN, REFERENCE = 1, 2

_SELECTED = np.dtype(
    [
        ("prompt", "<i4"),
        ("rollouts", "<i4"),
        ("difficulty", "<f8"),
        ("standard_error", "<f8"),
        ("population", "<f8"),
        ("probability", "<f8"),
        ("arm", "u1"),
    ]
)

_REPORTED = np.dtype(
    [
        ("prompt", "<i4"),
        ("count", "<i4"),
        ("predicted", "<f8"),
        ("population", "<f8"),
        ("arm", "u1"),
    ]
)

_PRIOR = np.dtype([("prompt", "<i4"), ("trials", "<i4"), ("rate", "<f8")])


@dataclass(frozen=True)
class EventRow:
    """One event as stored; ``columns`` and ``meta`` are read by the kind's decoder."""

    seq: int
    kind: str
    step: int | None
    purpose: int
    round: int
    fingerprint: bytes
    columns: bytes
    meta: str


@dataclass(frozen=True)
class SelectionFacts:
    """What a selection answered besides its columns."""

    batch_size: int
    replay_groups: int
    shortfall: int
    shortfall_reason: int
    reference_due: bool
    estimate_step: int
    degraded: bool
    pool_size: int


@dataclass(frozen=True)
class SelectionEvent:
    """A batch that was handed out; parallel columns, one entry per prompt to roll out.

    Attributes:
        prompt: (F,) int32 index into the pool.
        population: (F,) float64 success rate predicted without the prompt's own outcomes.
    """

    seq: int
    step: int
    purpose: int
    round: int
    fingerprint: bytes
    prompt: np.ndarray
    rollouts: np.ndarray
    difficulty: np.ndarray
    standard_error: np.ndarray
    population: np.ndarray
    probability: np.ndarray
    arm: np.ndarray
    facts: SelectionFacts

    def to_row(self) -> EventRow:
        """Binary form."""
        table = np.empty(len(self.prompt), dtype=_SELECTED)
        for name in _SELECTED.names or ():
            table[name] = getattr(self, name)
        meta = json.dumps(asdict(self.facts))
        return EventRow(
            self.seq, SELECTION, self.step, self.purpose, self.round, self.fingerprint, table.tobytes(), meta
        )

    @staticmethod
    def from_row(row: EventRow) -> SelectionEvent:
        """Inverse of ``to_row``."""
        table = np.frombuffer(row.columns, dtype=_SELECTED)
        columns = {name: table[name] for name in _SELECTED.names or ()}
        facts = record(SelectionFacts, loads(row.meta))
        return SelectionEvent(
            seq=row.seq,
            step=_step(row),
            purpose=row.purpose,
            round=row.round,
            fingerprint=row.fingerprint,
            facts=facts,
            **columns,
        )


@dataclass(frozen=True)
class ReportFacts:
    """Counts of what was left out of a report's groups."""

    skipped_rollouts: int
    dropped_rollouts: int
    clipped_outcomes: int


@dataclass(frozen=True)
class ReportEvent:
    """Outcomes of rolled-out prompts; parallel columns, one entry per prompt.

    Attributes:
        prompt: (M,) int32 index into the pool.
        count: (M,) int32 rollouts that counted, possibly 0.
        outcomes: (sum of count,) float64 in [0, 1], in order of the prompts.
        predicted: (M,) float64 difficulty predicted before the outcome was seen, NaN = none.
        population: (M,) float64 success rate predicted without own outcomes, NaN = none.
        arm: (M,) uint8 of the selection the outcomes belong to, 0 = none.
    """

    seq: int
    step: int
    purpose: int
    prompt: np.ndarray
    count: np.ndarray
    outcomes: np.ndarray
    predicted: np.ndarray
    population: np.ndarray
    arm: np.ndarray
    facts: ReportFacts

    def to_row(self) -> EventRow:
        """Binary form."""
        table = np.empty(len(self.prompt), dtype=_REPORTED)
        for name in _REPORTED.names or ():
            table[name] = getattr(self, name)
        columns = np.int64(len(table)).tobytes() + table.tobytes() + self.outcomes.astype("<f8").tobytes()
        return EventRow(self.seq, REPORT, self.step, self.purpose, 0, b"", columns, json.dumps(asdict(self.facts)))

    @staticmethod
    def from_row(row: EventRow) -> ReportEvent:
        """Inverse of ``to_row``."""
        size = int(np.frombuffer(row.columns, dtype="<i8", count=1)[0])
        if not 0 <= size <= len(row.columns):
            raise ValueError(f"{size} groups in {len(row.columns)} bytes")
        table = np.frombuffer(row.columns, dtype=_REPORTED, count=size, offset=8)
        outcomes = np.frombuffer(row.columns, dtype="<f8", offset=8 + table.nbytes)
        columns = {name: table[name] for name in _REPORTED.names or ()}
        # As Python's numbers, since counts that are damaged may add up to anything.
        counts = table["count"].tolist()
        if min(counts, default=0) < 0 or sum(counts) != len(outcomes):
            raise ValueError(f"{len(outcomes)} outcomes do not belong to groups of {counts[:20]}")
        if not ((outcomes >= 0) & (outcomes <= 1)).all():
            raise ValueError("outcomes are outside [0, 1]")
        facts = record(ReportFacts, loads(row.meta))
        return ReportEvent(seq=row.seq, step=_step(row), purpose=row.purpose, outcomes=outcomes, facts=facts, **columns)

    def starts(self) -> np.ndarray:
        """(M + 1,) int64 bounds of each prompt's outcomes."""
        return np.concatenate([[0], np.cumsum(self.count, dtype=np.int64)])


@dataclass(frozen=True)
class TrainingFacts:
    """What the trainer saw in a step; None = not reported."""

    effective_sample_size: float | None
    max_importance_weight: float | None
    clip_fraction: float | None
    updates: int | None


@dataclass(frozen=True)
class TrainingEvent:
    """A training report: facts, and signals of the current policy.

    Attributes:
        signals: name -> (prompt (n,) int32, value (n,) float64).
    """

    seq: int
    step: int
    facts: TrainingFacts
    signals: dict[str, tuple[np.ndarray, np.ndarray]]

    def to_row(self) -> EventRow:
        """Binary form."""
        parts: list[bytes] = []
        sizes = []
        for name, (prompt, value) in self.signals.items():
            sizes.append([name, len(prompt)])
            parts += [prompt.astype("<i4").tobytes(), value.astype("<f8").tobytes()]
        meta = json.dumps({"facts": asdict(self.facts), "signals": sizes})
        return EventRow(self.seq, TRAINING, self.step, TRAIN, 0, b"", b"".join(parts), meta)

    @staticmethod
    def from_row(row: EventRow) -> TrainingEvent:
        """Inverse of ``to_row``."""
        meta = loads(row.meta)
        facts = record(TrainingFacts, meta["facts"])
        signals = {}
        at = 0
        for name, size in meta["signals"]:
            if type(name) is not str or type(size) is not int or size < 0 or name in signals:
                raise ValueError(f"{name!r} of size {size!r} is no signal")
            prompt = np.frombuffer(row.columns, dtype="<i4", count=size, offset=at)
            value = np.frombuffer(row.columns, dtype="<f8", count=size, offset=at + prompt.nbytes)
            signals[name] = (prompt, value)
            at += prompt.nbytes + value.nbytes
        if at != len(row.columns):
            raise ValueError(f"{len(row.columns)} bytes for signals that take {at}")
        return TrainingEvent(row.seq, _step(row), facts, signals)


@dataclass(frozen=True)
class ReplacementEvent:
    """Prompts whose content was replaced: what was known about them no longer holds. Belongs to no step."""

    seq: int
    prompt: np.ndarray

    def to_row(self) -> EventRow:
        """Binary form."""
        return EventRow(self.seq, REPLACEMENT, None, 0, 0, b"", self.prompt.astype("<i4").tobytes(), "{}")

    @staticmethod
    def from_row(row: EventRow) -> ReplacementEvent:
        """Inverse of ``to_row``."""
        return ReplacementEvent(row.seq, np.frombuffer(row.columns, dtype="<i4"))


@dataclass(frozen=True)
class PriorsEvent:
    """Priors of registered prompts; parallel columns, one entry per prompt.

    Attributes:
        step: the step that a rewind drops it with, None = it belongs to no step.
        rate: (n,) float64 in [0, 1], success rate under another model.
        trials: (n,) int32 behind it, 0 = no prior, -1 = the prior that the prompt was registered with.
    """

    seq: int
    step: int | None
    prompt: np.ndarray
    rate: np.ndarray
    trials: np.ndarray

    def to_row(self) -> EventRow:
        """Binary form."""
        table = np.empty(len(self.prompt), dtype=_PRIOR)
        for name in _PRIOR.names or ():
            table[name] = getattr(self, name)
        return EventRow(self.seq, PRIORS, self.step, 0, 0, b"", table.tobytes(), "{}")

    @staticmethod
    def from_row(row: EventRow) -> PriorsEvent:
        """Inverse of ``to_row``."""
        table = np.frombuffer(row.columns, dtype=_PRIOR)
        if not ((table["rate"] >= 0) & (table["rate"] <= 1)).all():
            raise ValueError("rates are outside [0, 1]")
        if not (table["trials"] >= -1).all():
            raise ValueError("numbers of trials are below -1")
        step = None if row.step is None else _step(row)
        return PriorsEvent(row.seq, step, table["prompt"], table["rate"], table["trials"])


Event = SelectionEvent | ReportEvent | TrainingEvent | ReplacementEvent | PriorsEvent

_DECODERS: dict[str, Callable[[EventRow], Event]] = {
    SELECTION: SelectionEvent.from_row,
    REPORT: ReportEvent.from_row,
    TRAINING: TrainingEvent.from_row,
    REPLACEMENT: ReplacementEvent.from_row,
    PRIORS: PriorsEvent.from_row,
}


def decode(row: EventRow) -> Event:
    """The event of a row.

    Raises:
        ValueError: the row is not what an event is stored as.
    """
    try:
        return _DECODERS[row.kind](row)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"event {row.seq} of kind {row.kind!r} is damaged: {error}") from error


def check_prompts(event: Event, pool: int) -> None:
    """The event is about prompts of a pool of this size.

    Raises:
        ValueError: it is about others. As an index, a negative number would stand for a prompt from the end.
    """
    columns = [prompt for prompt, _ in event.signals.values()] if isinstance(event, TrainingEvent) else [event.prompt]
    for prompt in columns:
        if len(prompt) and not 0 <= int(prompt.min()) <= int(prompt.max()) < pool:
            raise ValueError(f"event {event.seq} is about prompts that are not among the {pool} of the pool")


def _step(row: EventRow) -> int:
    if type(row.step) is not int:
        raise ValueError("it has no step")
    return row.step
