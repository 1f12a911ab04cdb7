"""Samples as the service sends them: read frame by frame, and never larger than a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from selector.config import ReplayConfig
from selector.errors import ServiceError
from selector.replay import ReplayRun, ReplayStore, SampleRequest
from selector.service.access import Access
from selector.service.calls import Calls
from selector.service.lanes import Lanes
from selector.service.limits import Limits
from selector.service.replay_servicer import ReplayServicer
from selector.service.tokens import Tokens
from selector.v1 import replay_service_pb2 as pb
from selector.v1 import selector_service_pb2 as selector_pb
from selector.v1.reasons import Reason
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub
from tests.replay.groups import checked
from tests.service.running import InProcessService

RUN = "run"
GROUP_BYTES = 300_000
GROUPS = 10


class Ended(Exception):
    """The call was aborted: (code, message)."""


class Context:
    """A caller with all the time in the world."""

    def time_remaining(self) -> None:
        return None

    def cancelled(self) -> bool:
        return False

    async def abort(self, code: grpc.StatusCode, message: str, _: object) -> None:
        raise Ended(code, message)


class Observer:
    def observe_rpc(self, method: str, code: str, seconds: float) -> None:
        pass

    def in_flight(self, method: str) -> AbstractContextManager[None]:
        return nullcontext()


class OneRun:
    """The runs of a server that has one, or has just deleted it."""

    def __init__(self, replay: ReplayRun) -> None:
        self.run: Any = SimpleNamespace(
            replay=replay,
            row=SimpleNamespace(run_id=RUN),
            sample=lambda request, part, key: replay.sample(request, part),
        )

    def get(self, run_id: str) -> Any:
        if self.run is None:
            raise ServiceError(Reason.RUN_NOT_FOUND, f"there is no run {run_id!r}")
        return self.run

    find = get

    def same(self, run: Any) -> Any:
        if self.get(RUN) is not run:
            raise ServiceError(Reason.RUN_NOT_FOUND, f"run {RUN!r} was deleted meanwhile")
        return run


@pytest.fixture
def runs(store: ReplayStore) -> OneRun:
    replay = ReplayRun(store, 1, ReplayConfig(), seed=0)
    groups = [
        pb.RolloutGroup(prompt_id=f"p{i}", policy_version=1, prompt_token_ids=bytes([i]) * GROUP_BYTES)
        for i in range(GROUPS)
    ]
    replay.push([(checked(group.prompt_id, 1), group.SerializeToString()) for group in groups], 1)
    return OneRun(replay)


@pytest.fixture
def servicer(runs: OneRun) -> Iterator[ReplayServicer]:
    with ThreadPoolExecutor(1) as executor:
        limits = Limits(max_stream_bytes=2**30, max_message_bytes=2**26)
        lanes = Lanes(executor, lambda: 0.0)
        access = Access(Tokens((), None, lambda: 0.0))
        yield ReplayServicer(runs, lanes, limits, access, Calls(), Observer(), lambda: 0.0, lambda *groups: None)  # type: ignore[arg-type]


async def answers(servicer: ReplayServicer, request: pb.SampleRolloutsRequest) -> Any:
    """The answer's messages, which the servicer has encoded."""
    stream: Any = servicer.SampleRollouts(request, Context())  # type: ignore[arg-type]
    async for frame in stream:
        yield pb.SampleRolloutsResponse.FromString(frame)


def frames(servicer: ReplayServicer) -> Any:
    return answers(servicer, pb.SampleRolloutsRequest(run_id=RUN, step=1, count=GROUPS + 2))


