"""How calls went: seconds and endings by RPC, in a form that processes can hand to each other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import grpc
import numpy as np

from clients.errors import SelectorError, from_rpc_error

_T = TypeVar("_T")

OK = "OK"


class Tally:
    """Seconds of the calls that were answered, and how often each RPC ended how."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.endings: dict[str, Counter[str]] = defaultdict(Counter)

    async def count(self, rpc: str, call: Awaitable[_T]) -> _T:
        """Await a call and count how it ended; errors go on."""
        began = time.monotonic()
        try:
            answer = await call
        except BaseException as error:
            self.endings[rpc][ending_of(error)] += 1
            raise
        self.seconds[rpc].append(time.monotonic() - began)
        self.endings[rpc][OK] += 1
        return answer

    def add(self, other: Mapping[str, Any]) -> None:
        """Take over what another process saved."""
        for rpc, seconds in other["seconds"].items():
            self.seconds[rpc] += seconds
        for rpc, endings in other["endings"].items():
            self.endings[rpc].update(endings)

    def saved(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"seconds": dict(self.seconds), "endings": {rpc: dict(found) for rpc, found in self.endings.items()}}

    def quantile(self, rpc: str, q: float) -> float:
        """Seconds."""
        return float(np.quantile(self.seconds[rpc], q))


def ending_of(error: BaseException) -> str:
    """CODE/REASON of a failed call; CODE/- where the service gave no reason, because gRPC ended the call."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED/-"
    if isinstance(error, grpc.RpcError):
        error = from_rpc_error(error)
    if isinstance(error, SelectorError):
        return f"{error.code.name}/{error.reason or '-'}"
    return f"{type(error).__name__}: {error}"
