"""Checksums of rows: SQLite notices a page that makes no sense, but not a value that has become another one.

A row's checksum is written with it and compared whenever the row is read. A row without one was written before there
were any. The run's number is left out, since forks copy rows as they are.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from selector.errors import ServiceError
from selector.v1.reasons import Reason

_REAL = struct.Struct("<d")
# Statuses of prompts are smaller; they are kept beside the rest, which does not change with them.
STATUSES = 8


def row_checksum(values: Sequence[Any]) -> int:
    """Of the values of a row, as they are stored."""
    checksum = 0
    for value in values:
        checksum = zlib.crc32(_encoded(value), checksum)
    return checksum


def prompt_checksum(idx: int, values: tuple[Any, ...]) -> int:
    """Of a prompt, the values of a ``PromptRecord``. There are millions, so they are not taken value by value.

    A prior that is stored as NULL may come as None or NaN.
    """
    prompt_id, content, text, row, domain, tokens, prior, trials, status, reason, twins = values
    rate = None if prior is None or math.isnan(prior) else float(prior)
    rest = f"{idx}\x1f{prompt_id}\x1f{text}\x1f{row}\x1f{domain}\x1f{tokens}\x1f{rate}\x1f{trials}\x1f{reason}"
    # Left out where there is none, as rows had none when checksums began.
    if twins:
        rest += f"\x1f{twins}"
    checksum: int = zlib.crc32(rest.encode(), zlib.crc32(content)) * STATUSES + status
    return checksum


def check_row(stored: int | None, computed: int, what: str) -> None:
    """Refuse a row that is not what was written; ``stored`` None = it has no checksum.

    Raises:
        ServiceError: STORAGE_FAILED, naming the row.
    """
    if stored is not None and stored != computed:
        raise damaged(what)


def damaged(what: str) -> ServiceError:
    """The error about a row that is not what was written."""
    return ServiceError(
        Reason.STORAGE_FAILED, f"state.db is damaged: {what} does not match its checksum; restore a backup"
    )


def _encoded(value: Any) -> bytes:
    """With its kind and length, so that nothing can pass from one value to the next."""
    if isinstance(value, str):
        value, kind = value.encode(), b"s"
    elif isinstance(value, bytes):
        kind = b"b"
    elif value is None:
        value, kind = b"", b"n"
    # A column of reals gives back 1.0 for the 1 that was put in.
    elif isinstance(value, float) and not value.is_integer():
        value, kind = _REAL.pack(value), b"r"
    else:
        value, kind = b"%d" % int(value), b"i"
    return b"%b%d:%b" % (kind, len(value), value)
