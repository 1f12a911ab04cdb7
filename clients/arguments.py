"""Arguments that need more than ``clients.messages`` to become parts of requests; each error names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from clients.messages import array_of, build, converted, listed, shown
from clients.names import enum_number
from selector.v1 import selector_service_pb2 as selector_pb

Shard = tuple[int, int]


def purpose_number(purpose: str) -> Any:
    """Number of a purpose given by name."""
    return enum_number(selector_pb.Purpose.DESCRIPTOR, purpose, "purpose")


def shard_message(shard: Any) -> selector_pb.Shard | None:
    """``(index, count)`` as a message, None for none."""
    if shard is None:
        return None
    # Not numpy's shape, which is itself an error for ([0, 1], 2); what the two are is for the message to check.
    several = isinstance(shard, (tuple, list)) or (isinstance(shard, np.ndarray) and shard.ndim == 1)
    if not several or len(shard) != 2:
        raise ValueError(f"shard: expected (index, count), got {shown(shard)}")
    return build(selector_pb.Shard, "shard", index=shard[0], count=shard[1])


def outcomes_message(prompt_id: str, outcomes: Any, statuses: Any) -> selector_pb.PromptOutcomes:
    """One prompt's outcomes and, unless None, the statuses of its rollouts."""
    where = f"outcomes[{shown(prompt_id)}]"
    numbers = _statuses(statuses, f"statuses[{shown(prompt_id)}]") if statuses is not None else []
    return build(
        selector_pb.PromptOutcomes,
        where,
        prompt_id=prompt_id,
        outcomes=_floats(outcomes, where),
        statuses=numbers,
    )


def _statuses(statuses: Any, path: str) -> list[int]:
    enum = selector_pb.RolloutStatus.DESCRIPTOR
    return [
        enum_number(enum, status, f"{path}[{index}]") for index, status in enumerate(listed(statuses, path, "statuses"))
    ]


def signal_message(name: str, values: Mapping[str, float]) -> selector_pb.Signal:
    """A signal's value by prompt id."""
    where = f"signals[{shown(name)}]"
    mapping_of(values, where, "prompt id -> value")
    try:
        numbers = _floats(list(values.values()), where)
    except ValueError:
        for prompt_id, value in values.items():
            converted(selector_pb.Signal, "values", value, f"{where}[{shown(prompt_id)}]")
        raise
    return build(selector_pb.Signal, where, name=name, prompt_ids=list(values), values=numbers)


def mapping_of(values: Any, path: str, what: str) -> Mapping[Any, Any]:
    """A mapping as it is; ``what`` says of what to what."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: expected a mapping {what}, got {shown(values)}")
    return values


def id_list(prompt_ids: Iterable[str], path: str) -> list[str]:
    """Ids in any order, so that a set will do."""
    return listed(prompt_ids, path, "ids", ordered=False)


def _floats(values: Any, path: str) -> list[float]:
    array = array_of(values, path, "a list of numbers")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise ValueError(f"{path}: expected a list of numbers, got {shown(values)}")
    floats: list[float] = array.astype(np.float64).tolist()
    return floats
