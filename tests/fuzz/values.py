"""Values that services stumble over, as hypothesis strategies by protobuf field.

A field's strategy mixes values that make sense in the world of ``tests.fuzz.world`` (known ids, small steps) with
hostile ones of its type. It follows from the descriptor, so a new field is fuzzed without being mentioned here.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

INTEGERS = (0, 1, -1, 2, 3, 8, 100, 255, 256, 65_536, 10**6, 10**6 + 1, 2**31 - 1, -(2**31))
LONG_INTEGERS = (*INTEGERS, 2**31, 2**32, 2**53 - 2, 2**53 - 1, 2**53, 2**62, 2**63 - 1, -(2**63))
REALS = (
    *(0.0, -0.0, 0.25, 0.5, 1.0, -1.0, 2.0, 1e-9, 1e-300, 1e300, 1.7976931348623157e308, -1.7976931348623157e308),
    *(5e-324, -5e-324, 2.2250738585072014e-308, math.nan, math.inf, -math.inf, 1.0000001, -1e-7),
)
TEXTS = (
    *("", " ", "a", "p0", "p1", "..", "../../etc/passwd", "/dev/zero", "a/b", "a\\b", "a\nb", "\r\n", "a\0b", "\0"),
    *("x" * 64, "x" * 65, "x" * 128, "x" * 129, "x" * 256, "x" * 257, "ü" * 128, "ü" * 129, "😀" * 64, "😀" * 5000),
    *("\u202eoverride", "\ufeff", "\uffff", "e\u0301", "İ", "％", "%s%n%00", "{0}", "$array", "'; DROP TABLE runs;--"),
    *("NaN", "-1", "1e999", "null", "None", "x" * 20_000, "\x7f\x1b[31m", "9" * 300, "٣", "०"),
)
_LENGTHS = (16, 300, 4000)
# Of messages, which may hold lists themselves.
_FEW = (2, 16, 100)
# Field 2047, which no message has: length-delimited, varint and 64-bit.
UNKNOWN_FIELDS = (b"\xfa\x7f\x03abc", b"\xf8\x7f\x01", b"\xf9\x7f12345678")


def _floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


BYTES = (
    *(b"", b"\0", b"\1\1\1", b"\1\0\1", b"\2\0\1", b"\xff" * 3, b"\0" * 12, b"\x80\x04N.", b"abc" * 1000, b"\0" * 4000),
    *(_floats(-0.5, -0.25, -1.0), _floats(-0.5, math.nan, -1.0), _floats(-0.5, math.inf, -math.inf), _floats(0, 1, 2)),
    *(_floats(1, 2, 3, 4), _floats(5e-324, -1e-40, 1e-39, 3.4e38), _floats(3.4e38, 3.4e38, -3.4e38, 1e20)),
    *(_floats(0, 0, 0, 0), _floats(1, 0, math.nan, 0), _ints(1, 2, 3), _ints(-1, 2**31 - 1, -(2**31))),
)

_BOUNDS = {Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1)}


class Known:
    """Values that exist in the world, by field name.

    Attributes:
        values: field name -> values.
    """

    def __init__(self, values: dict[str, tuple[Any, ...]]) -> None:
        self.values = values
        self._strategies: dict[str, st.SearchStrategy[Any]] = {}

    def field(self, field: Any) -> st.SearchStrategy[Any]:
        """Values of a scalar field, known ones more often than hostile ones; of one element, if it is repeated."""
        made = self._strategies.get(field.full_name)
        if made is None:
            hostile = scalar(field)
            # A name can be text in one message and an enum in another.
            known = [
                v for v in self.values.get(field.name, ()) if isinstance(v, str) == (field.type == Field.TYPE_STRING)
            ]
            # Two to one: a message of hostile values alone never gets past the first check.
            made = st.one_of(st.sampled_from(known), st.sampled_from(known), hostile) if known else hostile
            self._strategies[field.full_name] = made
        return made


def scalar(field: Any) -> st.SearchStrategy[Any]:
    """Hostile values of a scalar field."""
    if field.type == Field.TYPE_ENUM:
        numbers = sorted(field.enum_type.values_by_number)
        return st.sampled_from([*numbers, *numbers, -1, max(numbers) + 1, 2**31 - 1, -(2**31)])
    if field.cpp_type in _BOUNDS:
        low, high = _BOUNDS[field.cpp_type]
        special = INTEGERS if field.cpp_type == Field.CPPTYPE_INT32 else LONG_INTEGERS
        return st.sampled_from(special) | st.integers(0, 12) | st.integers(low, high)
    if field.cpp_type == Field.CPPTYPE_DOUBLE:
        return st.sampled_from(REALS) | st.floats(0, 1) | st.floats()
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == Field.TYPE_BYTES:
        return st.sampled_from(BYTES) | st.binary(max_size=40)
    if field.type == Field.TYPE_STRING:
        return st.sampled_from(TEXTS) | st.text(max_size=12)
    raise NotImplementedError(f"fields of type {field.type} are not fuzzed yet: {field.full_name}")


def repeated(element: st.SearchStrategy[Any], messages: bool) -> st.SearchStrategy[list[Any]]:
    """A few elements, or one of them very often."""
    lengths = st.sampled_from(_FEW if messages else _LENGTHS)
    return st.one_of(
        st.lists(element, max_size=4),
        st.lists(element, max_size=4),
        st.builds(lambda value, times: [value] * times, element, lengths),
    )
