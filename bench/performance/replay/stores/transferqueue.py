"""TransferQueue with its own storage: a row per group, put as one TensorDict and fetched by keys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from tensordict import TensorDict

from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import Settings, slots

_PARTITION = "replay"
_NAMES = ("lengths", "rewards", "prompt", "tokens", "log_probs", "mask")


class TransferQueue:
    """The client, which starts the queue's processes."""

    name = f"TransferQueue {version('TransferQueue')}"

    def __init__(self, settings: Settings) -> None:
        ray.init(num_cpus=4, include_dashboard=False, configure_logging=False)
        transfer_queue.init()
        self._settings = settings
        self._filled = 0

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[range, TensorDict]:
        columns = zip(_NAMES, zip(*(group.columns for group in groups), strict=True), strict=True)
        rows = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in columns}
        return slots(step, self._settings), TensorDict(rows, batch_size=len(groups))

    def push(self, prepared: tuple[range, TensorDict]) -> None:
        places, rows = prepared
        transfer_queue.kv_batch_put(keys=[f"group:{slot}" for slot in places], partition_id=_PARTITION, fields=rows)
        self._filled = max(self._filled, places.stop)

    def sample(self, step: int, count: int) -> Any:
        picks = random.Random(step).sample(range(self._filled), count)
        return transfer_queue.kv_batch_get(keys=[f"group:{pick}" for pick in picks], partition_id=_PARTITION)

    def arrays(self, sampled: Any) -> list[Arrays]:
        columns = [[row.numpy() for row in sampled[name].unbind()] for name in _NAMES]
        return [Arrays(*row) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        transfer_queue.close()
        ray.shutdown()


def open_store(settings: Settings) -> TransferQueue:
    """The queue on this machine."""
    return TransferQueue(settings)
