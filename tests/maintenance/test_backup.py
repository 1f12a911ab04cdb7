"""Backups: of one moment, whole or not there, and a restored directory goes on as the source did."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients import SelectorClient
from selector.errors import ServiceError
from selector.maintenance.backup import back_up
from selector.maintenance.frozen import frozen_stores
from selector.maintenance.manifest import MANIFEST, read_manifest
from selector.maintenance.restore import restore
from selector.maintenance.verify import verify
from selector.storage.frozen import FrozenDatabase
from selector.storage.state_dir import StateDirectory
from tests.maintenance.conftest import silent
from tests.maintenance.loaded_run import CALLS_AFTER, LoadedRun
from tests.maintenance.test_verify import problems
from tests.migrations.released_state import RELEASED, recorded
from tests.service.running import InProcessService
from tests.service.trainer import group_of

ROOT = Path(__file__).parents[2]

_RUNS: dict[str, dict[str, Any]] = {
    "fused": {},
    "tracker": {"estimator": {"name": "TRACKER"}, "replay": {"capacity_groups": 6, "informative_only": False}},
    "attention": {"estimator": {"name": "ATTENTION"}, "score": "INFORMATIVE", "replay": {"max_age_steps": 3}},
}


# Of every run, before a backup begins and between its stages: a step and a half.
_CALLS_BETWEEN = 9

_STAGE_BY_STAGE = """
import sys, time
from pathlib import Path
from selector.maintenance.backup import back_up
from selector.maintenance.frozen import frozen_stores
seen = set()
def wait(what, done, total):
    if what not in seen:
        seen.add(what)
        print(what, flush=True)
        sys.stdin.readline()
back_up(Path(sys.argv[1]), Path(sys.argv[2]), time.time, wait)
"""


def _backup_under_load(state: Path, target: Path, work_on: Callable[[], object]) -> tuple[float, float]:
    """Back up from a process of its own, as beside a real server; moments before and after.

    Between the stages the load goes on, so that what is not of one moment becomes apparent.
    """
    work_on()
    begun = time.monotonic()
    command = [sys.executable, "-c", _STAGE_BY_STAGE, str(state), str(target)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stages = 0
        for _ in process.stdout:
            stages += 1
            work_on()
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    assert stages == 4
    return begun, time.monotonic()


@pytest.mark.slow
@pytest.mark.parametrize(("backups", "copies"), [(1, 1), (4, 2)])
def test_backups_under_load_go_on_as_the_source_did(tmp_path: Path, backups: int, copies: int) -> None:
    runs = [
        LoadedRun(f"{name}-{copy}", {**config, "seed": copy})
        for name, config in _RUNS.items()
        for copy in range(copies)
    ]
    service = InProcessService(tmp_path / "state")
    taken: list[tuple[Path, float, float]] = []
    stop = threading.Event()
    try:
        clients = {run.run_id: service.client(run.run_id) for run in runs}
        for run in runs:
            run.begin(clients[run.run_id])
        with ThreadPoolExecutor(len(runs)) as threads:
            working = [threads.submit(run.work, clients[run.run_id], stop) for run in runs]

            def work_on() -> None:
                """Wait until every run has made some more calls."""
                wanted = [len(run.journal) + _CALLS_BETWEEN for run in runs]
                while any(len(run.journal) < count for run, count in zip(runs, wanted, strict=True)):
                    assert not any(work.done() for work in working), [work.result() for work in working if work.done()]
                    time.sleep(0.01)

            try:
                for number in range(backups):
                    target = tmp_path / f"backup-{number}"
                    taken.append((target, *_backup_under_load(tmp_path / "state", target, work_on)))
            finally:
                stop.set()
            for work in working:
                work.result()
        endings = [run.ending(clients[run.run_id]) for run in runs]
    finally:
        service.close()
    for target, begun, ended in taken:
        assert problems(verify(target)) == []
        restored = tmp_path / f"restored-from-{target.name}"
        restore(target, restored, silent)
        again = InProcessService(restored)
        try:
            for run, ending in zip(runs, endings, strict=True):
                client = again.client(run.run_id)
                assert run.check_continuation(client, restored, begun, ended) >= CALLS_AFTER
                assert run.ending(client) == ending, run.run_id
        finally:
            again.close()
        assert problems(verify(restored)) == []


def test_views_are_of_one_moment(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to the replay store between the two views: they are taken anew."""
    write = f"""
import lmdb
with lmdb.open({str(state / "replay")!r}, max_dbs=8) as store, store.begin(write=True) as txn:
    txn.put(b"written", b"in between")
"""
    taken: list[float] = []
    renew = FrozenDatabase.renew

    def late(self: FrozenDatabase) -> None:
        if not taken:
            subprocess.run([sys.executable, "-c", write], check=True)
        taken.append(time.monotonic())
        renew(self)

    monkeypatch.setattr(FrozenDatabase, "renew", late)
    with frozen_stores(state) as stores:
        assert stores.replay.newest
    assert len(taken) == 2


