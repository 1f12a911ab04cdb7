"""Binary forms of what the replay store keeps besides payloads. Numbers are little-endian, except in keys.

Decoding raises ``ValueError`` for anything that encoding cannot have made, to the last byte.

Keys start with the run's id as 8 bytes big-endian, then a position or step as 8 bytes big-endian, so that LMDB's order
of keys is the order of the log.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from selector.replay.history import Mark, PushEvent, SampleEvent
from selector.replay.plans import ROW, Eviction
from selector.stored_json import loads

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_CHECKSUM = struct.Struct("<I")
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


def _of_stored(decoder: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a decoder raise ValueError, and nothing else, for what it cannot decode."""

    @wraps(decoder)
    def decode(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        try:
            return decoder(*arguments, **keywords)
        except (struct.error, KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise ValueError(f"a record of the replay store is damaged ({decoder.__name__}): {error}") from error

    return decode


def sealed(value: bytes) -> bytes:
    """A record as it is stored: with its checksum at the end."""
    return value + _CHECKSUM.pack(zlib.crc32(value))


def unsealed(stored: bytes) -> bytes:
    """A record without its checksum.

    Raises:
        ValueError: it is not what was stored.
    """
    value, checksum = stored[: -_CHECKSUM.size], stored[-_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(zlib.crc32(value)):
        raise ValueError("a record of the replay store does not match its checksum")
    return value


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


@_of_stored
def decode_groups(values: Sequence[bytes]) -> tuple[np.ndarray, dict[int, tuple[str, str]]]:
    """Rows (n,) ROW and position -> ids."""
    size = ROW.itemsize
    rows = np.frombuffer(b"".join(value[:size] for value in values), dtype=ROW).copy()
    if len(rows) and min(int(rows["position"].min()), int(rows["nbytes"].min())) < 0:
        raise ValueError("a position or a size is negative")
    if len(rows) and int(rows["eviction"].max()) >= len(Eviction):
        raise ValueError("an eviction is for no reason that there is")
    # A byte that is neither 0 nor 1 would be true in one place and something else in another.
    if len(rows) and int(rows["informative"].view(np.uint8).max()) > 1:
        raise ValueError("a truth value is none")
    identities: dict[int, tuple[str, str]] = {}
    for position, value in zip(rows["position"].tolist(), values, strict=True):
        (length,) = _LENGTH.unpack_from(value, size)
        start = size + _LENGTH.size
        if start + length > len(value) or position in identities:
            raise ValueError("an id reaches beyond its record, or a position occurs twice")
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


@_of_stored
def decode_sample(value: bytes) -> SampleEvent:
    """The inverse of ``encode_sample``."""
    position, step, fingerprint, requested, eligible, probability, count = _SAMPLE.unpack_from(value)
    picks = np.frombuffer(value, "<i8", count, _SAMPLE.size)
    times = np.frombuffer(value, "<i4", count, _SAMPLE.size + picks.nbytes)
    if len(value) != _SAMPLE.size + picks.nbytes + times.nbytes:
        raise ValueError(f"{count} groups in {len(value)} bytes")
    return SampleEvent(
        position, step, fingerprint, requested, eligible, probability, tuple(picks.tolist()), tuple(times.tolist())
    )


def encode_push(event: PushEvent) -> bytes:
    """An applied push with its request id and answer."""
    request_id = event.request_id.encode()
    sizes = (len(request_id), len(event.fingerprint), len(event.result))
    head = _PUSH.pack(event.position, event.step, event.log_step, event.groups, *sizes)
    return head + request_id + event.fingerprint + event.result


@_of_stored
def decode_push(value: bytes) -> PushEvent:
    """The inverse of ``encode_push``."""
    position, step, log_step, groups, id_size, fingerprint_size, result_size = _PUSH.unpack_from(value)
    ends = np.cumsum([_PUSH.size, id_size, fingerprint_size, result_size]).tolist()
    if len(value) != ends[-1]:
        raise ValueError(f"{ends[-1]} bytes expected; got {len(value)}")
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


@_of_stored
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


@_of_stored
def decode_meta(value: bytes) -> RunMeta:
    """The inverse of ``encode_meta``."""
    stored = loads(value)
    dropped, restored = stored["rewind_result"]
    gaps = tuple((low, high) for low, high in stored["gaps"])
    counters = dict(stored["counters"])
    numbers = [stored[name] for name in ("next_position", "next_seq", "rewind_epoch")]
    for number in (*numbers, dropped, restored, *(bound for gap in gaps for bound in gap), *counters.values()):
        if type(number) is not int:
            raise ValueError(f"expected a whole number; got {number!r}")
    return RunMeta(
        next_position=stored["next_position"],
        next_seq=stored["next_seq"],
        gaps=gaps,
        rewind_epoch=stored["rewind_epoch"],
        rewind_result=(dropped, restored),
        counters=counters,
    )
