"""A state that went through its binary form is the same object in every part, and stays so under what follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from selector.config import resolve
from selector.difficulty.growing import GrowingArray
from selector.difficulty.registry import make_estimator
from selector.difficulty.tiles import LatestValue
from selector.events import (
    REFERENCE,
    TRAIN,
    Event,
    PriorsEvent,
    ReplacementEvent,
    ReportEvent,
    ReportFacts,
    SelectionEvent,
    SelectionFacts,
    TrainingEvent,
    TrainingFacts,
)
from selector.state import RunState
from selector.state_codec import decode, encode

POOL, STEPS, BATCH, ROLLOUTS = 30, 14, 8, 4
_CONFIGS = [
    {},
    {"estimator": {"name": "TRACKER"}},
    {"estimator": {"name": "ATTENTION"}},
    {"estimator": {"name": "ATTENTION"}, "reference": {"mode": "DEDICATED", "size": 6, "every_steps": 2}},
]


def _fresh(explicit: dict[str, Any]) -> RunState:
    config = resolve(explicit)
    estimator = make_estimator(
        config.estimator.name,
        adapter=None,
        reference_mode=config.reference.mode,
        reference_size=config.reference.size,
        tracker_decay=config.estimator.tracker_decay,
        embedding_components=config.estimator.embedding_components,
    )
    state = RunState(config, estimator)
    state.grow(POOL)
    return state


def _events() -> Iterator[Event]:
    """Selections, of which some are reported late, in parts or never; references, signals, priors and a replacement."""
    random = np.random.default_rng(5)
    seq = 0

    def selection(step: int, purpose: int) -> SelectionEvent:
        prompt = np.sort(random.choice(POOL, BATCH, replace=False)).astype(np.int32)
        difficulty = random.random(BATCH)
        facts = SelectionFacts(BATCH, 0, step % 2, step % 3, False, step - 1, step % 5 == 0, POOL)
        return SelectionEvent(
            seq=seq,
            step=step,
            purpose=purpose,
            round=0,
            fingerprint=bytes(32),
            prompt=prompt,
            rollouts=np.full(BATCH, ROLLOUTS, dtype=np.int32),
            difficulty=difficulty,
            standard_error=difficulty / 9,
            population=1 - difficulty,
            probability=difficulty / 3,
            arm=random.integers(1, 4, BATCH).astype(np.uint8),
            facts=facts,
        )

    def report(chosen: SelectionEvent, step: int, part: slice) -> ReportEvent:
        prompt = chosen.prompt[part]
        count = random.integers(0, ROLLOUTS + 1, len(prompt)).astype(np.int32)
        return ReportEvent(
            seq=seq,
            step=step,
            purpose=chosen.purpose,
            prompt=prompt,
            count=count,
            outcomes=random.integers(0, 2, int(count.sum())).astype(np.float64),
            predicted=chosen.difficulty[part],
            population=chosen.population[part],
            arm=chosen.arm[part],
            facts=ReportFacts(1, 2, 3),
        )

    earlier: SelectionEvent | None = None
    for step in range(STEPS):
        for purpose in (TRAIN, REFERENCE) if step % 2 else (TRAIN,):
            seq += 1
            chosen = selection(step, purpose)
            yield chosen
            for part in (slice(0, 3), slice(3, 6)):
                seq += 1
                yield report(chosen, step, part)
        if earlier is not None and step % 3 == 0:
            seq += 1
            yield report(earlier, earlier.step, slice(6, 7))
        if step % 4 == 1:
            seq += 1
            signal = (chosen.prompt, random.random(BATCH))
            yield TrainingEvent(seq, step, TrainingFacts(0.5, None, 0.1, step), {"$entropy": signal})
        if step % 4 == 2:
            seq += 1
            trials = random.integers(-1, 9, BATCH).astype(np.int32)
            yield PriorsEvent(seq, step if step % 8 == 2 else None, chosen.prompt, random.random(BATCH), trials)
        if step % 6 == 4:
            seq += 1
            yield ReplacementEvent(seq, chosen.prompt[:2])
        earlier = chosen


def _plain(value: Any) -> Any:
    """Everything that an object holds, comparable; caches and spare room left out."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, GrowingArray):
        return _plain(value.rows(POOL)[:POOL])
    if isinstance(value, dict):
        return [(key, _plain(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "__dict__") and type(value).__module__.startswith("selector."):
        parts = {name: part for name, part in vars(value).items() if name != "_summary"}
        return [(name, _plain(part)) for name, part in parts.items() if not isinstance(part, LatestValue)]
    return repr(value)


@pytest.mark.parametrize("explicit", _CONFIGS, ids=["fused", "tracker", "attention", "attention-dedicated"])
def test_a_state_that_was_saved_anywhere_is_the_same_in_every_part(explicit: dict[str, Any]) -> None:
    log = list(_events())
    whole = _fresh(explicit)
    for event in log:
        whole.apply(event)
    for cut in (0, 1, 9, 20, len(log) - 1, len(log)):
        first = _fresh(explicit)
        for event in log[:cut]:
            first.apply(event)
        saved = encode(first.state_dict())
        second = _fresh(explicit)
        second.load_state_dict(decode(saved))
        assert _plain(second) == _plain(first), cut
        for event in log[cut:]:
            second.apply(event)
        assert _plain(second) == _plain(whole), cut
        # What follows must not reach into what was saved.
        again = _fresh(explicit)
        again.load_state_dict(decode(saved))
        assert _plain(again) == _plain(first), cut