def test_a_backup_answers_as_the_directory_it_is_of(backup: Path, tmp_path: Path) -> None:
    restore(backup, tmp_path / "restored", silent)
    service = InProcessService(tmp_path / "restored")
    try:
        answers = json.loads(json.dumps(recorded(service.client), default=list))
    finally:
        service.close()
    assert answers == json.loads((RELEASED / "0001" / "recorded.json").read_text())


def test_a_manifest_names_the_runs(backup: Path) -> None:
    manifest = read_manifest(backup)
    assert {run.run_id: run.last_step for run in manifest.runs} == {
        "attention": 5,
        "branch": 3,
        "empty": -1,
        "fused": 6,
        "texts": 5,
        "tracker": 6,
    }
    assert manifest.taken_unix_seconds == 1.7e9
    files = {path.relative_to(backup).as_posix() for path in backup.rglob("*") if path.is_file()}
    assert {facts.path for facts in manifest.files} | {MANIFEST} == files


# --- whole or not there -----------------------------------------------------------------------------------------------


class _StoppedError(Exception):
    pass


@pytest.mark.parametrize("stage", ["database", "checksums"])
def test_a_backup_that_fails_leaves_nothing(stage: str, state: Path, tmp_path: Path) -> None:
    def stop(what: str, _done: int, _total: int) -> None:
        if what == stage:
            raise _StoppedError

    before = sorted(tmp_path.iterdir())
    with pytest.raises(_StoppedError):
        back_up(state, tmp_path / "new", time.time, stop)
    assert sorted(tmp_path.iterdir()) == before
    back_up(state, tmp_path / "new", time.time, silent)
    assert problems(verify(tmp_path / "new")) == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["database", "embeddings", "replay", "checksums"])
def test_a_backup_that_is_killed_never_looks_complete(stage: str, state: Path, tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from selector.maintenance.backup import back_up
from selector.maintenance.frozen import frozen_stores
def die(what, done, total):
    if what == {stage!r}:
        os.kill(os.getpid(), signal.SIGKILL)
back_up(Path({str(state)!r}), Path({str(tmp_path / "new")!r}), lambda: 0.0, die)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "new").exists()
    (left,) = tmp_path.glob(".new.partial-*")
    assert not (left / MANIFEST).exists()
    back_up(state, tmp_path / "new", time.time, silent)
    assert problems(verify(tmp_path / "new")) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for half of a backup."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("a file system can be mounted only by root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs root")
def test_a_full_disk(state: Path, small_disk: Path) -> None:
    with pytest.raises(ServiceError, match=r"(cannot be (backed up|copied)|cannot write)"):
        back_up(state, small_disk / "new", time.time, silent)
    assert list(small_disk.iterdir()) == []


