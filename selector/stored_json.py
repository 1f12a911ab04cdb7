"""JSON that was stored, read back with the types it was written with.

What is stored was written by the service, but files are damaged, edited and restored from elsewhere. Whatever such a
text holds, reading it ends in a value of the type asked for or in ``ValueError``; values are never converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")


def loads(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"expected JSON text; got {type(text).__name__}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def record(kind: type[_Record], stored: Any) -> _Record:
    """A dataclass of plain values from a mapping of its fields; fields with a default may be missing.

    Raises:
        ValueError: not a mapping, other fields, or a value of another type than the field's.
    """
    if not isinstance(stored, Mapping):
        raise ValueError(f"expected the fields of {kind.__name__}; got {type(stored).__name__}")
    try:
        made = kind(**stored)
    except TypeError as error:
        raise ValueError(f"not the fields of {kind.__name__}: {error}") from error
    check_types(made)
    return made


def check_types(value: object) -> None:
    """Every field of a dataclass holds a value of its type.

    Raises:
        ValueError: one does not; names it.
    """
    kind: Any = type(value)
    for name, hint in _hints(kind).items():
        held = getattr(value, name)
        if not _is(held, hint):
            raise ValueError(f"{kind.__name__}.{name}: expected {_named(hint)}; got {type(held).__name__}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}


def _is(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(value, option) for option in arguments)
    if origin is tuple and arguments[-1] is ...:
        return isinstance(value, tuple) and all(_is(item, arguments[0]) for item in value)
    if origin is tuple:
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(_is(item, kind) for item, kind in zip(value, arguments, strict=True))
        )
    if origin in (list, Sequence):
        return isinstance(value, list) and all(_is(item, arguments[0]) for item in value)
    if is_dataclass(hint):
        if type(value) is not hint:
            return False
        check_types(value)
        return True
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(value) is hint


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
