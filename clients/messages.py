"""Requests from what callers hand over: the one place where messages of the protocol are built and arguments checked.

protobuf refuses what does not fit, but in words that name no field, and takes None for 0. Here every refusal is a
``ValueError`` that names the argument, what was expected and what was got. One rule for all messages:

===============  ===================================================================================
whole numbers    integers of Python or numpy, or floats without a fraction, within the field's range
numbers          whatever ``float`` takes, text excepted
yes or no        booleans of Python or numpy
text             strings that UTF-8 can hold
None             unset, where the field can be
===============  ===================================================================================

A boolean is no number, but in arrays of outcomes, where it is a common way to write them. What fits costs a look at
each value's type; protobuf checks the rest, and only once it has refused is the value looked for that it refused.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
# What a field is called in errors: where its message is (empty = it is the call itself), or a function of its name.
Where = str | Callable[[str], str]

_NO_NUMBERS = (bool, np.bool_, str, bytes, bytearray)
_SHOWN = 100
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _SHOWN


def build(kind: type[M], where: Where = "", /, **values: Any) -> M:
    """A message of ``kind`` with these fields.

    Raises:
        ValueError: names the field, what was expected and what was got.
    """
    return _made(kind, kind, where, values)


def add(container: Any, kind: type[M], where: Where = "", /, **values: Any) -> M:
    """As ``build``, in place at the end of a repeated field: the payload is not copied once more."""
    return _made(container.add, kind, where, values)


def fill(message: Message, where: Where = "", /, **values: Any) -> None:
    """Sets fields of a message that is there already, with the errors of ``build``."""

    fields = _kinds(type(message)).fields

    def make(**fitting: Any) -> Message:
        for name, value in fitting.items():
            if fields[name].elements is not None:
                getattr(message, name).extend(value)
            elif hasattr(value, "DESCRIPTOR"):
                getattr(message, name).CopyFrom(value)
            elif value is not None:
                setattr(message, name, value)
        return message

    _made(make, type(message), where, values)


def converted(kind: type[Message], name: str, value: Any, path: str) -> Any:
    """A value that a field of ``kind`` takes, or one element of it where the field is repeated.

    Raises:
        ValueError: there is none; names ``path``.
    """
    return _kinds(kind).fields[name].convert(value, path)


def listed(values: Any, path: str, what: str = "values", ordered: bool = True) -> list[Any]:
    """The elements of any iterable but text and mappings, which would silently stand for letters and keys.

    Args:
        ordered: the order means something, so that a set is refused too.

    Raises:
        ValueError: it is none.
    """
    if isinstance(values, np.ndarray) and values.ndim == 1:
        elements: list[Any] = values.tolist()
        return elements
    if isinstance(values, (str, bytes)):
        raise ValueError(f"{path}: expected a list of {what}, got the string {shown(values)}")
    if isinstance(values, Mapping) or (ordered and isinstance(values, (set, frozenset))):
        raise ValueError(f"{path}: expected a list of {what}, got the {type(values).__name__} {shown(values)}")
    try:
        return list(values)
    except TypeError as error:
        raise ValueError(f"{path}: expected a list of {what}, got {shown(values)}") from error


def array_of(values: Any, path: str, expected: str) -> np.ndarray:
    """What numpy makes of values.

    Raises:
        ValueError: nothing; names ``path``, what was expected and numpy's reason.
    """
    try:
        return np.asarray(values)
    except Exception as error:
        # Ragged lists, tensors on another device: numpy and torch have exceptions of their own.
        raise ValueError(f"{path}: expected {expected}, got {shown(values)} ({error})") from error


def shown(value: Any) -> str:
    """A value as errors show it: shortened, and in ASCII where it holds what UTF-8 cannot."""
    if type(value) is str and len(value) < _SHOWN:
        return repr(value)
    try:
        text = _repr.repr(value)
    except ValueError:
        # Python refuses to write integers of thousands of digits.
        return f"an {type(value).__name__} of very many digits"
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class _Field:
    """What a field takes.

    Attributes:
        elements: types of the elements of a repeated field that are taken as they are; None where it is not repeated.
        convert: checks a value, or one element, and gives it as protobuf takes it.
    """

    elements: frozenset[type] | None
    convert: Callable[[Any, str], Any]

    def fitting(self, value: Any, path: str) -> Any:
        """What protobuf takes in place of a value that is not at once known to fit."""
        if self.elements is None:
            return self.convert(value, path)
        if isinstance(value, (list, tuple)) and self.elements.issuperset(map(type, value)):
            return value
        return _elements(self, value, path)


@dataclass(frozen=True)
class _Kind:
    """A type of message.

    Attributes:
        fields: by name.
        taken: types of values that are taken as they are, by name of the field.
        fitting: names and types of values that were taken before, which makes the next message of the kind cheap.
    """

    fields: dict[str, _Field]
    taken: dict[str, frozenset[type]]
    fitting: set[tuple[Any, ...]]


def _made(make: Callable[..., M], kind: type[Message], where: Where, values: dict[str, Any]) -> M:
    known = _kinds(kind)
    signature = (*values, *map(type, values.values()))
    if signature not in known.fitting:
        _fit(known, where, values, signature)
    try:
        return make(**values)
    except (TypeError, ValueError, OverflowError):
        _blame(known.fields, where, values)
        raise


def _fit(known: _Kind, where: Where, values: dict[str, Any], signature: tuple[Any, ...]) -> None:
    """Puts what protobuf takes in place of values whose types do not show that they fit."""
    unsure = [name for name, value in values.items() if type(value) not in known.taken[name]]
    for name in unsure:
        values[name] = known.fields[name].fitting(values[name], _path(where, name))
    if not unsure:
        known.fitting.add(signature)


def _blame(fields: dict[str, _Field], where: Where, values: dict[str, Any]) -> None:
    """Names the value that protobuf refused."""
    for name, value in values.items():
        field = fields[name]
        if field.elements is None:
            field.convert(value, _path(where, name))
        else:
            _elements(field, value, _path(where, name))


def _elements(field: _Field, values: Any, path: str) -> list[Any]:
    return [field.convert(value, f"{path}[{index}]") for index, value in enumerate(listed(values, path))]


def _path(where: Where, name: str) -> str:
    if not isinstance(where, str):
        return where(name)
    return f"{where}.{name}" if where else name


def _described(kind: Any) -> _Kind:
    empty = kind()
    fields, taken = {}, {}
    for field in kind.DESCRIPTOR.fields:
        fields[field.name], taken[field.name] = _field(field, getattr(empty, field.name))
    return _Kind(fields, taken, set())


def _field(field: Any, default: Any) -> tuple[_Field, frozenset[type]]:
    repeated = not isinstance(default, (bool, int, float, str, bytes, Message))
    if field.message_type is not None:
        # They were built here too.
        kinds: frozenset[type] = frozenset({list} if repeated else {type(default), type(None)})
        return _Field(frozenset() if repeated else None, lambda value, _path: value), kinds
    types, convert = _KINDS[field.type]
    if repeated:
        return _Field(types, convert), frozenset()
    # `optional` is a oneof of one field.
    if field.containing_oneof is not None:
        return _Field(None, _or_none(convert)), types | {type(None)}
    return _Field(None, convert), types


def _or_none(convert: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, path: None if value is None else convert(value, path)


def _integer(bits: int) -> Callable[[Any, str], int]:
    limit = 2 ** (bits - 1)

    def convert(value: Any, path: str) -> int:
        number = _whole(value)
        if number is None:
            raise ValueError(f"{path}: expected a whole number, got {shown(value)}")
        if not -limit <= number < limit:
            raise ValueError(f"{path}: expected a whole number that fits into {bits} bits, got {shown(number)}")
        return number

    return convert


def _whole(value: Any) -> int | None:
    if isinstance(value, _NO_NUMBERS):
        return None
    if isinstance(value, (float, np.floating)):
        return int(value) if float(value).is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(value: Any, path: str) -> float:
    """A value as a float.

    Raises:
        ValueError: it is none; names ``path``.
    """
    try:
        if isinstance(value, _NO_NUMBERS) or (
            isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "iuf"
        ):
            raise TypeError
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{path}: expected a number that fits into a double, got {shown(value)}") from error
    except Exception as error:
        # Arrays and tensors have reasons and exceptions of their own why they are no number.
        raise ValueError(f"{path}: expected a number, got {shown(value)}") from error


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{path}: expected True or False, got {shown(value)}")
    return bool(value)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{path}: expected text, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        got = f"the lone surrogate {value[error.start]!r} at character {error.start}"
        raise ValueError(f"{path}: expected text that UTF-8 can hold, got {got}") from error
    return value


def _bytes(value: Any, path: str) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(f"{path}: expected bytes, got {shown(value)}")
    return bytes(value)


_INT32 = (frozenset({int}), _integer(32))
_KINDS: dict[int, tuple[frozenset[type], Callable[[Any, str], Any]]] = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: (frozenset({int}), _integer(64)),
    FieldDescriptor.TYPE_DOUBLE: (frozenset({float, int}), number),
    FieldDescriptor.TYPE_BOOL: (frozenset({bool}), _boolean),
    FieldDescriptor.TYPE_STRING: (frozenset({str}), _text),
    FieldDescriptor.TYPE_BYTES: (frozenset({bytes}), _bytes),
    # Names of enum values are turned into their numbers before.
    FieldDescriptor.TYPE_ENUM: _INT32,
}
_kinds: Callable[[Any], _Kind] = cache(_described)
