"""The parts that storage faults are met with, one by one: marks, checksums, the reserve, damaged records."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from selector.config import ReplayConfig
from selector.errors import ServiceError
from selector.pool import PromptRecord
from selector.replay import ReplayRun, ReplayStore, SampleRequest, StorageFailed
from selector.replay.records import sealed, unsealed
from selector.storage.checksums import row_checksum
from selector.storage.database import Database
from selector.storage.reserve import Reserve
from selector.storage.runs import AnsweredRequest, RunRow, RunStore
from selector.storage.watermark import Store, Watermark
from selector.v1.reasons import Reason
from tests.replay.groups import pushed, sampled


def _filled(path: Path) -> int:
    """A database with a row of every kind; the run's number."""
    database = Database(path)
    store = RunStore(database)
    with store.transaction() as tx:
        run = tx.insert_run(RunRow(0, "run", "{}", "{}", 0.5, "", 0, 0, 0, "", 0))
        tx.put_prompts(run, [(i, PromptRecord(f"p{i}", b"h" * 32, "text", i, "", 3, np.nan, 0, 1)) for i in range(4)])
        tx.remember_request(run, AnsweredRequest("request", "RetirePrompts", b"f", b"{}", 4))
    with store.transaction() as tx:
        tx.set_prompt_status(run, [1], 2)
        tx.update_run(run, rewind_epoch=1, rewind_step=3)
    database.close()
    return run


