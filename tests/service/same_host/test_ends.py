"""How long lent memory lives: as long as somebody looks at it, whoever is killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clients import RolloutGroup, SelectorClient, SelectorError
from tests.service.running import ServiceProcess
from tests.service.same_host.lending import (
    GROUPS,
    PROMPTS,
    content,
    eventually,
    lent_by,
    made,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through Linux's /proc")


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
        assert eventually(lambda: len(lent_by(os.getpid())) <= 3)
    assert all(reached)
    assert len(sample) == GROUPS
    client.close()
    del sample
    gc.collect()
    assert eventually(lambda: lent_by(os.getpid()) == [])


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


_LENDS_AND_WAITS = """
import sys, time
from tests.service.same_host.lending import GROUPS, made
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
        assert eventually(lambda: len(lent_by(service.process.pid)) == 1)
        pushing.send_signal(signal.SIGKILL)
        pushing.wait()
        pushing.stdout.close()
        assert eventually(lambda: lent_by(service.process.pid) == [])
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
        client.create_run({"replay": {"capacity_groups": 10_000, "newest_per_prompt": False, "max_age_steps": 0}})
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
        assert eventually(partial(lambda least: len(acknowledged) >= least, before + 5))
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
