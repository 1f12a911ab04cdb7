"""Rows of a run's log as bytes: kind (1 byte), size of the columns (2 bytes), columns, meta."""

from __future__ import annotations

import numpy as np

from selector.config import resolve
from selector.difficulty.registry import estimator_of
from selector.events import (
    PRIORS,
    REPLACEMENT,
    REPORT,
    SELECTION,
    TRAINING,
    EventRow,
    PriorsEvent,
    ReplacementEvent,
    ReportEvent,
    ReportFacts,
    SelectionEvent,
    SelectionFacts,
    TrainingEvent,
    TrainingFacts,
    check_prompts,
    decode,
)
from selector.state import RunState
from tests.fuzz.faults import Fault
from tests.fuzz.hostile_text import hostile_json

_KINDS = (SELECTION, REPORT, TRAINING, REPLACEMENT, "unheard-of", PRIORS)
_POOL = 6
_CONFIG = resolve({"estimator": {"name": "TRACKER"}})


def read(data: bytes) -> None:
    """Decode a row and fold it into the state of a run with six prompts, as loading a run does."""
    head, rest = data[:3].ljust(3, b"\0"), data[3:]
    size = int.from_bytes(head[1:], "little")
    row = EventRow(
        seq=1,
        kind=_KINDS[head[0] % len(_KINDS)],
        step=3 if head[0] < 128 else None,
        purpose=1 + (head[0] >> 6) % 2,
        round=0,
        fingerprint=b"f" * 16,
        columns=rest[:size],
        meta=rest[size:].decode("utf-8", "replace"),
    )
    event = decode(row)
    check_prompts(event, _POOL)
    if event.to_row().columns != row.columns:
        raise Fault("a decoded event is not what was stored", row.kind)
    state = RunState(_CONFIG, estimator_of(_CONFIG, None))
    state.grow(_POOL)
    with np.errstate(all="ignore"):
        state.apply(event)


def seeds() -> list[bytes]:
    """Sound rows of each kind, and the same with strange meta."""
    prompt, two = np.array([1, 4], dtype=np.int32), np.array([0.25, 0.5])
    facts = SelectionFacts(2, 0, 0, 0, False, 2, False, _POOL)
    arm = np.array([1, 2], dtype=np.uint8)
    rows = [
        SelectionEvent(1, 3, 1, 0, b"f" * 16, prompt, np.array([8, 8]), two, two, two, two, arm, facts).to_row(),
        ReportEvent(
            1, 3, 1, prompt, np.array([2, 1]), np.array([0, 1, 0.5]), two, two, arm, ReportFacts(0, 0, 0)
        ).to_row(),
        TrainingEvent(1, 3, TrainingFacts(0.5, None, 0.1, 1), {"entropy": (prompt, two)}).to_row(),
        ReplacementEvent(1, prompt).to_row(),
        PriorsEvent(1, None, prompt, two, np.array([-1, 8])).to_row(),
    ]
    found = []
    for row in rows:
        head = bytes([_KINDS.index(row.kind)]) + len(row.columns).to_bytes(2, "little") + row.columns
        found += [head + meta for meta in hostile_json(row.meta)]
    return found