@pytest.mark.parametrize(
    "damage, read",
    [
        ("UPDATE runs SET config = '{ }'", lambda store, run: store.runs()),
        ("UPDATE runs SET rewind_step = 2", lambda store, run: store.runs()),
        ("UPDATE runs SET ready = 0", lambda store, run: store.runs()),
        ("UPDATE prompts SET text = 'texu' WHERE idx = 2", lambda store, run: store.prompts(run)),
        ("UPDATE prompts SET status = 3 WHERE idx = 1", lambda store, run: store.prompts(run)),
        ("UPDATE prompts SET embedding_row = 2 WHERE idx = 3", lambda store, run: store.prompts(run)),
        ("UPDATE prompts SET prior_rate = 0.5 WHERE idx = 3", lambda store, run: store.prompts(run)),
        ("UPDATE prompts SET token_count = 'a' WHERE idx = 3", lambda store, run: store.prompts(run)),
        ("UPDATE prompts SET content_hash = 'a' WHERE idx = 3", lambda store, run: store.prompts(run)),
        ("UPDATE requests SET response = x'7b7e'", lambda store, run: store.find_request(run, "request")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_value_is_noticed(tmp_path: Path, damage: str, read: object) -> None:
    path = tmp_path / "state.db"
    run = _filled(path)
    assert callable(read)
    database = Database(path)
    assert read(RunStore(database), run)
    database.close()
    connection = sqlite3.connect(path)
    assert connection.execute(damage).rowcount > 0
    connection.commit()
    connection.close()
    database = Database(path)
    with pytest.raises(ServiceError, match=r"state\.db is damaged: .* does not match its checksum"):
        read(RunStore(database), run)
    database.close()


def test_values_cannot_pass_from_one_column_to_the_next() -> None:
    different = [
        ("ab", "c"),
        ("a", "bc"),
        (b"ab", "c"),
        (None, "abc"),
        ("abc", None),
        (1, "2"),
        (12, ""),
        (1.5, ""),
        (),
    ]
    assert len({row_checksum(values) for values in different}) == len(different)
    assert row_checksum([1.0, True]) == row_checksum([1, 1])


def test_a_database_that_lost_transactions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    watermark = Watermark(tmp_path / "watermark")
    database = Database(path, watermark)
    for i in range(3):
        with RunStore(database).transaction() as tx:
            tx.insert_run(RunRow(0, f"run{i}", "{}", "{}", 0.0, "", 0, 0, 0, "", 0))
        if i == 1:
            database.close()
            older = path.read_bytes()
            database = Database(path, watermark)
    database.close()
    Database(path, watermark).close()
    path.write_bytes(older)
    for mark in (watermark, Watermark(tmp_path / "watermark")):
        with pytest.raises(ServiceError, match=r"state\.db has lost its newest 1 change.*watermark") as refused:
            Database(path, mark)
        assert refused.value.reason is Reason.STORAGE_FAILED
        mark.close()
    (tmp_path / "watermark").unlink()
    Database(path, Watermark(tmp_path / "watermark")).close()


def test_a_count_of_transactions_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {2**31 - 1}")
    connection.close()
    watermark = Watermark(tmp_path / "watermark")
    for i in range(2):
        database = Database(path, watermark)
        with RunStore(database).transaction() as tx:
            tx.insert_run(RunRow(0, f"run{i}", "{}", "{}", 0.0, "", 0, 0, 0, "", 0))
        database.close()
    assert watermark.mark(Store.DATABASE) == 2
    watermark.close()


def test_a_replay_store_that_lost_transactions_is_refused(tmp_path: Path) -> None:
    watermark = Watermark(tmp_path / "watermark")
    store = ReplayStore(tmp_path / "replay", watermark=watermark)
    run = ReplayRun(store, 1, ReplayConfig(), 0)
    run.push(pushed(0, 3), 0)
    store.close()
    older = (tmp_path / "replay/data.mdb").read_bytes()
    store = ReplayStore(tmp_path / "replay", watermark=watermark)
    ReplayRun(store, 1, ReplayConfig(), 0).push(pushed(1, 3), 1)
    store.close()
    (tmp_path / "replay/data.mdb").write_bytes(older)
    with pytest.raises(ServiceError, match=r"data\.mdb has lost its newest 1 change"):
        ReplayStore(tmp_path / "replay", watermark=watermark)
    watermark.close()


def test_records_are_checked(tmp_path: Path) -> None:
    for damaged in (sealed(b"")[:-1], sealed(b"record")[1:], b"", sealed(b"record") + b"x"):
        with pytest.raises(ValueError, match="checksum"):
            unsealed(damaged)
    store = ReplayStore(tmp_path)
    ReplayRun(store, 1, ReplayConfig(), 0).push(pushed(0, 3), 0)
    store.close()
    content = (tmp_path / "data.mdb").read_bytes()
    # The id of a group, in its record.
    (name,) = {g.group_id.encode() for g, _ in pushed(0, 3)[:1]}
    assert content.count(name)
    (tmp_path / "data.mdb").write_bytes(content.replace(name, name[:-1] + b"?"))
    store = ReplayStore(tmp_path)
    with pytest.raises(StorageFailed, match="does not match its checksum"):
        ReplayRun(store, 1, ReplayConfig(), 0)
    store.close()


def test_a_deletion_in_pieces_goes_on_after_it_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selector.replay.store._ENTRIES_PER_PIECE", 4)
    store = ReplayStore(tmp_path)
    kept = ReplayRun(store, 2, ReplayConfig(), 0)
    kept.push(pushed(0, 3), 0)
    ReplayRun(store, 1, ReplayConfig(), 0).push(pushed(0, 9), 0)
    with store.write(1) as writer:
        assert writer.clear(4)
    assert store.load(1) is None
    assert store.runs() == [1, 2]
    store.drop_run(1)
    assert store.runs() == [2]
    assert len(sampled(kept, SampleRequest(0, 10)).groups) == 3
    store.close()


def test_the_reserve_is_spent_on_what_frees_space(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve(path, 1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20
    tried: list[int] = []

    def work() -> str:
        tried.append(path.stat().st_size)
        if path.stat().st_size:
            raise ServiceError(Reason.STORAGE_FAILED, "the disk is full")
        return "done"

    assert reserve.spend(work) == "done"
    assert tried == [1 << 20, 0]
    # It is taken again for the next time.
    assert path.stat().st_size == 1 << 20

    def wrong() -> None:
        tried.append(-1)
        raise ServiceError(Reason.RUN_NOT_FOUND, "there is no such run")

    with pytest.raises(ServiceError, match="no such run"):
        reserve.spend(wrong)
    assert tried[2:] == [-1]
    os.truncate(path, 0)
    with pytest.raises(ServiceError, match="the disk is full"):
        Reserve(tmp_path / "none", 0).spend(_fail)


def _fail() -> None:
    raise ServiceError(Reason.STORAGE_FAILED, "the disk is full")
