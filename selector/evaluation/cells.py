"""From cells to numbers, texts and embeddings; whoever finds a wrong cell names its column and row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from selector.evaluation.data_file import Columns
from selector.evaluation.errors import DataError

_SHOWN = 40
# Squares and their sums stay in float32 below it; no encoder comes near it.
_LARGEST_COMPONENT = 1e9


def is_numeric(values: Sequence[Any], textual: bool) -> bool:
    """Whether all values that are there are numbers, and there is one."""
    present = [value for value in values if value is not None]
    return bool(present) and all(_number(value, textual) is not None for value in present)


def numbers_of(columns: Columns, name: str) -> np.ndarray:
    """(N,) float64, NaN = missing.

    Raises:
        DataError: a value is no number.
    """
    numbers = np.full(len(columns), np.nan)
    for at, value in enumerate(columns.values[name]):
        if value is None:
            continue
        number = _number(value, columns.textual)
        if number is None:
            raise DataError(
                f"{columns.path}: column {name!r}, {columns.places[at]}: expected a number; got {_shown(value)}"
            )
        numbers[at] = number
    return numbers


def texts_of(columns: Columns, name: str) -> tuple[str, ...]:
    """(N) texts, empty where there is none; chat messages are joined.

    Raises:
        DataError: a value is neither.
    """
    texts = []
    for at, value in enumerate(columns.values[name]):
        text = _text(value)
        if text is None:
            raise DataError(
                f"{columns.path}: column {name!r}, {columns.places[at]}: expected text; got {_shown(value)}"
            )
        texts.append(text)
    return tuple(texts)


def embeddings_of(columns: Columns, name: str) -> np.ndarray:
    """(N, w) float32, a row of zeros where there is none.

    Raises:
        DataError: a value is no list of finite numbers, or widths differ.
    """
    rows: list[np.ndarray | None] = []
    width = 0
    for at, value in enumerate(columns.values[name]):
        if value is None:
            rows.append(None)
            continue
        where = f"{columns.path}: column {name!r}, {columns.places[at]}"
        try:
            row = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            row = np.zeros(0, dtype=np.float32)
        if row.ndim != 1 or not len(row):
            raise DataError(f"{where}: expected a list of numbers; got {_shown(value)}")
        width = width or len(row)
        if len(row) != width:
            raise DataError(f"{where}: expected {width} numbers, as in the rows before; got {len(row)}")
        if not np.isfinite(row).all() or np.abs(row).max() > _LARGEST_COMPONENT:
            raise DataError(f"{where}: expected finite numbers within ±{_LARGEST_COMPONENT:g}; got others")
        rows.append(row)
    if not width:
        raise DataError(f"{columns.path}: column {name!r} is empty")
    return np.stack([np.zeros(width, dtype=np.float32) if row is None else row for row in rows])


def _number(value: Any, textual: bool) -> float | None:
    if isinstance(value, bool | int | float):
        return float(value)
    if textual and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _text(value: Any) -> str | None:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in value):
        return "\n".join(message["content"] for message in value)
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
