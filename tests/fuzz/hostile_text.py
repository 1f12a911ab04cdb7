"""JSON and YAML that are well-formed, or nearly, and mean harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# As JSON text, since Python's own encoder would not write all of them.
_VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1",
        "0.5",
        "1e999",
        "-1e999",
        "NaN",
        "1" + "0" * 30,
        "9" * 5000,
        '""',
        '"x"',
    ),
    *(
        '"\\ud800"',
        '"\\u0000"',
        '"../../x"',
        "[]",
        "{}",
        "[1]",
        '{"a": 1}',
        "[" * 50 + "]" * 50,
        '"' + "x" * 3000 + '"',
    ),
)
_PLACE = "\u2400"


def hostile_json(text: str) -> list[bytes]:
    """The text, the text with each value in turn replaced by each of many, and texts that are none."""
    value = json.loads(text)
    deep = ("[" * 4000, '{"a":' * 2000, "", "nul", text + text, text[:-1], "\ufeff" + text)
    changed = [json.dumps(tree).replace(f'"{_PLACE}"', other) for tree in _holed(value) for other in _VALUES]
    return [text.encode(), *(part.encode("utf-8") for part in (*deep, *changed)), b"\xff\xfe" + text.encode()]


def _holed(value: Any) -> Iterator[Any]:
    """The value with each part of it in turn replaced by a place."""
    # ASCII escapes of the place are undone below, so that it can be found in the encoded text.
    yield _PLACE
    if isinstance(value, dict):
        for key in value:
            for inner in _holed(value[key]):
                yield {**value, key: inner}
            yield {name: kept for name, kept in value.items() if name != key}
        yield {**value, "unheard-of": 1}
    elif isinstance(value, list):
        for at in range(len(value)):
            for inner in _holed(value[at]):
                yield [*value[:at], inner, *value[at + 1 :]]


YAML = (
    *(
        b"[" * 3000,
        b"{a: " * 1500,
        b"a: &a [*a]\n",
        b"? {a: b}\n: c\n",
        b"? [a]\n: c\n",
        b"--- a\n--- b\n",
        b"\t",
        b"a: b: c",
    ),
    *(
        b"a: &a [x, x, x, x, x, x, x, x, x]\n",
        b"!!python/object/apply:os.system ['true']",
        b"listen: !!python/name:os.system",
    ),
    *(
        b"listen: 2001-99-99",
        b"listen: 2001-01-01",
        b"listen: 0x" + b"f" * 5000,
        b"listen: " + b"9" * 5000,
        b"listen: 1:60:99",
    ),
    *(
        b"listen: .inf",
        b"listen: .nan",
        b"listen: !!binary x",
        b"listen: !!int x",
        b"listen: !!float ''",
        b"listen: !!set {a}",
    ),
    *(
        b"<<: [{listen: a}]",
        b"<<: 1",
        b"<<: *a",
        b"listen: \xff",
        b"\xff\xfel\0",
        b"listen: '\0'",
        b'listen: "\\ud800"',
        b"1: 2",
        b"- a",
    ),
    *(
        b"adapters: {1: 2}",
        b"adapters: {[a]: b}",
        b"adapters: [[a]]",
        b"adapters: {a: }",
        b"adapters: 5",
        b"listen: &a\n  b: *a",
    ),
    b"a: &a ["
    + b"x," * 9
    + b"]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8)),
)
