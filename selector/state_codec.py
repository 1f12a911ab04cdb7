"""Binary form of a state: nested mappings and lists of numbers, strings, bytes and plain numpy arrays.

A JSON skeleton in which every array and every bytes value is replaced by its place in the data that follows, with a
checksum over all of it. Numbers and arrays come back bit for bit; lists and tuples come back as lists. Reading executes
nothing and allocates no more than what is there.

Layout: magic (8 bytes), CRC-32 of what follows (u32), length of the skeleton (u64), skeleton, data; little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAGIC = b"selstat1"
_HEAD = struct.Struct("<8sIQ")
_ARRAY, _BYTES = "$array", "$bytes"
# Bool, integers and floats; an object array would need pickle.
_KINDS = "biuf"


def encode(tree: Mapping[str, Any]) -> bytes:
    """The binary form.

    Raises:
        TypeError: a value is of none of the kinds above, or a key is not a string or begins with ``$``.
    """
    data: list[bytes] = []
    size = 0

    def place(raw: bytes) -> list[int]:
        nonlocal size
        data.append(raw)
        size += len(raw)
        return [size - len(raw), len(raw)]

    def skeleton(value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or key.startswith("$"):
                    raise TypeError(f"expected a string that does not begin with $ as key; got {key!r}")
            return {key: skeleton(inner) for key, inner in value.items()}
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in _KINDS:
                raise TypeError(f"expected an array of numbers; got {value.dtype}")
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            return {_ARRAY: [little.dtype.str, list(value.shape), *place(little.tobytes())]}
        if isinstance(value, bytes):
            return {_BYTES: place(value)}
        if isinstance(value, (list, tuple)):
            return [skeleton(inner) for inner in value]
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError(f"expected a number, string, bytes, array, mapping or list; got {type(value).__name__}")

    text = json.dumps(skeleton(tree)).encode()
    body = b"".join([text, *data])
    checksum = zlib.crc32(body, len(text))
    return _HEAD.pack(_MAGIC, checksum, len(text)) + body


def decode(raw: bytes) -> dict[str, Any]:
    """Inverse of ``encode``; arrays are read-only views of ``raw``.

    Raises:
        ValueError: it is not what ``encode`` made.
    """
    if len(raw) < _HEAD.size:
        raise ValueError("a state's binary form is cut short")
    magic, checksum, length = _HEAD.unpack_from(raw)
    body = memoryview(raw)[_HEAD.size :]
    if magic != _MAGIC:
        raise ValueError("not a state's binary form")
    if length > len(body) or zlib.crc32(body, length & 0xFFFFFFFF) != checksum:
        raise ValueError("a state's binary form is damaged: its checksum does not match")
    data = body[length:]

    def taken(start: int, size: int) -> memoryview:
        if start < 0 or size < 0 or start + size > len(data):
            raise ValueError("a state's binary form refers beyond its end")
        return data[start : start + size]

    def value_of(node: Any) -> Any:
        if isinstance(node, list):
            return [value_of(inner) for inner in node]
        if not isinstance(node, dict):
            return node
        if _BYTES in node:
            return bytes(taken(*node[_BYTES]))
        if _ARRAY in node:
            name, shape, start, size = node[_ARRAY]
            dtype = np.dtype(name)
            if dtype.kind not in _KINDS:
                raise ValueError(f"a state's binary form holds an array of {dtype}")
            return np.frombuffer(taken(start, size), dtype=dtype).reshape(shape)
        return {key: value_of(inner) for key, inner in node.items()}

    try:
        tree = value_of(json.loads(bytes(body[:length])))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a state's binary form: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError("not a state's binary form: expected a mapping")
    return tree
