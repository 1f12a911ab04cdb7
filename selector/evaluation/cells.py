"""From cells to numbers, texts and embeddings; whoever finds a wrong cell names its column and row."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from selector.evaluation.data_file import Columns
from selector.evaluation.errors import DataError

MOST_TRIALS = 100_000_000
"""Rollouts behind one rate: far beyond any measurement, and few enough to be drawn from without replacement."""

_SHOWN = 40
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _SHOWN
# Squares and their sums stay in float32 below it; no encoder comes near it.
_LARGEST_COMPONENT = 1e9


def wrong_cell(columns: Columns, name: str, at: int, expected: str, hint: str = "") -> DataError:
    """The error of a cell that does not hold what was expected."""
    value = columns.values[name][at]
    got = "nothing" if value is None or value == "" else _shown(value)
    return DataError(f"{columns.path}: column {name!r}, {columns.places[at]}: expected {expected}; got {got}{hint}")


def readings_of(columns: Columns, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) float64 numbers, NaN where there is none; and (N,) bool, a value that is no number is there."""
    numbers = np.full(len(columns), np.nan)
    others = np.zeros(len(columns), dtype=bool)
    for at, value in enumerate(columns.values[name]):
        if value is None:
            continue
        number = _number(value, columns.textual)
        if number is None:
            others[at] = True
        else:
            numbers[at] = number
    return numbers, others


def numbers_of(columns: Columns, name: str, low: float, high: float) -> np.ndarray:
    """(N,) float64 in [low, high], NaN = missing.

    Raises:
        DataError: a value is no such number.
    """
    return _checked(columns, name, low, high, f"a number in [{low:g}, {high:g}]", whole=False)


def whole_numbers_of(columns: Columns, name: str, low: int, high: int) -> np.ndarray:
    """(N,) float64 whole numbers in [low, high], NaN = missing.

    Raises:
        DataError: a value is no such number.
    """
    return _checked(columns, name, low, high, f"a whole number in [{low}, {high}]", whole=True)


def choices_of(columns: Columns, name: str, choices: Sequence[str]) -> list[str | None]:
    """(N) of the choices, None = missing.

    Raises:
        DataError: a value is none of them.
    """
    found: list[str | None] = []
    for at, value in enumerate(columns.values[name]):
        if value is None or value == "":
            found.append(None)
        elif value in choices:
            found.append(value)
        else:
            raise wrong_cell(columns, name, at, f"one of {', '.join(choices)}")
    return found


def ids_of(columns: Columns, name: str) -> tuple[str, ...]:
    """(N) ids, which may occur several times.

    Raises:
        DataError: an id is missing, or is a list or an object.
    """
    ids = []
    for at, value in enumerate(columns.values[name]):
        if value is None or value == "" or isinstance(value, list | dict):
            raise wrong_cell(columns, name, at, "an id")
        ids.append(str(value))
    return tuple(ids)


def texts_of(columns: Columns, name: str) -> tuple[str, ...]:
    """(N) texts, empty where there is none; chat messages are joined.

    Raises:
        DataError: a value is neither.
    """
    texts = []
    for at, value in enumerate(columns.values[name]):
        text = _text(value)
        if text is None:
            raise wrong_cell(columns, name, at, "text")
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
        row = list_of_numbers(value)
        if row is None:
            raise wrong_cell(columns, name, at, "a list of numbers")
        width = width or len(row)
        if len(row) != width:
            raise DataError(f"{where}: expected {width} numbers, as in the rows before; got {len(row)}")
        if not np.isfinite(row).all() or np.abs(row).max() > _LARGEST_COMPONENT:
            raise DataError(f"{where}: expected finite numbers within ±{_LARGEST_COMPONENT:g}; got others")
        rows.append(row.astype(np.float32))
    if not width:
        raise DataError(f"{columns.path}: column {name!r} is empty")
    return np.stack([np.zeros(width, dtype=np.float32) if row is None else row for row in rows])


def list_of_numbers(value: Any) -> np.ndarray | None:
    """(n,) float64, infinite where a number is beyond it; None if the value is no list of numbers, or an empty one."""
    if not isinstance(value, list) or not value or any(isinstance(item, str) for item in value):
        return None
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except OverflowError:
        # An integer of more than 308 digits; what stands beside it may be anything.
        each = [_number(item, textual=False) for item in value]
        return None if None in each else np.array(each, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return numbers if numbers.ndim == 1 else None


def _checked(columns: Columns, name: str, low: float, high: float, expected: str, whole: bool) -> np.ndarray:
    numbers, others = readings_of(columns, name)
    right = (numbers >= low) & (numbers <= high)
    if whole:
        right &= numbers == np.floor(numbers)
    wrong = np.flatnonzero(others | (~np.isnan(numbers) & ~right))
    if len(wrong):
        raise wrong_cell(columns, name, int(wrong[0]), expected)
    return numbers


def _number(value: Any, textual: bool) -> float | None:
    if isinstance(value, bool | int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
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
    if isinstance(value, bool | int | float | Decimal):
        return str(value)
    if isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in value):
        return "\n".join(message["content"] for message in value)
    return None


def _shown(value: Any) -> str:
    # Not repr: a cell may be nested too deep for it.
    text = _SHORT.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
