"""Rollouts through memory of the client, when it and the service run on one host: the same bytes and limits.

Where it cannot be had, everything goes over the connection, and nobody notices.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import secrets
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients import RolloutGroup, SelectorClient, SelectorError
from clients import same_host as ways
from selector.service import shared_memory
from selector.v1 import replay_service_pb2 as pb
from tests.service.running import InProcessService
from tests.service.same_host.lending import (
    GROUPS,
    PROMPTS,
    content,
    eventually,
    lent_by,
    made,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through Linux's /proc")


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
        assert eventually(lambda: len(lent_by(os.getpid())) == 1)
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
        client.create_run({"replay": {"capacity_groups": 400, "max_age_steps": 0}})
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
