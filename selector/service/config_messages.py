"""RunConfig between the protocol and the domain.

Enum values are named without their prefix in the domain: ``SCORE_LEARNABLE`` is ``LEARNABLE``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from selector.config import RunConfig, SamplingSettings
from selector.errors import invalid
from selector.v1 import run_pb2


def explicit_config(message: run_pb2.RunConfig) -> dict[str, Any]:
    """The fields that are set, nested, by name; enum values as names.

    Raises:
        ServiceError: INVALID_FIELD for an enum number that the schema does not know.
    """
    return _set_fields(message, "config")


def config_message(config: RunConfig) -> run_pb2.RunConfig:
    """Every value of a resolved configuration."""
    message = run_pb2.RunConfig()
    _fill(message, config)
    return message


def sampling_from(message: run_pb2.SamplingSettings, path: str) -> SamplingSettings:
    """Sampling settings of a rollout group."""
    return SamplingSettings(**_set_fields(message, path))


def _set_fields(message: Message, path: str) -> dict[str, Any]:
    # The library's type stub leaves out that the set can be iterated.
    fields_of_others: Any = UnknownFieldSet(message)
    unknown = [str(field.field_number) for field in fields_of_others]
    if unknown:
        # Ignoring a setting of a newer client would run another experiment than it asked for.
        raise invalid(path, f"unknown field number {', '.join(unknown)}; the client is newer than the server")
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            result[field.name] = _set_fields(value, f"{path}.{field.name}")
        elif field.type == FieldDescriptor.TYPE_ENUM:
            result[field.name] = _enum_name(field, value, f"{path}.{field.name}")
        elif field.name == "outcome_range":
            result[field.name] = list(value)
        else:
            result[field.name] = value
    return result


def _enum_name(field: Any, number: int, path: str) -> str:
    known = _enum(field).values_by_number
    if number not in known:
        raise invalid(path, f"expected one of {sorted(known)}; got {number}")
    return known[number].name.removeprefix(_prefix(field))


def _prefix(field: Any) -> str:
    return str(_enum(field).values_by_number[0].name).removesuffix("UNSPECIFIED")


def _enum(field: Any) -> Any:
    """The type of an enum field; the libraries' type stubs disagree about descriptors."""
    return field.enum_type


def _fill(message: Message, value: Any) -> None:
    for field in fields(value):
        item = getattr(value, field.name)
        descriptor = message.DESCRIPTOR.fields_by_name[field.name]
        if item is None:
            continue
        if is_dataclass(item):
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), item)
        elif descriptor.type == FieldDescriptor.TYPE_ENUM:
            number = _enum(descriptor).values_by_name[_prefix(descriptor) + item].number
            setattr(message, field.name, number)
        elif isinstance(item, tuple):
            getattr(message, field.name).extend(item)
        else:
            setattr(message, field.name, item)
