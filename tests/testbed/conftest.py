"""A small policy that solves short prompts now and then, and the service it is trained through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from selector.service.server import Server
from selector.settings import ServerSettings
from selector.testbed.policy import Policy, PolicyConfig
from selector.testbed.pretrain import PretrainConfig, pretrain


@pytest.fixture(scope="session")
def base() -> Policy:
    """Success probabilities of level 1 lie between 0 and 0.9. Copy it before training it."""
    torch.set_num_threads(1)
    config = PretrainConfig(PolicyConfig(32, 2, 2), updates=110, batch=48, learning_rate=1e-2, warm_up=10)
    return pretrain(config)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """``host:port`` of the real service in this process, without an encoder."""
    server = Server(ServerSettings(tmp_path / "state", "127.0.0.1:0", metrics_listen="", encoder="none", grace_s=1.0))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
    yield server.address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
