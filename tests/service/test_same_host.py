"""Rollouts through memory of the client, when it and the service run on one host: the same bytes, rights and limits.

Where it cannot be had, everything goes over the connection, and nobody notices.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from clients import PermissionDenied, RolloutGroup, SelectorClient, SelectorError
from clients import same_host as ways
from selector.grants import Grant, Scope, admin, digest_of
from selector.service import shared_memory
from selector.v1 import replay_service_pb2 as pb
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub
from tests.service.running import InProcessService, ServiceProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through Linux's /proc")

PROMPTS = [f"p{number}" for number in range(48)]
# Enough for memory to be lent.
GROUPS = 12
TOKENS = 6_000
_PATIENCE_S = 30.0


def made(step: int, count: int = GROUPS, tokens: int = TOKENS, first: int = 0) -> list[RolloutGroup]:
    """Groups with random content that follows from the step, masks and a column among it."""
    random = np.random.default_rng((step, count, first))
    groups = []
    for number in range(count):
        cut = int(random.integers(1, tokens))
        groups.append(
            RolloutGroup.from_arrays(
                prompt_id=PROMPTS[(first + number) % len(PROMPTS)],
                policy_version=step,
                prompt_token_ids=random.integers(0, 1000, 7),
                response_token_ids=np.split(random.integers(0, 150_000, tokens), [cut]),
                behavior_log_probs=np.split(-random.random(tokens, dtype=np.float32), [cut]),
                loss_masks=np.split(random.integers(0, 2, tokens), [cut]),
                rewards=[0.5, -1],
                outcomes=[0, 1],
                columns={"experts": random.integers(0, 255, (5, 3), dtype=np.uint8), "opaque": random.bytes(9)},
            )
        )
    return groups


def content(groups: list[RolloutGroup]) -> dict[str, bytes]:
    """Bytes by prompt, ids aside, which the service may have made."""
    found = {}
    for group in groups:
        message = group.to_proto()
        message.group_id = ""
        found[group.prompt_id] = message.SerializeToString(deterministic=True)
    return found


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the service reached memory, for each call that lent it some."""
    found: list[bool] = []
    reach = shared_memory._reach

    def counted(memory: pb.SharedMemory) -> Any:
        opened = reach(memory)
        found.append(opened is not None)
        return opened

    monkeypatch.setattr(shared_memory, "_reach", counted)
    return found


@pytest.fixture
def prepared(own_service: InProcessService) -> Callable[..., SelectorClient]:
    """A client of a run with prompts."""

    def client(run_id: str = "run", config: Any = None, **options: Any) -> SelectorClient:
        found = own_service.client(run_id, **options)
        found.create_run(config or {"replay": {"capacity_groups": 64}})
        found.register_prompts(PROMPTS)
        return found

    return client


def test_the_same_bytes_come_back_whichever_way_they_went(prepared: Any, reached: list[bool]) -> None:
    here, there = prepared(), prepared(same_host=False)
    for step, (pushing, sampling) in enumerate([(here, here), (there, here), (here, there), (here, here)]):
        groups = made(step)
        assert pushing.push_rollouts(step, groups).stored == GROUPS
        sample = sampling.sample_rollouts(step, GROUPS, order="newest")
        assert content(sample) == content(groups)
        again = (there if sampling is here else here).sample_rollouts(step, GROUPS, order="newest")
        assert content(again) == content(groups)
        for one, other in zip(sample, again, strict=True):
            assert (one.age_steps, one.times_sampled, one.probability) == (other.age_steps, 1, other.probability)
    assert all(reached)
    # Three pushes; and all samples but the first, of which nobody knew how large it would be.
    assert len(reached) == 3 + 3


def test_what_is_refused_is_named_as_over_the_connection(prepared: Any, reached: list[bool]) -> None:
    groups = made(3)
    groups[7] = RolloutGroup(**{**vars_of(groups[7]), "behavior_log_probs": groups[7].behavior_log_probs + 1})
    answers = []
    for options in ({}, {"same_host": False}):
        client = prepared("refusing", **options)
        with pytest.raises(SelectorError) as refused:
            client.push_rollouts(3, groups)
        answers.append((refused.value.reason, refused.value.message, [v.field for v in refused.value.violations]))
    assert answers[0] == answers[1]
    assert answers[0][2] == ["groups[7].behavior_log_probs[0]"]
    pushed = prepared("refusing").push_rollouts(3, groups, skip_refused=True)
    assert (pushed.stored, [each.index for each in pushed.refused]) == (GROUPS - 1, [7])
    assert reached == [True, True]


