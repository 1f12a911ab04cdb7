"""Crashes, full disks, damaged files, concurrent runs: what was acknowledged is there, the rest left no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from selector.config import ReplayConfig
from selector.replay import PayloadCorrupt, ReplayRun, ReplayStore, SampleOrder, SampleRequest, StorageFailed
from selector.replay.history import Mark
from selector.replay.store import RunWriter
from tests.replay import pusher
from tests.replay.groups import checked, payload, pushed, sampled

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def killed_after(directory: Path, first_step: int, acknowledgements: int, delay_s: float) -> list[str]:
    """Lines of a pusher that is killed some time after a number of acknowledgements."""
    with python(str(ROOT / "tests/replay/pusher.py"), str(directory), str(first_step)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledgements)]
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
        lines += process.stdout.readlines()
    # The last line may be torn by the kill; a whole one was an acknowledgement.
    return [line for line in lines if line.endswith("\n")]


def test_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    delays = np.random.default_rng(7)
    expected: dict[str, bytes] = {}
    digests: dict[int, str] = {}
    step = 0
    for _ in range(5):
        for line in killed_after(tmp_path, step, int(delays.integers(1, 8)), float(delays.uniform(0, 0.03))):
            what, number, *digest = line.split()
            step = int(number) + 1
            if what == "sampled":
                digests[int(number)] = digest[0]
            else:
                expected |= {g.group_id: data for g, data in pushed(int(number), pusher.GROUPS, size=pusher.SIZE)}
        store = ReplayStore(tmp_path)
        run = ReplayRun(store, 1, pusher.CONFIG, seed=0)
        for sampled_step, digest_then in digests.items():
            assert pusher.digest(run, sampled_step) == digest_then
        found = sampled(run, SampleRequest(step + 1000, 10**6, SampleOrder.NEWEST))
        payloads = {group.group_id: group.payload for group in found.groups}
        assert payloads.items() >= expected.items()
        # A push that was not acknowledged is there whole or not at all; never in part.
        unacknowledged = {g.group_id: data for g, data in pushed(step, pusher.GROUPS, size=pusher.SIZE)}
        extra = {group_id: data for group_id, data in payloads.items() if group_id not in expected}
        assert extra in ({}, unacknowledged)
        run.rewind(step, epoch=run.stats().counters["pushes"] + step + 1)
        store.close()


def test_full_map_changes_nothing(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path / "small", map_bytes=2 << 20)
    other = ReplayStore(tmp_path / "roomy")
    config = ReplayConfig(capacity_groups=1000)
    run, twin = ReplayRun(store, 1, config, 0), ReplayRun(other, 1, config, 0)
    step = 0
    with pytest.raises(StorageFailed, match="map size"):
        while True:
            run.push(pushed(step, 5, size=30_000), step)
            step += 1
    assert step > 3
    for number in range(step):
        twin.push(pushed(number, 5, size=30_000), number)
    assert run.stats() == twin.stats()
    with pytest.raises(StorageFailed):
        run.push(pushed(step, 5, size=30_000), step)
    store.close()
    store = ReplayStore(tmp_path / "small", map_bytes=64 << 20)
    run = ReplayRun(store, 1, config, 0)
    for number in (step, step + 1):
        assert run.push(pushed(number, 5, size=30_000), number) == twin.push(pushed(number, 5, size=30_000), number)
        assert sampled(run, SampleRequest(number, 7)) == sampled(twin, SampleRequest(number, 7))
    store.close()
    other.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from selector.config import ReplayConfig
from selector.replay import ReplayRun, ReplayStore, StorageFailed
from tests.replay.groups import pushed

run = ReplayRun(ReplayStore(Path(sys.argv[1])), 1, ReplayConfig(capacity_groups=1000), 0)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
step = 0
try:
    while step < 100:
        run.push(pushed(step, 5, size=30_000), step)
        step += 1
except StorageFailed:
    groups = run.stats().live_groups
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    run.push(pushed(step, 5, size=30_000), step)
    print(step, groups, run.stats().live_groups)
"""


def test_full_disk_changes_nothing(tmp_path: Path) -> None:
    with python("-c", FULL_DISK, str(tmp_path)) as process:
        assert process.stdout is not None
        step, groups_then, groups_at_last = map(int, process.stdout.read().split())
    assert step > 0
    assert (groups_then, groups_at_last) == (5 * step, 5 * step + 5)
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, ReplayConfig(capacity_groups=1000), 0)
    expected = {g.group_id: data for at in range(step + 1) for g, data in pushed(at, 5, size=30_000)}
    assert {g.group_id: g.payload for g in sampled(run, SampleRequest(step, 10**6)).groups} == expected
    store.close()


def test_failed_fork_leaves_nothing(store: ReplayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads are copied before the rest, in transactions of their own."""
    run = ReplayRun(store, 1, ReplayConfig(), 0)
    run.push(pushed(0, 5), 0)

    def fail(*_: object) -> None:
        assert store.runs() == [1, 2], "the payloads were not copied yet"
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "meta", fail)
        with pytest.raises(StorageFailed):
            run.fork(2, before_step=1)
    assert store.runs() == [1]
    assert run.fork(2, before_step=1).stats().live_groups == 5


@pytest.mark.parametrize("run", [0, 5, 2**64 - 1])
def test_runs_without_meta_are_listed(store: ReplayStore, run: int) -> None:
    """What a process that died within a fork left can be found and deleted."""
    ReplayRun(store, 3, ReplayConfig(), 0).push(pushed(0, 2), 0)
    with store.write(run) as writer:
        writer.payload(0, b"first")
        writer.payload(1, b"second")
    with store.write(4) as writer:
        writer.marks([Mark(0, 0, 0)])
    assert store.runs() == sorted({run, 3, 4})
    for left in (run, 4):
        store.drop_run(left)
    assert store.runs() == [3]
    assert store.payloads(run, [0, 1]) == [None, None]


def test_damaged_payload_is_named(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, ReplayConfig(), 0)
    victim = payload(99, size=20_000)
    run.push([(checked("good", 0), payload(1, size=20_000)), (checked("victim", 0), victim)], 0)
    store.close()
    file = tmp_path / "data.mdb"
    content = bytearray(file.read_bytes())
    content[content.index(victim[:64]) + 11_000] ^= 1
    file.write_bytes(content)
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, ReplayConfig(), 0)
    with pytest.raises(PayloadCorrupt, match="'victim@0' of prompt 'victim'"):
        sampled(run, SampleRequest(0, 2))
    assert [g.group_id for g in sampled(run, SampleRequest(1, 2, exclude=frozenset({"victim"}))).groups] == ["good@0"]
    store.close()


def drawn(store: ReplayStore, number: int) -> list[str]:
    """What a run draws while it trains."""
    run = ReplayRun(store, number, ReplayConfig(capacity_groups=20), seed=number)
    groups: list[str] = []
    for step in range(12):
        run.push(pushed(step, 5, size=5000), step)
        groups += [group.group_id for group in sampled(run, SampleRequest(step, 4)).groups]
    return groups


def test_runs_from_several_threads(store: ReplayStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(lambda number: drawn(store, number), range(8)))
    other = ReplayStore(tmp_path / "other")
    assert at_once == [drawn(other, number) for number in range(8)]
    other.close()


def test_store_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageFailed, match="cannot be opened"):
        ReplayStore(tmp_path / "file")
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageFailed, match=r"data\.mdb is damaged"):
        ReplayStore(tmp_path)
