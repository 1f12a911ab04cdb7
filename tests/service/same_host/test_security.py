"""What may be named as lent memory, by whom."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from clients import PermissionDenied
from selector.grants import Grant, Scope, admin, digest_of
from selector.service import shared_memory
from selector.v1 import replay_service_pb2 as pb
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from tests.service.running import InProcessService
from tests.service.same_host.lending import (
    GROUPS,
    PROMPTS,
    made,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through Linux's /proc")


@pytest.fixture
def replay(own_service: InProcessService, prepared: Any) -> Iterator[ReplayServiceStub]:
    """The bare stub, beside a run with groups."""
    prepared().push_rollouts(0, made(0))
    with grpc.insecure_channel(own_service.address) as channel:
        yield ReplayServiceStub(channel)


def _pipe() -> int:
    return os.pipe()[0]


def _file() -> int:
    file, path = tempfile.mkstemp()
    os.write(file, bytes(2**20))
    os.unlink(path)
    return file


def _named_file() -> int:
    file = os.open(tempfile.mkstemp(dir="/dev/shm")[1], os.O_RDWR)
    os.write(file, bytes(2**20))
    return file


def _memory() -> int:
    memory = os.memfd_create("selector-replay")
    os.write(memory, secrets.token_bytes(32) + bytes(2**20))
    return memory


def _other_memory() -> int:
    """As the service itself has it for embeddings: whoever registered the first of them knows how it begins."""
    memory = os.memfd_create("selector")
    os.write(memory, bytes(2**20))
    return memory


@pytest.mark.parametrize(
    "opened", [_pipe, _file, _named_file, _memory, _other_memory, lambda: os.open("/dev/null", os.O_RDWR)]
)
def test_nothing_but_memory_with_the_key_is_touched(replay: Any, opened: Callable[[], int]) -> None:
    """Whoever names what is another's, the server's own files included, has nothing read or written."""
    descriptor = opened()
    before = os.fstat(descriptor)
    named = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, key=bytes(32))
    if opened is _memory:
        named.key = secrets.token_bytes(32)
    push = pb.PushRolloutsRequest(run_id="run", step=1, memory=named, memory_messages=[100])
    assert replay.PushRollouts(iter([push]), timeout=10) == pb.PushRolloutsResponse()
    frames = list(replay.SampleRollouts(pb.SampleRolloutsRequest(run_id="run", step=1, count=4, memory=named)))
    assert sum(len(frame.groups) for frame in frames) == 4
    assert not any(frame.memory_bytes for frame in frames)
    after = os.fstat(descriptor)
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    os.close(descriptor)


def test_messages_that_are_not_there_or_none_are_refused(replay: Any, prepared: Any) -> None:
    key = secrets.token_bytes(32)
    descriptor = os.memfd_create("selector-replay")
    os.write(descriptor, key + b"\xff" * 100)
    named = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, key=key)
    for sizes, said in (
        ([50, 51], r"memory_messages\[1\]"),
        ([100], "cannot be decoded"),
        ([0], "> 0"),
        ([-1], "> 0"),
    ):
        push = pb.PushRolloutsRequest(run_id="run", step=1, memory=named, memory_messages=sizes)
        if sizes[0] == 50:
            # Two messages, of which the second is cut off.
            os.pwrite(descriptor, pb.PushRolloutsRequest(request_id="i" * 48).SerializeToString(), 32)
        with pytest.raises(grpc.RpcError, match=said) as refused:
            replay.PushRollouts(iter([push]), timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        os.pwrite(descriptor, b"\xff" * 100, 32)
    assert prepared().get_run().replay_groups == GROUPS
    os.close(descriptor)


def test_memory_cut_off_under_the_service_is_a_short_read(replay: Any) -> None:
    """What the caller does to its memory meanwhile harms the caller alone."""
    key = secrets.token_bytes(32)
    descriptor = os.memfd_create("selector-replay")
    os.ftruncate(descriptor, 2**20)
    os.pwrite(descriptor, key, 0)
    named = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, key=key)
    frames = replay.SampleRollouts(pb.SampleRolloutsRequest(run_id="run", step=1, count=12, memory=named))
    os.ftruncate(descriptor, 0)
    assert list(frames)[-1].memory_bytes >= 0

    def messages() -> Iterator[pb.PushRolloutsRequest]:
        os.pwrite(descriptor, key, 0)
        yield pb.PushRolloutsRequest(run_id="run", step=1, memory=named)
        yield pb.PushRolloutsRequest(memory_messages=[2**20])

    with pytest.raises(grpc.RpcError, match="expected bytes within the memory"):
        replay.PushRollouts(messages(), timeout=10)
    os.close(descriptor)


def test_a_token_without_the_right_gets_nothing_through_memory(tmp_path: Path, reached: list[bool]) -> None:
    tokens = (
        admin("admin"),
        Grant(digest_of("reader"), Scope.READ, ("*",), "reader"),
        Grant(digest_of("stranger"), Scope.WRITE, ("other",), "stranger"),
    )
    service = InProcessService(tmp_path, tokens=tokens)
    owner = service.client("run", token="admin")
    owner.create_run({})
    owner.register_prompts(PROMPTS)
    owner.push_rollouts(0, made(0))
    assert reached == [True]
    for token in ("reader", "stranger"):
        client = service.client("run", token=token)
        client._same_host.sampled(2**20)
        with pytest.raises(PermissionDenied):
            client.sample_rollouts(1, 4)
        with pytest.raises(PermissionDenied):
            client.push_rollouts(1, made(1))
    assert reached == [True]
    service.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_service_of_another_user_cannot_reach_it() -> None:
    key = secrets.token_bytes(32)
    descriptor = os.memfd_create("selector-replay")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, key)
    named = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, key=key)
    assert shared_memory._reach(named) is not None
    child = os.fork()
    if not child:
        os.setgid(65534)
        os.setuid(65534)
        os._exit(0 if shared_memory._reach(named) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(descriptor)


def test_memory_of_a_client_is_its_own(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but its user can open it, it cannot be cut off, and there is no name for it in the file system."""
    seen: list[tuple[int, int, int]] = []
    reach = shared_memory._reach

    def looked_at(memory: pb.SharedMemory) -> Any:
        about = os.fstat(memory.descriptor)
        seals = fcntl.fcntl(memory.descriptor, fcntl.F_GET_SEALS)
        seen.append((about.st_mode & 0o777, about.st_nlink, seals & fcntl.F_SEAL_SHRINK))
        return reach(memory)

    monkeypatch.setattr(shared_memory, "_reach", looked_at)
    prepared().push_rollouts(0, made(0))
    assert seen == [(0o600, 0, fcntl.F_SEAL_SHRINK)]
