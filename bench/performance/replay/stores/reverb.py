"""Reverb, volatile: an item of one timestep per group, written by a trajectory writer and sampled uniformly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import reverb

from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import Settings, server

_TABLE = "replay"


class Reverb:
    """The client."""

    name = f"Reverb {version('dm-reverb')}, volatile"

    def __init__(self, settings: Settings) -> None:
        self._process, port = server("reverb", str(settings.stored))
        self._client = reverb.Client(f"127.0.0.1:{port}")

    def prepare(self, step: int, groups: Sequence[Arrays]) -> Sequence[Arrays]:
        return groups

    def push(self, prepared: Sequence[Arrays]) -> None:
        with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for group in prepared:
                writer.append(group.columns)
                writer.create_item(_TABLE, 1.0, tuple(column[-1:] for column in writer.history))
            writer.flush()

    def sample(self, step: int, count: int) -> list[Any]:
        return list(self._client.sample(_TABLE, count, emit_timesteps=False))

    def arrays(self, sampled: list[Any]) -> list[Arrays]:
        return [Arrays(*(column[0] for column in item.data)) for item in sampled]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def open_store(settings: Settings) -> Reverb:
    """The server and its client."""
    return Reverb(settings)


def serve(capacity: int) -> None:
    """Serve until the process is ended."""
    table = reverb.Table(
        _TABLE, reverb.selectors.Uniform(), reverb.selectors.Fifo(), capacity, reverb.rate_limiters.MinSize(1)
    )
    serving = reverb.Server([table])
    sys.stdout.write(f"{serving.port}\n")
    sys.stdout.flush()
    serving.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