def vars_of(group: RolloutGroup) -> dict[str, Any]:
    """Arguments of a group."""
    return {name: getattr(group, name) for name in RolloutGroup.__dataclass_fields__}


def carried(service: InProcessService) -> dict[tuple[str, str], int]:
    """Groups by direction and way, as Prometheus sees them."""
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = (
        re.fullmatch(r'selector_replay_carried_groups_total{direction="(\w+)",way="(\w+)"} (\S+)', x) for x in lines
    )
    return {(line[1], line[2]): int(float(line[3])) for line in found if line is not None}


def test_metrics_and_log_tell_which_way_groups_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "selector.client")
    service = InProcessService(tmp_path, metrics_listen="127.0.0.1:0")
    none = dict.fromkeys(itertools.product(("push", "sample"), ("memory", "connection")), 0)
    assert carried(service) == none
    for same_host, way in ((True, "memory"), (False, "connection")):
        caplog.clear()
        client = service.client(way, same_host=same_host)
        client.create_run({"replay": {"capacity_groups": 64}})
        client.register_prompts(PROMPTS)
        before = carried(service)
        # Of the first sample nobody knows the size; the third has nothing new to say.
        for step in range(3):
            client.push_rollouts(step, made(step))
            client.sample_rollouts(step, GROUPS)
        added = {key: count - before[key] for key, count in carried(service).items() if count > before[key]}
        assert added == (
            {("push", "memory"): 3 * GROUPS, ("sample", "memory"): 2 * GROUPS, ("sample", "connection"): GROUPS}
            if same_host
            else {("push", way): 3 * GROUPS, ("sample", way): 3 * GROUPS}
        )
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
        assert [said.removeprefix(f"{service.address}: ") for said in told] == (
            [ways._LENT, ways._SMALL] if same_host else [ways._NOT_WANTED]
        )
    service.close()


@pytest.mark.parametrize("stranger", ["unreachable", "of-another-client"])
def test_without_memory_in_reach_everything_is_sent(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stranger: str
) -> None:
    """A server in a container sees no such process, or somebody else under that number."""
    foreign = os.memfd_create("selector-replay")
    os.write(foreign, secrets.token_bytes(32) + bytes(2**22))
    reach, asked = shared_memory._reach, []

    def elsewhere(memory: pb.SharedMemory) -> Any:
        asked.append(memory)
        if stranger == "unreachable":
            return reach(pb.SharedMemory(process=2**22 + 1, descriptor=3, key=memory.key))
        return reach(pb.SharedMemory(process=os.getpid(), descriptor=foreign, key=memory.key))

    monkeypatch.setattr(shared_memory, "_reach", elsewhere)
    caplog.set_level(logging.DEBUG, "selector.client")
    seconds = [1000.0]
    client = prepared(clock=lambda: seconds[0])
    for step in range(3):
        groups = made(step)
        pushed = client.push_rollouts(step, groups)
        assert (pushed.stored, pushed.already_applied) == (GROUPS, False)
        assert content(client.sample_rollouts(step, GROUPS, order="newest")) == content(groups)
    # It was offered once, and is again after a while.
    assert len(asked) == 1
    seconds[0] += 61
    client.sample_rollouts(7, GROUPS)
    assert len(asked) == 2
    # Why, once.
    assert sum("did not use this process's memory" in record.getMessage() for record in caplog.records) == 1
    assert os.pread(foreign, 2**22, 32) == bytes(2**22)
    os.close(foreign)


def test_samples_stay_as_they_are_while_the_store_moves_on(prepared: Any, reached: list[bool]) -> None:
    """Groups leave, the run is deleted, the client closed: views hold what was sampled."""
    client = prepared(config={"replay": {"capacity_groups": GROUPS}})
    held = []
    for step in range(8):
        groups = made(step)
        client.push_rollouts(step, groups)
        held.append((client.sample_rollouts(step, GROUPS), content(groups)))
    client.delete_run()
    client.close()
    assert all(content(sample) == expected for sample, expected in held)
    assert not any(group.response_token_ids.flags.writeable for sample, _ in held for group in sample)
    assert all(reached)


