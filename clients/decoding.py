"""Messages to the dataclasses of ``clients.results``, which have the same field names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from clients import results
from clients.names import short_name
from selector.v1 import run_pb2

T = TypeVar("T")

_NESTED: dict[str, Any] = {
    "Run": results.RunInfo,
    "PoolCounts": results.PoolCounts,
    "RefusedGroup": results.RefusedGroup,
    "OutcomeRecord": results.OutcomeRecord,
    "SelectionRecord": results.SelectionRecord,
    "ReferenceWeight": results.ReferenceWeight,
    "ArmQuality": results.ArmQuality,
}

_DTYPES = {
    FieldDescriptor.CPPTYPE_DOUBLE: np.float64,
    FieldDescriptor.CPPTYPE_INT32: np.int32,
    FieldDescriptor.CPPTYPE_INT64: np.int64,
}


def decode(cls: type[T], message: Any) -> T:
    """An instance of ``cls`` with every field read from the message's field of the same name."""
    return cls(**{field.name: _value(message, field.name) for field in fields(cls)})  # type: ignore[arg-type]


def _value(message: Any, name: str) -> Any:
    value = getattr(message, name)
    field = message.DESCRIPTOR.fields_by_name[name]
    if isinstance(value, Message):
        return _nested(value)
    if isinstance(value, (bool, int, float, str)):
        # `optional` is a oneof of one field.
        if field.containing_oneof is not None and not message.HasField(name):
            return None
        return value if field.enum_type is None else short_name(field.enum_type, int(value))
    if field.enum_type is not None:
        return tuple(short_name(field.enum_type, number) for number in value)
    if field.message_type is not None:
        return tuple(_nested(item) for item in value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return tuple(value)
    return np.array(value, dtype=_DTYPES[field.cpp_type])


def _nested(message: Message) -> Any:
    if isinstance(message, run_pb2.RunConfig):
        return message
    return decode(_NESTED[message.DESCRIPTOR.name], message)
