"""Groups of a sample, read from disk piece by piece and checked against what was acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selector.replay.answers import Sample, SampledGroup
from selector.replay.buffer import ReplayBuffer
from selector.replay.checksum import crc32
from selector.replay.errors import PayloadCorrupt, RewindBeyondHistory
from selector.replay.store import ReplayStore

# Counted for each group besides its payload: ids, age, probability.
ACCOMPANYING_BYTES = 512


def gone(step: int) -> RewindBeyondHistory:
    """The error about a sample whose groups are not all there."""
    return RewindBeyondHistory(f"the sample of step {step} cannot be returned: groups of it have gone since")


def check_there(buffer: ReplayBuffer, step: int, positions: Sequence[int]) -> None:
    """Groups of a step's sample are there, be it as tombstones.

    Raises:
        RewindBeyondHistory: some are not.
    """
    if any(position not in buffer.identities for position in positions):
        raise gone(step)


def read_groups(
    store: ReplayStore, run: int, buffer: ReplayBuffer, sample: Sample, start: int, max_bytes: int
) -> tuple[SampledGroup, ...]:
    """See ``ReplayRun.read``."""
    positions = sample.positions[start : start + max(1, max_bytes // ACCOMPANYING_BYTES)]
    check_there(buffer, sample.step, positions)
    rows = buffer.rows[buffer.find(positions)]
    fitting = max(1, int((np.cumsum(rows["nbytes"] + ACCOMPANYING_BYTES) <= max_bytes).sum()))
    payloads = store.payloads(run, positions[:fitting])
    times = sample.times_sampled[start : start + fitting]
    columns = zip(positions[:fitting], times, rows[:fitting], payloads, strict=True)
    return tuple(_checked(buffer, sample, *column) for column in columns)


def _checked(
    buffer: ReplayBuffer, sample: Sample, position: int, times_sampled: int, row: np.void, payload: bytes | None
) -> SampledGroup:
    prompt_id, group_id = buffer.identities[position]
    if payload is None:
        raise PayloadCorrupt(prompt_id, group_id, "it is missing")
    if len(payload) != row["nbytes"] or crc32(payload) != row["checksum"]:
        raise PayloadCorrupt(prompt_id, group_id, f"its {len(payload)} bytes do not match their checksum")
    age = sample.step - int(row["policy_version"])
    return SampledGroup(payload, prompt_id, group_id, age, times_sampled, sample.probability)