def test_memory_is_used_again_once_nobody_looks_at_it(prepared: Any, reached: list[bool]) -> None:
    client = prepared()
    for step in range(12):
        client.push_rollouts(step, made(step))
        sample = client.sample_rollouts(step, GROUPS)
        # The service, which is in this process too, lets go of it a moment after its answer.
        assert _eventually(lambda: len(lent_by(os.getpid())) <= 3)
    assert all(reached)
    assert len(sample) == GROUPS
    client.close()
    del sample
    gc.collect()
    assert _eventually(lambda: lent_by(os.getpid()) == [])


# Inodes of memory that clients of other tests in this process still have.
_of_others: set[int] = set()


@pytest.fixture(autouse=True)
def memory_of_others() -> None:
    _of_others.clear()
    _of_others.update(_lent(os.getpid()).values())


def lent_by(process: int) -> list[str]:
    """Memory that a process has open, but for what it had when the test began."""
    return [descriptor for descriptor, inode in _lent(process).items() if inode not in _of_others]


def _lent(process: int) -> dict[str, int]:
    """Descriptors of lent memory, with the inodes."""
    found = {}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:selector-replay"):
                found[entry.name] = entry.stat().st_ino
        except OSError:
            continue
    return found


def test_what_has_no_room_in_the_memory_is_sent(prepared: Any, reached: list[bool]) -> None:
    """A sample may be many times as large as the one before."""
    client, pushing = prepared(), prepared(same_host=False)
    small, large = made(0, 8), made(1, 48, tokens=60_000)
    pushing.push_rollouts(0, small)
    assert len(client.sample_rollouts(0, 8)) == 8
    pushing.push_rollouts(1, large)
    sizes = []
    for step in (1, 2):
        sample = client.sample_rollouts(step, 48, order="newest")
        assert content(sample) == content(large)
        del sample
        assert _eventually(lambda: len(lent_by(os.getpid())) == 1)
        (descriptor,) = lent_by(os.getpid())
        sizes.append(os.fstat(int(descriptor)).st_size)
    assert reached == [True, True]
    # Nothing was written beyond the room that there was; the next sample had enough.
    assert sizes[0] < 9 * 2**20 < sum(group.nbytes for group in large) < sizes[1]


def test_what_has_no_room_is_sent_in_messages_of_ordinary_size(prepared: Any) -> None:
    """A client that takes none beyond 2 MiB, and lent too little memory, gets its groups nevertheless."""
    client = prepared(max_message_bytes=2 * 2**20)
    groups = made(0, 48, tokens=40_000)
    # Of what this client lent to a push there would be enough.
    prepared(same_host=False).push_rollouts(0, groups)
    client.sample_rollouts(0, 2)
    assert content(client.sample_rollouts(1, 48)) == content(groups)


