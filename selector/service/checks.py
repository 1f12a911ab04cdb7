"""Checks of form at the edge: types, ranges and encodings that need no state. Each names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import Message

from selector.errors import invalid
from selector.ranges import LARGEST_STEP
from selector.requests import RequestKey
from selector.service.fingerprint import fingerprint
from selector.v1.reasons import Reason

_RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_LONGEST_ID_BYTES = 256


def run_id(value: str, field: str = "run_id") -> str:
    """A run id."""
    if not _RUN_ID.fullmatch(value):
        raise invalid(field, f"expected [A-Za-z0-9._-]{{1,128}}; got {value[:140]!r}")
    return value


def name(value: str, field: str) -> str:
    """A short name, as of a signal."""
    if not _NAME.fullmatch(value):
        raise invalid(field, f"expected [A-Za-z0-9._-]{{1,64}}; got {value[:80]!r}")
    return value


def identifier(value: str, field: str) -> str:
    """A prompt or group id."""
    size = len(value.encode())
    if not 1 <= size <= _LONGEST_ID_BYTES:
        raise invalid(field, f"expected 1 to {_LONGEST_ID_BYTES} bytes of UTF-8; got {size}")
    return value


def at_most_bytes(value: str, limit: int, field: str) -> str:
    """A text of bounded size."""
    size = len(value.encode())
    if size > limit:
        raise invalid(field, f"expected at most {limit} bytes of UTF-8; got {size}")
    return value


def step(value: int, field: str = "step") -> int:
    """A step of the trainer."""
    return between(value, 0, LARGEST_STEP, field)


def between(value: int, low: int, high: int, field: str) -> int:
    """An integer in [low, high]."""
    if not low <= value <= high:
        raise invalid(field, f"expected an integer in [{low}, {high}]; got {value}")
    return value


def real_between(value: float, low: float, high: float, field: str) -> float:
    """A finite number in [low, high]."""
    if not (math.isfinite(value) and low <= value <= high):
        limit = f"in [{low:g}, {high:g}]" if math.isfinite(high) else f">= {low:g}"
        raise invalid(field, f"expected a finite number {limit}; got {value}")
    return value


def choice(message: Message, field: str) -> int:
    """The number of an enum field; numbers the schema does not know are refused."""
    number = int(getattr(message, field))
    enum: Any = message.DESCRIPTOR.fields_by_name[field].enum_type
    return known(enum.values_by_number, number, field)


def known(numbers: Iterable[int], number: int, field: str) -> int:
    """One of the numbers of an enum."""
    if number not in numbers:
        raise invalid(field, f"expected one of {sorted(numbers)}; got {number}")
    return number


def distinct_prompts(prompt_ids: Sequence[str], field: str, suffix: str = "") -> None:
    """No prompt occurs twice."""
    if len(set(prompt_ids)) == len(prompt_ids):
        return
    seen: dict[str, int] = {}
    for i, prompt_id in enumerate(prompt_ids):
        if prompt_id in seen:
            description = f"expected each prompt once; got {prompt_id!r} here and at {field}[{seen[prompt_id]}]"
            raise invalid(f"{field}[{i}]{suffix}", description, Reason.DUPLICATE_PROMPT)
        seen[prompt_id] = i


def shard(message: Message) -> tuple[int, int]:
    """(index, count) of the caller's part; (0, 1) = everything."""
    if not message.HasField("shard"):
        return 0, 1
    asked = message.shard  # type: ignore[attr-defined]
    count = between(asked.count, 1, 1_000_000, "shard.count")
    return between(asked.index, 0, count - 1, "shard.index"), count


def request_id(message: Message) -> str:
    """The request id; empty = none."""
    return at_most_bytes(message.request_id, _LONGEST_ID_BYTES, "request_id")  # type: ignore[attr-defined]


def request_key(message: Message, method: str, rest: bytes = b"") -> RequestKey:
    """Key of a mutating request: its id, and a fingerprint of everything else.

    Args:
        rest: further content, of a stream whose first message this is.
    """
    return RequestKey(request_id(message), method, fingerprint(message, rest))
