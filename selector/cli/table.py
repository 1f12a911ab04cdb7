"""Aligned tables for the terminal, and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    cells = [[_shown(value) for value in row] for row in rows]
    widths = [
        max(len(title), *(len(row[i]) for row in cells)) if cells else len(title) for i, title in enumerate(header)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(header))
    ]

    def line(values: Sequence[str]) -> str:
        padded = (v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """One fact a line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {_shown(value)}" for name, value in pairs)


def size(count: int) -> str:
    """A number of bytes in the unit that reads best."""
    amount, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"


def write_json(path: Path | None, value: Any) -> None:
    """Write dataclasses, arrays and messages as JSON, if a path is given."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(_plain(value), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error}") from error


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Message):
        return MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
