"""Many callers of one state database: writers wait for each other, however long; readers wait for nobody."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from clients import Unavailable
from clients.retry import RetryPolicy
from selector.errors import ServiceError
from selector.pool import PromptRecord
from selector.storage import database as databases
from selector.storage import runs as storage
from selector.storage.database import Database
from selector.storage.runs import AnsweredRequest, RunRow, RunStore
from selector.v1.reasons import Reason
from tests.service.running import InProcessService
from tests.service.trainer import outcomes_of, prompts

# More than the server has threads, and than a pool of connections has by default.
THREADS = 40


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state.db")
    yield opened
    opened.close()


def add_run(store: RunStore, run_id: str) -> int:
    with store.transaction() as tx:
        return tx.insert_run(RunRow(0, run_id, "{}", "{}", 0.0, "", 0, 0, 0, "", 0))


def record(i: int, text: str = "") -> PromptRecord:
    return PromptRecord(f"p{i}", bytes([i]) * 32, text or f"text {i}", i, "d", i, np.nan if i % 2 else i / 20, i, 1)


def request(i: int) -> AnsweredRequest:
    return AnsweredRequest(f"r{i}", "RetirePrompts", b"", b"", i)


def remembered(store: RunStore, run: int, count: int) -> list[int]:
    return [i for i in range(count) if store.find_request(run, f"r{i}") is not None]


def test_runs_report_while_another_run_registers_many_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SQLite itself waiting for a writer next to no time, as if the registration took minutes."""
    monkeypatch.setattr(databases, "_BUSY_TIMEOUT_MS", 1)
    service = InProcessService(tmp_path)
    try:
        small = service.client("small", retry=RetryPolicy(max_attempts=1))
        small.create_run({"cool_down_steps": 0})
        small.register_prompts(prompts(8))
        large = service.client("large")
        large.create_run()
        registering = threading.Thread(target=large.register_prompts, args=(prompts(20_000),))
        registering.start()
        step = 0
        while registering.is_alive() or step < 3:
            chosen = small.select_batch(step, 4)
            small.report_outcomes(step, outcomes_of(chosen.prompt_ids, step))
            step += 1
        registering.join()
        assert small.get_run().selections == step
        assert large.get_run().pool.active == 20_000
    finally:
        service.close()


def test_writers_take_turns_beyond_the_busy_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_BUSY_TIMEOUT_MS", 1)
    database = Database(tmp_path / "state.db")
    store = RunStore(database)

    def add(i: int) -> int:
        with store.transaction() as tx:
            run = tx.insert_run(RunRow(0, f"run{i}", "{}", "{}", 0.0, "", 0, 0, 0, "", 0))
            tx.put_prompts(run, [(k, record(k)) for k in range(200)])
        return run

    with ThreadPoolExecutor(THREADS) as threads:
        ids = list(threads.map(add, range(THREADS)))
    assert {run.id for run in store.runs()} == set(ids)
    assert all(len(store.prompts(run)) == 200 for run in ids)
    database.close()


