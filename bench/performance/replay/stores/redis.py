"""Redis with redis-py: a key per group, pipelined SETs, and MGET of keys that the client draws.

Options: ``volatile`` keeps nothing on the disk, ``always`` is AOF with a flush before each answer.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence

import redis

from bench.performance.replay import content
from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import Settings, slots

_START_S = 30.0
_OPTIONS = {
    "volatile": ["--appendonly", "no"],
    "always": ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"],
}
_NAMES = {"volatile": "volatile", "always": "AOF always"}


class Redis:
    """The client."""

    def __init__(self, settings: Settings) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is not installed")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings.folder.mkdir(exist_ok=True)
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(settings.folder)]
        self._process = subprocess.Popen([program, *options, *_OPTIONS[settings.option]], stdout=subprocess.DEVNULL)
        self._client = redis.Redis("127.0.0.1", port)
        _wait(self._client)
        version = self._client.info("server")["redis_version"]
        self.name = f"Redis {version}, redis-py {redis.__version__}, {_NAMES[settings.option]}"
        self._settings = settings
        self._like = content.made(1, settings.tokens)[0]
        self._filled = 0

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[range, Sequence[Arrays]]:
        return slots(step, self._settings), groups

    def push(self, prepared: tuple[range, Sequence[Arrays]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for slot, group in zip(*prepared, strict=True):
            pipeline.set(f"group:{slot}", content.packed(group))
        pipeline.execute()
        self._filled = max(self._filled, prepared[0].stop)

    def sample(self, step: int, count: int) -> list[Arrays]:
        picks = random.Random(step).sample(range(self._filled), count)
        found = self._client.mget([f"group:{pick}" for pick in picks])
        return [content.unpacked(value, self._like) for value in found]

    def arrays(self, sampled: list[Arrays]) -> list[Arrays]:
        return sampled

    def close(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(60)


def open_store(settings: Settings) -> Redis:
    """The server and its client."""
    return Redis(settings)


def _wait(client: redis.Redis) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