@pytest.mark.slow
def test_a_reader_that_was_killed_does_not_keep_replay_pages(tmp_path: Path) -> None:
    """Its view would keep every page that is freed from then on, until the store is full."""
    service = InProcessService(tmp_path / "state", replay_map_bytes=2**21)
    try:
        client = service.client("run")
        client.create_run({"replay": {"capacity_groups": 2, "informative_only": False}})
        client.register_prompts(["p000"], embeddings=[[1.0, 2.0]])
        _push(client, 0)
        code = f"""
import os, signal
from pathlib import Path
from selector.maintenance.frozen import frozen_stores
with frozen_stores(Path({str(tmp_path / "state")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
        for step in range(1, 16):
            _push(client, step)
            client.rewind(step)
    finally:
        service.close()


def _push(client: SelectorClient, step: int) -> None:
    group = group_of("p000", step, [1.0, 0.0], columns={"ballast": b"x" * 200_000})
    assert client.push_rollouts(step, [group]).stored == 1


# --- where to ---------------------------------------------------------------------------------------------------------


def test_places_that_are_refused(state: Path, backup: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "nothing").mkdir()
    for source, target, expected in (
        (state, tmp_path / "full", "is there already"),
        (state, tmp_path / "file", "is there already"),
        (state, state / "backup", "lies within the state directory"),
        (tmp_path / "nothing", tmp_path / "new", r"is no state directory: it has no state\.db"),
        (backup, tmp_path / "new", "is a backup itself"),
    ):
        with pytest.raises(ServiceError, match=expected):
            back_up(source, target, time.time, silent)
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "keep"
    assert not (tmp_path / "new").exists()


def test_an_empty_directory_may_be_there(state: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    back_up(state, tmp_path / "empty", time.time, silent)
    assert problems(verify(tmp_path / "empty")) == []


def test_a_target_that_fills_meanwhile_is_left_alone(state: Path, tmp_path: Path) -> None:
    def fill(_what: str, _done: int, _total: int) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "other").touch()

    with pytest.raises(ServiceError, match="cannot write"):
        back_up(state, tmp_path / "new", time.time, fill)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["other"]
    assert not list(tmp_path.glob(".new*"))


def test_a_damaged_store_is_not_backed_up(state: Path, tmp_path: Path) -> None:
    (space,) = (state / "embeddings").iterdir()
    os.truncate(space / "keys.bin", 36 * 20 + 7)
    with pytest.raises(ServiceError, match="row 20 is missing or damaged, and 49 rows are in use"):
        back_up(state, tmp_path / "new", time.time, silent)
    assert not (tmp_path / "new").exists()


def test_an_embedding_that_is_being_written_is_left_out(state: Path, tmp_path: Path) -> None:
    (space,) = (state / "embeddings").iterdir()
    whole = {path.name: path.read_bytes() for path in space.iterdir()}
    with open(space / "keys.bin", "ab") as keys, open(space / "vectors.f32", "ab") as vectors:
        keys.write(b"\0" * 40)
        vectors.write(b"\0" * 17)
    back_up(state, tmp_path / "new", time.time, silent)
    copied = {path.name: path.read_bytes() for path in (tmp_path / "new" / "embeddings" / space.name).iterdir()}
    assert copied == whole


# --- restoring --------------------------------------------------------------------------------------------------------


def test_a_server_does_not_open_a_backup(backup: Path) -> None:
    before = sorted(backup.iterdir())
    with pytest.raises(ServiceError, match=re.escape("is a backup; make a state directory of it with `selector rest")):
        StateDirectory(backup)
    assert sorted(backup.iterdir()) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
@pytest.mark.parametrize("name", ["state.db", "replay/data.mdb"])
def test_a_damaged_backup_is_not_restored(name: str, damage: str, backup: Path, tmp_path: Path) -> None:
    path = backup / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, 100)
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(ServiceError, match=rf"{name} is (damaged|missing)"):
        restore(backup, tmp_path / "restored", silent)
    assert not (tmp_path / "restored").exists()
    assert not list(tmp_path.glob(".restored*"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"schema": "0001"', '"schema": "8888"', "schema '8888', written by a newer version .* knows schemas up to"),
        ('"format": 1', '"format": 2', "is no backup: cannot use .*its format is not 1"),
        ('"path": "state.db"', '"path": "../state.db"', "names a file outside of the backup"),
        ('"path": "state.db"', '"path": "/state.db"', "names a file outside of the backup"),
    ],
)
def test_a_manifest_that_is_refused(old: str, new: str, expected: str, backup: Path, tmp_path: Path) -> None:
    text = (backup / MANIFEST).read_text()
    schema = read_manifest(backup).schema
    old = old.replace("0001", schema)
    assert old in text
    (backup / MANIFEST).write_text(text.replace(old, new))
    with pytest.raises(ServiceError, match=expected):
        restore(backup, tmp_path / "restored", silent)
    assert not (tmp_path / "restored").exists()


@pytest.mark.slow
def test_a_served_directory_can_be_verified_at_any_time(tmp_path: Path) -> None:
    runs = [LoadedRun(name, config) for name, config in _RUNS.items()]
    service, stop = InProcessService(tmp_path / "state"), threading.Event()
    try:
        clients = {run.run_id: service.client(run.run_id) for run in runs}
        for run in runs:
            run.begin(clients[run.run_id])
        with ThreadPoolExecutor(len(runs)) as threads:
            working = [threads.submit(run.work, clients[run.run_id], stop) for run in runs]
            try:
                for _ in range(5):
                    command = [sys.executable, "-m", "selector", "verify", "--state-dir", str(tmp_path / "state")]
                    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
                    assert done.returncode == 0, done.stdout + done.stderr
            finally:
                stop.set()
            for work in working:
                work.result()
    finally:
        service.close()
