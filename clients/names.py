"""Names of the protocol's enums without their prefix: ``"LEARNABLE"`` for ``SCORE_LEARNABLE``.

Enum types are passed as protobuf enum wrappers, such as ``selector_service_pb2.Arm``.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from clients.messages import shown

_ZERO = "UNSPECIFIED"


def short_names(descriptor: Any) -> dict[str, int]:
    """Short name -> number, of all values of an enum descriptor, UNSPECIFIED included."""
    prefix = _prefix(descriptor)
    return {value.name[len(prefix) :]: value.number for value in descriptor.values}


def short_name(descriptor: Any, number: int) -> str | None:
    """Short name of a value, None for UNSPECIFIED, the number's digits for a value this client does not know."""
    if number == 0:
        return None
    value = descriptor.values_by_number.get(number)
    return str(number) if value is None else value.name[len(_prefix(descriptor)) :]


def enum_number(descriptor: Any, value: str | int, path: str) -> Any:
    """Number of a value given by name (with or without prefix, any case) or by number.

    Typed as Any, because stubs give every enum a type of its own.

    Raises:
        ValueError: no such value; names ``path`` and near matches.
    """
    names = short_names(descriptor)
    if isinstance(value, int) and not isinstance(value, bool) and value in names.values():
        return value
    if isinstance(value, str):
        name = value.strip().upper().replace("-", "_").removeprefix(_prefix(descriptor))
        if name in names:
            return names[name]
    allowed = [name for name in names if name != _ZERO]
    raise ValueError(f"{path}: expected one of {', '.join(allowed)}, got {shown(value)}{_near(value, allowed)}")


def did_you_mean(word: str, known: list[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing when no known word is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=2)
    return f" (did you mean {' or '.join(repr(by_lower[name]) for name in near)}?)" if near else ""


def _near(value: Any, known: list[str]) -> str:
    return did_you_mean(value, known) if isinstance(value, str) else ""


def _prefix(descriptor: Any) -> str:
    return str(descriptor.values_by_number[0].name).removesuffix(_ZERO)
