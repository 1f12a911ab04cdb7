"""Messages as they are sent, made of parts: what is large is copied once, when the parts are joined.

protobuf itself copies the content of a field when it is set and again when the message is encoded. The bytes made here
are those that it would make.
"""

from __future__ import annotations

from collections.abc import Iterable

# As ``bytes.join`` takes them.
Part = bytes | memoryview


def delimited(field: int, parts: Iterable[Part]) -> list[Part]:
    """A field of bytes or of a message with this content."""
    content = list(parts)
    head = bytearray()
    # The wire type of what has a length is 2.
    _append(head, field << 3 | 2)
    _append(head, sum(map(len, content)))
    return [bytes(head), *content]


def _append(head: bytearray, number: int) -> None:
    """A varint: seven bits a byte, the lowest first, the topmost bit set on all bytes but the last."""
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    head.append(number)