def test_payloads_are_read_when_their_frame_is_due(
    servicer: ReplayServicer, store: ReplayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller who reads slowly makes the server hold one frame, not the sample."""
    read: list[int] = []
    payloads = store.payloads

    def counted(run: int, positions: Any) -> list[bytes | None]:
        read.append(len(positions))
        return payloads(run, positions)

    monkeypatch.setattr(store, "payloads", counted)

    async def check() -> list[pb.SampleRolloutsResponse]:
        got: list[pb.SampleRolloutsResponse] = []
        async for frame in frames(servicer):
            got.append(frame)
            assert read == [len(each.groups) for each in got]
        return got

    got = asyncio.run(check())
    assert [len(frame.groups) for frame in got] == [3, 3, 3, 1]
    assert all(frame.ByteSize() <= 2**20 for frame in got)
    assert sorted(s.group.prompt_token_ids[0] for frame in got for s in frame.groups) == list(range(GROUPS))
    assert [frame.last for frame in got] == [False, False, False, True]
    assert [frame.eligible_groups for frame in got] == [0, 0, 0, GROUPS]
    assert [frame.shortfall for frame in got] == [0, 0, 0, 2]


def test_a_rewind_ends_the_stream(servicer: ReplayServicer, runs: OneRun) -> None:
    async def check() -> None:
        stream = frames(servicer)
        assert (await anext(stream)).groups
        runs.run.replay.rewind(1, epoch=1)
        with pytest.raises(Ended, match="the sample of step 1 cannot be returned") as ended:
            await anext(stream)
        assert ended.value.args[0] is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(check())


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and-created-again"])
def test_a_deletion_ends_the_stream(servicer: ReplayServicer, runs: OneRun, store: ReplayStore, again: bool) -> None:
    """Positions of a deleted run mean nothing in a new one of that name."""

    async def check() -> None:
        stream = frames(servicer)
        assert (await anext(stream)).groups
        runs.run = OneRun(ReplayRun(store, 2, ReplayConfig(), seed=0)).run if again else None
        store.drop_run(1)
        with pytest.raises(Ended, match=f"run '{RUN}'") as ended:
            await anext(stream)
        assert ended.value.args[0] is grpc.StatusCode.NOT_FOUND

    asyncio.run(check())


@pytest.mark.parametrize(("limit", "room"), [(2**20, 2**16), (2**15, 2**12)])
def test_what_can_be_pushed_can_be_sampled(tmp_path: Path, limit: int, room: int) -> None:
    """The largest groups that are taken come back within a message; four bytes more are refused, with the limit."""
    service = InProcessService(tmp_path, max_message_bytes=limit)
    options = [("grpc.max_receive_message_length", limit)]
    with grpc.insecure_channel(service.address, options=options) as channel:
        selector, replay = SelectorServiceStub(channel), ReplayServiceStub(channel)
        selector.CreateRun(selector_pb.CreateRunRequest(run_id=RUN))
        ids = [f"{i}" * 256 for i in range(3)]
        prompts = [selector_pb.Prompt(prompt_id=prompt_id) for prompt_id in ids]
        selector.RegisterPrompts(iter([selector_pb.RegisterPromptsRequest(run_id=RUN, prompts=prompts)]))

        def push(prompt_id: str, size: int) -> pb.PushRolloutsResponse:
            """A group of ``size`` to ``size - 3`` bytes, whose id the service makes."""
            group = pb.RolloutGroup(prompt_id=prompt_id, lengths=[1, 1], rewards=[0, 1], outcomes=[0, 1])
            group.response_token_ids = group.behavior_log_probs = bytes(8)
            group.prompt_token_ids = bytes(size // 8 * 4)
            group.prompt_token_ids = bytes((size - (group.ByteSize() - size // 8 * 4)) // 4 * 4)
            assert size - 4 < group.ByteSize() <= size
            request = pb.PushRolloutsRequest(run_id=RUN, groups=[group], skip_refused=True)
            answer: pb.PushRolloutsResponse = replay.PushRollouts(iter([request]))
            return answer

        largest = limit - room
        (refused,) = push(ids[0], largest + 4).refused
        assert (refused.index, refused.reason) == (0, "QUOTA_EXCEEDED")
        assert f"at most {largest} bytes" in refused.description
        assert [push(prompt_id, largest).stored for prompt_id in ids] == [1, 1, 1]
        got = list(replay.SampleRollouts(pb.SampleRolloutsRequest(run_id=RUN, count=3)))
        assert sorted(s.group.prompt_id for frame in got for s in frame.groups) == ids
    service.close()


def test_an_empty_sample_is_one_frame(servicer: ReplayServicer, runs: OneRun) -> None:
    assert runs.run.replay.eligible_count(SampleRequest(0, 1)) == 0

    async def check() -> list[pb.SampleRolloutsResponse]:
        request = pb.SampleRolloutsRequest(run_id=RUN, step=0, count=1)
        return [frame async for frame in answers(servicer, request)]

    (frame,) = asyncio.run(check())
    assert (len(frame.groups), frame.shortfall, frame.last) == (0, 1, True)
