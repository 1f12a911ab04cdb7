"""Encoded messages in parts, so that what is large is not copied to be put in or to be taken out.

protobuf copies the content of a field when it is set and again when the message is encoded, and likewise when it is
decoded and when it is read. The bytes made here are those that protobuf would make.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

# As ``bytes.join`` takes them.
Part = bytes | memoryview

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
# Each is looked at in turn, and costs more here than in protobuf; nothing that is meant has so many.
_MOST_FIELDS = 100_000
# Of a tag or a size: protobuf refuses longer ones, though they may stand for the same number.
_LONGEST_UINT32 = 5


def delimited(field: int, parts: Iterable[Part]) -> list[Part]:
    """A field of bytes or of a message with this content."""
    content = list(parts)
    head = bytearray()
    _append(head, field << 3 | _DELIMITED)
    _append(head, sum(map(len, content)))
    return [bytes(head), *content]


def split(message: memoryview, fields: Container[int]) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """Take fields of bytes or messages out of an encoded message.

    Returns:
        The message without them, and (number, content) of each in order, as views.

    Raises:
        ValueError: it is no message.
    """
    rest: list[memoryview] = []
    found: list[tuple[int, memoryview]] = []
    at = left = seen = 0
    try:
        while at < len(message):
            begin = at
            seen += 1
            if seen > _MOST_FIELDS:
                raise ValueError(f"expected at most {_MOST_FIELDS} fields; got more")
            tag, at = _varint(message, at, _LONGEST_UINT32)
            kind = tag & 7
            if kind == _DELIMITED:
                size, at = _varint(message, at, _LONGEST_UINT32)
                at += size
                if at <= len(message) and tag >> 3 in fields:
                    found.append((tag >> 3, message[at - size : at]))
                    rest.append(message[left:begin])
                    left = at
            elif kind == _VARINT:
                _, at = _varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"expected an encoded message; got a field of kind {kind}")
    except IndexError:
        at = len(message) + 1
    if at != len(message):
        raise ValueError("expected an encoded message; got one that is cut off")
    rest.append(message[left:])
    return b"".join(rest), found


def _varint(message: memoryview, at: int, longest: int = _LONGEST_VARINT) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    number = message[at]
    at += 1
    if number < 0x80:
        return number, at
    number &= 0x7F
    for shift in range(7, 7 * longest, 7):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("expected an encoded message; got a number that does not end")


def _append(head: bytearray, number: int) -> None:
    """A varint: seven bits a byte, the lowest first, the topmost bit set on all bytes but the last."""
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    head.append(number)
