"""A run's configuration, from a mapping to the ``RunConfig`` message.

The mapping has the message's field names; nested messages are mappings, enums are names with or without their prefix in
any case, and None leaves a field unset::

    run_config({"group_size": 16, "score": "learnable", "replay": {"fresh_fraction": 0.5}, "outcome_range": [-1, 1]})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from clients.messages import converted, listed, shown
from clients.names import did_you_mean, enum_number
from selector.v1 import run_pb2


def run_config(config: Mapping[str, Any] | run_pb2.RunConfig | None) -> run_pb2.RunConfig:
    """The message of a mapping; a message is returned as it is, None is the empty message (all defaults).

    Raises:
        ValueError: an unknown field, an unknown enum name or a value of the wrong type; names the path.
    """
    if isinstance(config, run_pb2.RunConfig):
        return config
    message = run_pb2.RunConfig()
    if config is not None:
        _fill(message, config, "config")
    return message


def _fill(message: Any, values: Any, path: str) -> None:
    if isinstance(values, type(message)):
        message.CopyFrom(values)
        return
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: expected a mapping of fields, got {shown(values)}")
    # An empty mapping still says that the section is there.
    message.SetInParent()
    fields = message.DESCRIPTOR.fields_by_name
    known = list(fields)
    for key, value in values.items():
        if not isinstance(key, str) or key not in known:
            where = f"{path}.{key}" if isinstance(key, str) and key.isprintable() else f"{path}[{shown(key)}]"
            raise ValueError(f"{where}: no such field{did_you_mean(str(key), known)}; known: {', '.join(known)}")
        if value is not None:
            _set(message, fields[key], value, f"{path}.{key}")


def _set(message: Any, field: Any, value: Any, path: str) -> None:
    current = getattr(message, field.name)
    if isinstance(current, Message):
        _fill(current, value, path)
    elif field.enum_type is not None:
        setattr(message, field.name, enum_number(field.enum_type, value, path))
    elif isinstance(current, (bool, int, float, str)):
        setattr(message, field.name, converted(type(message), field.name, value, path))
    else:
        numbers = listed(value, path, "numbers")
        current.extend(
            converted(type(message), field.name, number, f"{path}[{index}]") for index, number in enumerate(numbers)
        )