def test_a_lock_of_another_program_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written that would have to be written over; all runs wait as long as one writer does."""
    monkeypatch.setattr(databases, "_BUSY_TIMEOUT_MS", 1)
    tried: list[int] = []
    written = Database._written

    def watched(self: Database, number: int) -> AbstractContextManager[sa.Connection]:
        tried.append(number)
        return written(self, number)

    monkeypatch.setattr(Database, "_written", watched)
    service = InProcessService(tmp_path)
    try:
        client = service.client("r", retry=RetryPolicy(max_attempts=1))
        client.create_run({})
        tried.clear()
        other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            client.register_prompts(["p"], ["a question"])
        assert len(tried) == 1
        other.execute("ROLLBACK")
        other.close()
        assert client.register_prompts(["p"], ["a question"]).added == 1
    finally:
        service.close()


def test_every_thread_can_read_at_once(database: Database) -> None:
    """Also while one writes; and none waits for a connection."""
    together = threading.Barrier(THREADS + 1, timeout=20)

    def read(_: int) -> int:
        with database.read() as connection:
            count = connection.scalar(sa.text("SELECT count(*) FROM runs"))
            together.wait()
            return int(count or 0)

    store = RunStore(database)
    with ThreadPoolExecutor(THREADS) as threads:
        counts = threads.map(read, range(THREADS))
        add_run(store, "run")
        with store.transaction() as tx:
            tx.insert_run(RunRow(0, "unseen", "{}", "{}", 0.0, "", 0, 0, 0, "", 0))
            together.wait()
        assert set(counts) <= {0, 1}
    assert len(store.runs()) == 2


@pytest.mark.parametrize(
    "error",
    [
        sa.exc.TimeoutError("QueuePool limit reached"),
        sa.exc.OperationalError("INSERT secret", {}, Exception("disk I/O error")),
        sa.exc.DatabaseError("INSERT secret", {}, Exception("database disk image is malformed")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_database_raises_is_a_failure_of_storage(database: Database, error: Exception) -> None:
    store = RunStore(database)
    with pytest.raises(ServiceError) as failed, store.transaction() as tx:
        tx.insert_run(RunRow(0, "lost", "{}", "{}", 0.0, "", 0, 0, 0, "", 0))
        raise error
    assert failed.value.reason is Reason.STORAGE_FAILED
    assert failed.value.retry_after_s is not None
    assert "secret" not in failed.value.message
    with pytest.raises(ServiceError) as failed, database.read():
        raise error
    assert failed.value.reason is Reason.STORAGE_FAILED
    assert store.runs() == []
    # Neither the turn nor a connection is lost.
    add_run(store, "kept")
    assert [run.run_id for run in store.runs()] == ["kept"]


def test_prompts_come_back_as_they_were_put(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PROMPTS_PER_INSERT", 3)
    store = RunStore(database)
    run, other = add_run(store, "run"), add_run(store, "other")
    records = [record(i) for i in range(10)]
    with store.transaction() as tx:
        tx.put_prompts(run, [])
        tx.put_prompts(run, list(enumerate(records)))
        tx.put_prompts(other, [(0, record(0))])
    changed = records[4]._replace(text="other", prior_rate=np.nan, status=3, status_reason="too long")
    with store.transaction() as tx:
        tx.put_prompts(run, [(4, changed), (10, record(10))])
    # repr: NaN is not equal to itself.
    assert repr(store.prompts(run)) == repr([*records[:4], changed, *records[5:], record(10)])
    assert repr(store.prompts(other)) == repr([record(0)])


def test_each_run_forgets_its_oldest_requests(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever pattern runs take turns, which decides about the numbers that their requests get."""
    monkeypatch.setattr(storage, "_REQUESTS_SPARE", 10)
    store = RunStore(database, requests_kept=20)
    busy, idle = add_run(store, "busy"), add_run(store, "idle")
    for i in range(65):
        with store.transaction() as tx:
            tx.remember_request(busy, request(i))
            if i < 7:
                tx.remember_request(idle, request(i))
        if i % 4:
            continue
        newest = remembered(store, busy, i + 1)
        assert newest == list(range(i + 1))[-len(newest) :]
        assert min(i + 1, 20) <= len(newest) <= 30
    assert remembered(store, idle, 65) == list(range(7))


def test_requests_are_forgotten_across_restarts_and_failures(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_REQUESTS_SPARE", 10)
    run = add_run(RunStore(database), "run")
    for i in range(0, 45, 3):
        # Opened anew far more often than it is pruned otherwise, with a transaction that fails at any point.
        store = RunStore(database, requests_kept=20)
        for k in range(i, i + 3):
            with store.transaction() as tx:
                tx.remember_request(run, request(k))
        with pytest.raises(ZeroDivisionError), store.transaction() as tx:
            tx.remember_request(run, request(1000))
            raise ZeroDivisionError
        newest = remembered(store, run, i + 3)
        assert newest == list(range(i + 3))[-len(newest) :]
        assert min(i + 3, 20) <= len(newest) <= 30