def test_many_clients_at_once_get_their_own_bytes(own_service: InProcessService, reached: list[bool]) -> None:
    def trainer(number: int) -> bool:
        client = SelectorClient(own_service.address, f"run-{number % 4}", timeout_s=120)
        client.create_run({"replay": {"capacity_groups": 400}})
        client.register_prompts(PROMPTS)
        mine = PROMPTS[number // 4 * 12 : number // 4 * 12 + 12]
        for step in range(4):
            groups = made(step, first=number // 4 * 12)
            client.push_rollouts(step, groups)
            sample = client.sample_rollouts(
                step * 16 + number, 48, order="newest", exclude_prompt_ids=set(PROMPTS) - set(mine)
            )
            # Of later steps than this one there may be some of other trainers only.
            if content([group for group in sample if group.policy_version == step]) != content(groups):
                return False
        client.close()
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(trainer, range(16)))
    assert all(reached)


def test_memory_counts_as_if_it_were_sent(tmp_path: Path, reached: list[bool]) -> None:
    service = InProcessService(tmp_path, max_stream_bytes=1_000_000, max_inflight_bytes=3 * 2**20)
    client = service.client("run")
    client.create_run({})
    client.register_prompts(PROMPTS)
    with pytest.raises(SelectorError, match="max_stream_bytes=1000000"):
        client.push_rollouts(0, made(0, 24))
    service.restart(max_stream_bytes=2**30)
    client = service.client("run", timeout_s=2)
    with pytest.raises(SelectorError, match="max_inflight_bytes=3145728"):
        client.push_rollouts(0, made(0, 48, tokens=20_000))
    assert client.get_run().replay_groups == 0
    assert True in reached
    service.close()


def test_a_worker_that_was_forked_keeps_the_sample_it_sees(prepared: Any) -> None:
    """A data set's workers, while the trainer goes on sampling."""
    client = prepared()
    for step in range(2):
        client.push_rollouts(step, made(step))
        sample = client.sample_rollouts(step, GROUPS, order="newest")
    look, looks = os.pipe()
    worker = os.fork()
    if not worker:
        os.read(look, 1)
        os._exit(0 if content(sample) == content(made(1)) else 1)
    del sample
    for step in range(2, 5):
        client.push_rollouts(step, made(step))
        assert content(client.sample_rollouts(step, GROUPS, order="newest")) == content(made(step))
    os.write(looks, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
    os.close(look)
    os.close(looks)


# What may be named


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


# Ends


_LENDS_AND_WAITS = """
import sys, time
from tests.service.test_same_host import GROUPS, made
from clients import SelectorClient
from clients import streams
address = sys.argv[1]
client = SelectorClient(address, "run")
client.push_rollouts(1, made(1))
frames = streams.rollout_frames
def slowly(groups):
    found = list(frames(groups))
    for _ in range(streams._FRAMES_TOLD):
        yield from found
    print("half", flush=True)
    time.sleep(600)
streams.rollout_frames = slowly
client.push_rollouts(2, made(2, GROUPS))
"""


def test_a_client_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)
    client = service.client("run")
    client.create_run({})
    client.register_prompts(PROMPTS)
    for _ in range(3):
        pushing = subprocess.Popen(
            [sys.executable, "-c", _LENDS_AND_WAITS, service.address], stdout=subprocess.PIPE, text=True
        )
        assert pushing.stdout is not None
        assert pushing.stdout.readline() == "half\n"
        assert _eventually(lambda: len(lent_by(service.process.pid)) == 1)
        pushing.send_signal(signal.SIGKILL)
        pushing.wait()
        pushing.stdout.close()
        assert _eventually(lambda: lent_by(service.process.pid) == [])
    # The first push of each was acknowledged, and is there once; the second is not.
    assert client.get_run().replay_groups == GROUPS
    assert content(client.sample_rollouts(5, 100)) == content(made(1))
    client.close()
    assert service.terminate() == 0


def test_a_service_that_is_killed_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Of pushes through memory, as of all others."""
    acknowledged: list[int] = []
    stop = threading.Event()
    service = ServiceProcess(tmp_path)

    def push(address: str) -> None:
        client = SelectorClient(address, "run", timeout_s=2)
        client.create_run({"replay": {"capacity_groups": 10_000, "newest_per_prompt": False}})
        client.register_prompts(PROMPTS)
        while not stop.is_set():
            step = len(acknowledged)
            try:
                client.push_rollouts(step, made(step))
            except SelectorError:
                break
            acknowledged.append(step)
        client.close()

    for _ in range(3):
        before = len(acknowledged)
        pushing = threading.Thread(target=push, args=(service.address,))
        pushing.start()
        assert _eventually(partial(lambda least: len(acknowledged) >= least, before + 5))
        service.kill()
        pushing.join()
        service = ServiceProcess(tmp_path)
    stop.set()
    client = service.client("run", timeout_s=60)
    sample = client.sample_rollouts(10_000, 10_000)
    found: dict[int, list[RolloutGroup]] = {}
    for group in sample:
        found.setdefault(group.policy_version, []).append(group)
    for step in acknowledged:
        assert content(found[step]) == content(made(step))
    gc.collect()
    assert len(lent_by(os.getpid())) <= 3
    client.close()
    assert service.terminate() == 0


def _eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + _PATIENCE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("lacking", ["memfd_create", "F_ADD_SEALS", "F_GET_SEALS"])
def test_a_python_without_such_memory_sends_everything(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """One that was built for an old C library, in the trainer's environment or the service's."""
    monkeypatch.delattr(fcntl if lacking.startswith("F_") else os, lacking)
    client = prepared()
    for step in range(2):
        client.push_rollouts(step, made(step))
        assert content(client.sample_rollouts(step, GROUPS, order="newest")) == content(made(step))
    assert lent_by(os.getpid()) == []
