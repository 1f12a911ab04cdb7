"""Binary forms of what the replay store keeps besides payloads. Numbers are little-endian, except in keys.

Keys start with the run's id as 8 bytes big-endian, then a position or step as 8 bytes big-endian, so that LMDB's order
of keys is the order of the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selector.replay.history import Mark, PushEvent, SampleEvent
from selector.replay.plans import ROW

_RUN = struct.Struct(">Q")
_KEY = struct.Struct(">QQ")
_LENGTH = struct.Struct("<H")
_SAMPLE = struct.Struct("<qq16sqqdI")
_PUSH = struct.Struct("<qqqqIII")
_MARK = struct.Struct("<qqq")


@dataclass(frozen=True)
class RunMeta:
    """What a run keeps besides its groups and events.

    Attributes:
        next_position: of the log.
        next_seq: of the log.
        gaps: rewinds that are impossible.
        rewind_epoch: number of the last rewind applied; 0 before the first.
        rewind_result: (dropped, restored) of that rewind.
        counters: what happened since the run began, rewinds notwithstanding.
    """

    next_position: int = 0
    next_seq: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    rewind_epoch: int = 0
    rewind_result: tuple[int, int] = (0, 0)
    counters: Mapping[str, int] = field(default_factory=dict)


def run_prefix(run: int) -> bytes:
    """What every key of a run starts with."""
    return _RUN.pack(run)


def run_of(stored: bytes) -> int:
    """The run that a key belongs to."""
    (run,) = _RUN.unpack_from(stored)
    return int(run)


def key(run: int, number: int) -> bytes:
    """Key of a run's position or step."""
    return _KEY.pack(run, number)


def encode_groups(rows: np.ndarray, identities: Mapping[int, tuple[str, str]]) -> list[bytes]:
    """Rows of the buffer with their ids; uses follow from the samples and are stored as 0."""
    plain = rows.copy()
    plain["uses"] = 0
    content, size = plain.tobytes(), ROW.itemsize
    values = []
    for index, position in enumerate(rows["position"].tolist()):
        prompt_id, group_id = (text.encode() for text in identities[position])
        values.append(
            b"".join((content[index * size : (index + 1) * size], _LENGTH.pack(len(prompt_id)), prompt_id, group_id))
        )
    return values


def decode_groups(values: Sequence[bytes]) -> tuple[np.ndarray, dict[int, tuple[str, str]]]:
    """Rows (n,) ROW and position -> ids."""
    size = ROW.itemsize
    rows = np.frombuffer(b"".join(value[:size] for value in values), dtype=ROW).copy()
    identities = {}
    for position, value in zip(rows["position"].tolist(), values, strict=True):
        (length,) = _LENGTH.unpack_from(value, size)
        start = size + _LENGTH.size
        identities[position] = (value[start : start + length].decode(), value[start + length :].decode())
    return rows, identities


def encode_sample(event: SampleEvent) -> bytes:
    """A recorded sample."""
    head = _SAMPLE.pack(
        event.position,
        event.step,
        event.fingerprint,
        event.requested,
        event.eligible,
        event.probability,
        len(event.picks),
    )
    return head + np.asarray(event.picks, "<i8").tobytes() + np.asarray(event.times_sampled, "<i4").tobytes()


def decode_sample(value: bytes) -> SampleEvent:
    """The inverse of ``encode_sample``."""
    position, step, fingerprint, requested, eligible, probability, count = _SAMPLE.unpack_from(value)
    picks = np.frombuffer(value, "<i8", count, _SAMPLE.size)
    times = np.frombuffer(value, "<i4", count, _SAMPLE.size + picks.nbytes)
    return SampleEvent(
        position, step, fingerprint, requested, eligible, probability, tuple(picks.tolist()), tuple(times.tolist())
    )


def encode_push(event: PushEvent) -> bytes:
    """An applied push with its request id and answer."""
    request_id = event.request_id.encode()
    sizes = (len(request_id), len(event.fingerprint), len(event.result))
    head = _PUSH.pack(event.position, event.step, event.log_step, event.groups, *sizes)
    return head + request_id + event.fingerprint + event.result


def decode_push(value: bytes) -> PushEvent:
    """The inverse of ``encode_push``."""
    position, step, log_step, groups, id_size, fingerprint_size, result_size = _PUSH.unpack_from(value)
    ends = np.cumsum([_PUSH.size, id_size, fingerprint_size, result_size]).tolist()
    return PushEvent(
        position=position,
        step=step,
        log_step=log_step,
        groups=groups,
        request_id=value[ends[0] : ends[1]].decode(),
        fingerprint=value[ends[1] : ends[2]],
        result=value[ends[2] : ends[3]],
    )


def encode_mark(mark: Mark) -> bytes:
    """A mark of the log."""
    return _MARK.pack(mark.step, mark.position, mark.next_seq)


def decode_mark(value: bytes) -> Mark:
    """The inverse of ``encode_mark``."""
    return Mark(*_MARK.unpack(value))


def encode_meta(meta: RunMeta) -> bytes:
    """A run's counters."""
    return json.dumps(
        {
            "next_position": meta.next_position,
            "next_seq": meta.next_seq,
            "gaps": meta.gaps,
            "rewind_epoch": meta.rewind_epoch,
            "rewind_result": meta.rewind_result,
            "counters": dict(meta.counters),
        }
    ).encode()


def decode_meta(value: bytes) -> RunMeta:
    """The inverse of ``encode_meta``."""
    stored = json.loads(value)
    return RunMeta(
        next_position=stored["next_position"],
        next_seq=stored["next_seq"],
        gaps=tuple((low, high) for low, high in stored["gaps"]),
        rewind_epoch=stored["rewind_epoch"],
        rewind_result=(stored["rewind_result"][0], stored["rewind_result"][1]),
        counters=stored["counters"],
    )
