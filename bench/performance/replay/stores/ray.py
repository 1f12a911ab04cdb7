"""Ray's object store: an object per group, whose arrays ``ray.get`` shows in shared memory, without a copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ray

from bench.performance.replay.content import Arrays, group_bytes
from bench.performance.replay.serving import Settings, slots


class Ray:
    """The client, which starts Ray's processes."""

    name = f"Ray {ray.__version__} object store"

    def __init__(self, settings: Settings) -> None:
        memory = max(2 * settings.stored * group_bytes(settings.tokens), 256 << 20)
        ray.init(num_cpus=1, object_store_memory=memory, include_dashboard=False, configure_logging=False)
        self._settings = settings
        self._objects: list[Any] = [None] * settings.stored
        self._filled = 0

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[range, Sequence[Arrays]]:
        return slots(step, self._settings), groups

    def push(self, prepared: tuple[range, Sequence[Arrays]]) -> None:
        for slot, group in zip(*prepared, strict=True):
            self._objects[slot] = ray.put(group.columns)
        self._filled = max(self._filled, prepared[0].stop)

    def sample(self, step: int, count: int) -> list[Arrays]:
        picks = random.Random(step).sample(range(self._filled), count)
        return [Arrays(*columns) for columns in ray.get([self._objects[pick] for pick in picks])]

    def arrays(self, sampled: list[Arrays]) -> list[Arrays]:
        return sampled

    def close(self) -> None:
        ray.shutdown()


def open_store(settings: Settings) -> Ray:
    """Ray on this machine."""
    return Ray(settings)
