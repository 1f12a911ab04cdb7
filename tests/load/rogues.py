"""Callers that misbehave, all kinds at the same time: each does its mischief again and again until told to stop.

=============  =====================================================================================================
kind           what it does
=============  =====================================================================================================
vanish         breaks streams off, its own and into runs of well-behaved trainers, by a reset in the middle
slow           asks for samples and exports and takes next to nothing of them
silent         opens streams and sends nothing; its machine is gone: connections that answer no ping
raw            opens connections and says nothing, or what is not HTTP/2
large          sends messages that are too large, a little and by far
flood          opens hundreds of streams at once
bad            sends what is no message, and messages that make no sense
hasty          sets deadlines of a millisecond
cancelling     leaves calls as soon as it has begun them
=============  =====================================================================================================

Whatever it is answered is counted; ``ALLOWED`` tells what it may be answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import numpy as np

from clients import AsyncSelectorClient
from clients.errors import SelectorError
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub
from tests.load.relay import Relay
from tests.load.start import ready
from tests.load.tally import OK, Tally
from tests.service.trainer import group_of

_NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
_FLOOD = 300
_PROMPTS = 64

# A call that was left, or whose connection was broken, has no answer of the service.
_GONE = {"CANCELLED/-", "UNAVAILABLE/-", "UNKNOWN/-", "INTERNAL/-"}

ALLOWED: dict[str, set[str]] = {
    "vanish": {OK, *_GONE, "RESOURCE_EXHAUSTED/OVERLOADED"},
    "slow": {OK, *_GONE, "DEADLINE_EXCEEDED/STREAM_IDLE", "DEADLINE_EXCEEDED/-", "RESOURCE_EXHAUSTED/OVERLOADED"},
    "silent": {*_GONE, "DEADLINE_EXCEEDED/STREAM_IDLE", "DEADLINE_EXCEEDED/-", "RESOURCE_EXHAUSTED/OVERLOADED"},
    "raw": {OK},
    # Far too large ones are refused by gRPC, in whose place our details cannot be.
    "large": {"RESOURCE_EXHAUSTED/QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED/-", "RESOURCE_EXHAUSTED/OVERLOADED"},
    "flood": {
        OK,
        "RESOURCE_EXHAUSTED/OVERLOADED",
        "DEADLINE_EXCEEDED/-",
        "DEADLINE_EXCEEDED/DEADLINE_EXCEEDED",
        "CANCELLED/-",
    },
    "bad": {
        "INVALID_ARGUMENT/INVALID_FIELD",
        "INVALID_ARGUMENT/UNKNOWN_PROMPT",
        "INVALID_ARGUMENT/INVALID_OUTCOME",
        "INVALID_ARGUMENT/INVALID_PAGE_TOKEN",
        "INVALID_ARGUMENT/CONTRADICTORY_FIELDS",
        "NOT_FOUND/RUN_NOT_FOUND",
        "NOT_FOUND/PROMPT_NOT_FOUND",
        "UNIMPLEMENTED/-",
        # The same run is flooded meanwhile.
        "RESOURCE_EXHAUSTED/OVERLOADED",
    },
    "hasty": {
        OK,
        "DEADLINE_EXCEEDED/-",
        "DEADLINE_EXCEEDED/DEADLINE_EXCEEDED",
        "CANCELLED/-",
        "RESOURCE_EXHAUSTED/OVERLOADED",
    },
    "cancelling": {OK, "CANCELLED/-", "RESOURCE_EXHAUSTED/OVERLOADED"},
}


class Rogue:
    """One caller of each kind; ``victim`` is a run of a well-behaved trainer."""

    def __init__(self, address: str, number: int, victims: Sequence[str], tally: Tally) -> None:
        self._address = address
        self._run = f"rogue-{number}"
        self._victims = victims
        self._tally = tally
        self._random = random.Random(number)
        self._step = 0

    async def prepare(self) -> None:
        """A run with prompts, and with groups large enough to be slow about."""
        client = AsyncSelectorClient(self._address, self._run, timeout_s=60.0)
        await client.create_run(
            {"group_size": 2, "replay": {"newest_per_prompt": False, "capacity_groups": _PROMPTS, "max_age_steps": 0}}
        )
        await client.register_prompts([f"p{i}" for i in range(_PROMPTS)])
        tokens = np.zeros(2**16, dtype=np.int32)
        await client.push_rollouts(0, [group_of(f"p{i}", 0, prompt_token_ids=tokens) for i in range(_PROMPTS)])
        await client.close()

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What it does, by name."""
        return {name: getattr(self, f"_{name}") for name in ALLOWED}

    async def go_on(self, kind: str, until: float) -> None:
        """Do it until the clock says so, and at least once."""
        act = self.kinds()[kind]
        await act()
        while time.time() < until:
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            await act()

    # --- the kinds ------------------------------------------------------------------------------------------------

    async def _vanish(self) -> None:
        victim = self._random.choice([self._run, *self._victims])
        async with Relay(self._address) as relay, _channel(relay.address) as channel:
            register = SelectorServiceStub(channel).RegisterPrompts(_endless_prompts(victim), timeout=60)
            push = ReplayServiceStub(channel).PushRollouts(_endless_groups(self._run, self._next_step()), timeout=60)
            sample = ReplayServiceStub(channel).SampleRollouts(self._sample(), timeout=60)
            calls = [asyncio.ensure_future(self._counted("vanish", call)) for call in (register, push, _first(sample))]
            await asyncio.sleep(self._random.uniform(0.05, 0.4))
            relay.cut()
            await asyncio.gather(*calls)

    async def _slow(self) -> None:
        async with _channel(self._address, _NARROW) as channel:
            sample = ReplayServiceStub(channel).SampleRollouts(self._sample(), timeout=30)
            export = SelectorServiceStub(channel).ExportRun(
                pb.ExportRunRequest(run_id=self._random.choice(self._victims), kind=pb.EXPORT_KIND_OUTCOMES), timeout=30
            )
            patience = self._random.choice([0.5, 4.0, 12.0])
            await asyncio.gather(
                self._counted("slow", _late(sample, patience)), self._counted("slow", _late(export, patience))
            )

    async def _silent(self) -> None:
        async with Relay(self._address) as relay, _channel(relay.address) as channel:
            gone = self._random.random() < 0.5
            call = SelectorServiceStub(channel).RegisterPrompts(_one_and_no_more(self._run), timeout=40)
            counted = asyncio.ensure_future(self._counted("silent", call))
            await asyncio.sleep(0.5)
            if gone:
                relay.freeze()
                if not await relay.closed_by_service(60.0):
                    self._tally.endings["silent"]["a half-open connection stayed open for 60 s"] += 1
                call.cancel()
            await asyncio.gather(counted, return_exceptions=True)

    async def _raw(self) -> None:
        host, _, port = self._address.rpartition(":")
        began = random.Random(self._step).choice([b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
        self._step += 1
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(began)

        async def until_closed() -> None:
            with suppress(ConnectionError):
                while await reader.read(65536):
                    pass

        try:
            await self._counted("raw", asyncio.wait_for(until_closed(), 60))
        finally:
            writer.transport.abort()

    async def _large(self) -> None:
        async with _channel(self._address, [("grpc.max_send_message_length", -1)]) as channel:
            size = self._random.choice([5, 30]) * 2**20
            prompts = [pb.Prompt(prompt_id=f"l{i}", text="x" * 2**20) for i in range(size >> 20)]
            report = pb.ReportOutcomesRequest(
                run_id=self._run, outcomes=[pb.PromptOutcomes(prompt_id="p0", outcomes=np.ones(size // 8))]
            )
            stub = SelectorServiceStub(channel)
            await self._counted("large", stub.ReportOutcomes(report, timeout=60))
            request = pb.RegisterPromptsRequest(run_id=self._run, prompts=prompts)
            await self._counted("large", stub.RegisterPrompts(iter([request]), timeout=60))

    async def _flood(self) -> None:
        async with _channel(self._address) as channel:
            stub, replay = SelectorServiceStub(channel), ReplayServiceStub(channel)
            waits = [replay.SampleRollouts(self._sample(count=1000, wait=True), timeout=3) for _ in range(_FLOOD // 2)]
            opened = [stub.RegisterPrompts(_one_and_no_more(self._run), timeout=3) for _ in range(_FLOOD // 2)]
            calls = [*(_first(call) for call in waits), *opened]
            await asyncio.gather(*(self._counted("flood", call) for call in calls))
        await asyncio.sleep(2)

    async def _bad(self) -> None:
        async with _channel(self._address) as channel:
            noise: Any = channel.unary_unary(f"/selector.v1.SelectorService/{self._random.choice(_METHODS)}")
            await self._counted("bad", noise(b"\xff" + self._random.randbytes(50), timeout=30))
            stub = SelectorServiceStub(channel)
            unknown = [pb.PromptOutcomes(prompt_id="unknown", outcomes=[1.0])]
            nan = [pb.PromptOutcomes(prompt_id="p0", outcomes=[float("nan")])]
            for call in (
                stub.GetRun(pb.GetRunRequest(run_id="a/../b"), timeout=30),
                stub.GetRun(pb.GetRunRequest(run_id="nobody"), timeout=30),
                stub.ListRuns(pb.ListRunsRequest(page_token="x"), timeout=30),
                stub.ReportOutcomes(pb.ReportOutcomesRequest(run_id=self._run, outcomes=unknown), timeout=30),
                stub.ReportOutcomes(pb.ReportOutcomesRequest(run_id=self._run, outcomes=nan), timeout=30),
                stub.ExplainPrompt(pb.ExplainPromptRequest(run_id=self._run, prompt_id="none"), timeout=30),
                stub.SelectBatch(pb.SelectBatchRequest(run_id=self._run, step=-1, batch_size=1), timeout=30),
            ):
                await self._counted("bad", call)

    async def _hasty(self) -> None:
        async with _channel(self._address) as channel:
            await asyncio.gather(*(self._counted("hasty", call) for call in self._calls(channel, 0.001)))

    async def _cancelling(self) -> None:
        async with _channel(self._address) as channel:
            calls = self._calls(channel, 30)
            counted = [asyncio.ensure_future(self._counted("cancelling", call)) for call in calls]
            await asyncio.sleep(self._random.uniform(0.0, 0.02))
            for call in counted:
                call.cancel()
            await asyncio.gather(*counted, return_exceptions=True)

    # --- what they share ------------------------------------------------------------------------------------------

    def _calls(self, channel: grpc.aio.Channel, timeout_s: float) -> list[Any]:
        stub, replay, step = SelectorServiceStub(channel), ReplayServiceStub(channel), self._next_step()
        outcomes = [pb.PromptOutcomes(prompt_id=f"p{i}", outcomes=[1.0, 0.0]) for i in range(8)]
        requests: list[Any] = [
            stub.SelectBatch(pb.SelectBatchRequest(run_id=self._run, step=step, batch_size=8), timeout=timeout_s),
            stub.ReportOutcomes(
                pb.ReportOutcomesRequest(run_id=self._run, step=step, outcomes=outcomes), timeout=timeout_s
            ),
            stub.PredictDifficulty(pb.PredictDifficultyRequest(run_id=self._run), timeout=timeout_s),
            stub.GetSelectionQuality(pb.GetSelectionQualityRequest(run_id=self._run), timeout=timeout_s),
            stub.ListRuns(pb.ListRunsRequest(), timeout=timeout_s),
            stub.ExplainPrompt(pb.ExplainPromptRequest(run_id=self._run, prompt_id="p0"), timeout=timeout_s),
            replay.SampleRollouts(self._sample(wait=True, count=1000), timeout=timeout_s),
        ]
        return [_first(call) if isinstance(call, grpc.aio.UnaryStreamCall) else call for call in requests]

    def _sample(self, count: int = _PROMPTS, wait: bool = False) -> replay_pb.SampleRolloutsRequest:
        step = self._next_step() if wait else 0
        return replay_pb.SampleRolloutsRequest(run_id=self._run, step=step, count=count, wait=wait)

    def _next_step(self) -> int:
        self._step += 1
        return self._step

    async def _counted(self, kind: str, call: Awaitable[Any]) -> None:
        with suppress(grpc.RpcError, SelectorError, asyncio.TimeoutError):
            await self._tally.count(kind, call)


_METHODS = ("SelectBatch", "ReportOutcomes", "CreateRun", "RewindRun", "NoSuchMethod")


def _channel(address: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    # A connection of its own each time, as callers of different machines have.
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1), *options])


async def _first(call: Any) -> None:
    """All frames of an answer, as they come."""
    async for _ in call:
        pass


async def _late(call: Any, patience_s: float) -> None:
    """One frame, a pause, and the rest if it is still there; or the caller leaves."""
    async for _ in call:
        break
    await asyncio.sleep(patience_s)
    if patience_s < 10:
        call.cancel()
        return
    async for _ in call:
        pass


async def _one_and_no_more(run_id: str) -> AsyncIterator[pb.RegisterPromptsRequest]:
    yield pb.RegisterPromptsRequest(run_id=run_id, prompts=[pb.Prompt(prompt_id="never-registered")])
    await asyncio.sleep(120)


async def _endless_prompts(run_id: str) -> AsyncIterator[pb.RegisterPromptsRequest]:
    number = 0
    while True:
        prompts = [pb.Prompt(prompt_id=f"never-registered-{number}-{i}") for i in range(20)]
        yield pb.RegisterPromptsRequest(run_id=run_id, prompts=prompts)
        number += 1
        await asyncio.sleep(0.02)


async def _endless_groups(run_id: str, step: int) -> AsyncIterator[replay_pb.PushRolloutsRequest]:
    while True:
        groups = [group_of(f"p{i}", step, salt="never pushed").to_proto() for i in range(5)]
        yield replay_pb.PushRolloutsRequest(run_id=run_id, step=step, groups=groups)
        await asyncio.sleep(0.02)


async def _run(address: str, count: int, victims: Sequence[str]) -> dict[str, Any]:
    tally = Tally()
    rogues = [Rogue(address, number, victims, tally) for number in range(count)]
    for rogue in rogues:
        await rogue.prepare()
    until = await ready()
    ends = await asyncio.gather(
        *(rogue.go_on(kind, until) for rogue in rogues for kind in ALLOWED), return_exceptions=True
    )
    failed = Counter(f"{type(end).__name__}: {end}" for end in ends if end is not None)
    return {"tally": tally.saved(), "failed": dict(failed)}


def main() -> None:
    """Print, as JSON, what the rogues of this process were answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--victims", required=True, help="run ids, separated by commas")
    chosen = parser.parse_args()
    for name in ("asyncio", "grpc", "selector.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    result = asyncio.run(_run(chosen.address, chosen.count, chosen.victims.split(",")))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
