"""Fixtures of the embedding tests: one real model per session, loaded while connections are refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from selector.embedding import Encoder, load_encoder


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    pytest.fail("a connection was attempted")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test that resolves a name or connects."""
    monkeypatch.setattr(socket, "getaddrinfo", _refuse)
    monkeypatch.setattr(socket.socket, "connect", _refuse)


@pytest.fixture(scope="session")
def minilm() -> Iterator[Encoder]:
    """The default encoder; loading it must not touch the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", _refuse)
        patch.setattr(socket.socket, "connect", _refuse)
        encoder = load_encoder("default", threads=1)
    assert encoder is not None
    yield encoder
