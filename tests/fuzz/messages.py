"""Messages of any type, built from its descriptor, and sound messages with a few fields changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.fuzz.values import UNKNOWN_FIELDS, Known, repeated

Draw = Callable[[st.SearchStrategy[Any]], Any]
_CHANGES = ("set", "set", "set", "clear", "repeat", "unknown")
_REPEATS = (2, 17, 300)
# How many changes: a message with many seldom gets past the first check.
_CHANGED = (0, 0, 1, 1, 1, 1, 2, 3)


@cache
def any_message(descriptor: Any, known: Known) -> st.SearchStrategy[Message]:
    """Messages of a type: each field absent, or of its strategy."""
    cls: Any = message_factory.GetMessageClass(descriptor)
    fields = {field.name: _values(field, known) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: cls(**values))


def mutated(messages: Sequence[Message], known: Known, draw: Draw) -> list[Message]:
    """The messages with up to three fields changed anywhere within them."""
    copies = []
    for message in messages:
        copy = type(message)()
        copy.CopyFrom(message)
        copies.append(copy)
    for _ in range(draw(st.sampled_from(_CHANGED))):
        if copies:
            _change(copies[draw(st.integers(0, len(copies) - 1))], known, draw)
    return copies


@cache
def _values(field: Any, known: Known) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return st.dictionaries(known.field(key), known.field(value), max_size=3)
    element = known.field(field) if field.message_type is None else any_message(field.message_type, known)
    return repeated(element, field.message_type is not None) if field.is_repeated else element


def _change(message: Message, known: Known, draw: Draw) -> None:
    """Change one field of the message, or of one that it holds."""
    inner = _within(message)
    target = inner[draw(st.integers(0, len(inner) - 1))]
    change = draw(st.sampled_from(_CHANGES))
    if change == "unknown":
        target.MergeFromString(draw(st.sampled_from(UNKNOWN_FIELDS)))
        return
    descriptor: Any = target.DESCRIPTOR
    if not descriptor.fields:
        return
    field = descriptor.fields[draw(st.integers(0, len(descriptor.fields) - 1))]
    if change == "repeat" and field.is_repeated and len(getattr(target, field.name)):
        elements = getattr(target, field.name)
        elements.MergeFrom(list(elements) * draw(st.sampled_from(_REPEATS)))
        return
    target.ClearField(field.name)
    if change == "set":
        value = draw(_values(field, known))
        target.MergeFrom(type(target)(**{field.name: value}))


def _within(message: Message) -> list[Message]:
    """The message and, of every field, the first messages it holds."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in list(value)[:3] if field.is_repeated else [value]:
                found += _within(inner)
    return found
