"""Several processes of one training (torch.distributed, if it is initialised): one asks the service for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch.distributed

P = ParamSpec("P")
T = TypeVar("T")


def on_main(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` returns in process 0, in every process; it is called there only. All of them must come here.

    Raises:
        Exception: what it raised there, in every process: one that did not hear of it would wait for ever.
    """
    if not _several():
        return call(*args, **kwargs)
    answer: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            answer[0] = call(*args, **kwargs)
        except Exception as error:
            answer[1] = error
    torch.distributed.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def share(items: Sequence[T]) -> Sequence[T]:
    """This process's part of what is for all of them; their number must divide by that of the processes.

    Raises:
        ValueError: it does not.
    """
    if not _several():
        return items
    processes, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if len(items) % processes:
        raise ValueError(f"items: expected a multiple of {processes} processes, got {len(items)}")
    size = len(items) // processes
    return items[rank * size : (rank + 1) * size]


def _several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
