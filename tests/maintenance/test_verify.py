"""Every kind of damage is found and named, and nothing that is sound is called damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from selector.maintenance.isolated import verify_isolated
from selector.maintenance.report import Report
from selector.maintenance.verify import verify
from selector.replay.history import Mark
from selector.replay.plans import ROW
from selector.replay.records import (
    decode_meta,
    decode_push,
    decode_sample,
    encode_mark,
    encode_meta,
    encode_push,
    encode_sample,
    key,
    run_prefix,
    sealed,
    unsealed,
)
from selector.replay.store import FORMAT, TABLES
from tests.maintenance.loaded_run import LoadedRun
from tests.migrations.released_state import unpack
from tests.service.running import InProcessService
from tests.service.trainer import Trainer, group_of, prompts

Damage = Callable[[Path], None]


def problems(report: Report) -> list[str]:
    """Everything that is wrong, as ``check: description``."""
    return [f"{check.name}: {description}" for check in report.checks for description in check.problems]


def notes(report: Report) -> list[str]:
    return [description for check in report.checks for description in check.notes]


# --- what is sound ----------------------------------------------------------------------------------------------------


def test_a_state_directory_and_its_backup_are_sound(state: Path, backup: Path) -> None:
    for directory, kind in ((state, "state directory"), (backup, "backup")):
        report = verify(directory)
        assert problems(report) == [] and notes(report) == []
        assert report.kind == kind
        examined = {check.name: check.examined for check in report.checks}
        for name in ("runs", "prompts", "events", "folded states", "requests", "embeddings", "replay groups"):
            assert examined[name] > 0, name


def test_a_killed_servers_directory_is_sound(tmp_path: Path) -> None:
    state = unpack("0001", tmp_path / "state")
    assert (state / "state.db-wal").stat().st_size
    assert problems(verify(state)) == []


def test_a_backup_stays_as_it_was_while_it_is_verified(backup: Path) -> None:
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    verify(backup)
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "replay",
    [
        {"capacity_groups": 5},
        pytest.param({"capacity_bytes": 900, "newest_per_prompt": False}, marks=pytest.mark.slow),
        pytest.param({"max_age_steps": 1, "max_uses": 2, "informative_only": False}, marks=pytest.mark.slow),
    ],
)
def test_rewinds_forks_and_late_pushes_leave_what_is_sound(tmp_path: Path, replay: dict[str, Any]) -> None:
    """Groups and samples leave for good within a short window, which must not be taken for a loss."""
    service = InProcessService(tmp_path / "state", rewind_window_steps=3)
    try:
        client = service.client("a")
        client.create_run({"seed": 5, "replay": replay, "cool_down_steps": 0})
        client.register_prompts(prompts(10))
        trainer = Trainer(client, 3, replays=True)
        trainer.steps(0, 9)
        client.rewind(8)
        trainer.steps(8, 14)
        client.push_rollouts(11, [group_of("p003", 10, salt="late"), group_of("p004", 11, salt="late")])
        client.rewind(12)
        trainer.steps(12, 15)
        client.fork("b", 13)
        Trainer(service.client("b"), 3, replays=True).steps(13, 19)
    finally:
        service.close()
    report = verify(tmp_path / "state")
    assert problems(report) == [] and notes(report) == []


def test_what_the_next_start_puts_right_is_a_note(state: Path) -> None:
    with _database(state) as database:
        database.execute("UPDATE runs SET rewind_epoch = rewind_epoch + 1, rewind_step = 6 WHERE run_id = 'tracker'")
        database.execute(
            "INSERT INTO runs SELECT 77, 'cut-short', explicit_config, config, created, 0, space, width, 0, 0, run_id,"
            " 2, NULL FROM runs WHERE run_id = 'fused'"
        )
    _replay(state, lambda txn, db: txn.put(key(88, 1), b"left over", db=db["payloads"]))
    report = verify(state)
    assert problems(report) == []
    assert [re.sub(r"^(\S+ \S+).*", r"\1", note) for note in notes(report)] == [
        "1 fork(s)",
        "replay/data.mdb: run",
        "run tracker:",
    ]


def test_an_older_schema_is_upgraded_in_a_copy_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = unpack("0001", tmp_path / "state")
    scripts = _next_release(tmp_path)
    monkeypatch.setattr("selector.storage.database._MIGRATIONS", str(scripts))
    report = verify(state)
    assert problems(report) == []
    assert any("the schema is" in note and "upgrades it to next" in note for note in notes(report))
    with _database(state) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() != ("next",)


# --- the database -----------------------------------------------------------------------------------------------------


def _sql(statement: str) -> Damage:
    def damage(state: Path) -> None:
        with _database(state) as database:
            assert database.execute(statement).rowcount > 0

    return damage


def _event(run_id: str, kind: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the columns of a run's first event of a kind."""

    def damage(state: Path) -> None:
        with _database(state) as database:
            found = database.execute(
                "SELECT run, seq, columns FROM events JOIN runs ON id = run WHERE run_id = ? AND kind = ? ORDER BY seq",
                (run_id, kind),
            ).fetchone()
            changed = change(found[2])
            assert changed != found[2]
            database.execute("UPDATE events SET columns = ? WHERE run = ? AND seq = ?", (changed, *found[:2]))

    return damage


_OF = "WHERE run = (SELECT id FROM runs WHERE run_id = '{}')"

_DATABASE: dict[str, tuple[Damage, str]] = {
    "a run is deleted, its rows are left": (
        _sql("DELETE FROM runs WHERE run_id = 'texts'"),
        "database pages: state.db: a row of .* refers to a missing row of runs",
    ),
    "an event is deleted": (
        _sql(f"DELETE FROM events {_OF.format('texts')} AND seq = 3"),
        "events: run texts: events 3 to 3 are missing",
    ),
    "an event is cut off": (
        _event("fused", "selection", lambda columns: columns[:-3]),
        "events: run fused: event 1 of kind 'selection' is damaged",
    ),
    "an event is of no known kind": (
        _sql(f"UPDATE events SET kind = 'report2' {_OF.format('fused')} AND seq = 2"),
        "events: run fused: event 2 of kind 'report2' is damaged",
    ),
    "an event's facts are no JSON": (
        _sql(f"UPDATE events SET meta = substr(meta, 2) {_OF.format('tracker')} AND seq = 1"),
        "events: run tracker: event 1 of kind 'selection' is damaged",
    ),
    "an event refers beyond the pool": (
        _event("tracker", "selection", lambda columns: struct.pack("<i", 999) + columns[4:]),
        "events: run tracker: event 1 is about prompts that are not among the 16",
    ),
    "an outcome is impossible": (
        _event("tracker", "report", lambda columns: columns[:-8] + struct.pack("<d", 7.0)),
        "events: run tracker: event 2 of kind 'report' is damaged: outcomes are outside",
    ),
    "outcomes are cut off": (
        _event("tracker", "report", lambda columns: columns[:-8]),
        "events: run tracker: event 2 of kind 'report' is damaged: 15 outcomes",
    ),
    "a probability is impossible": (
        _event("branch", "selection", lambda columns: columns[:32] + struct.pack("<d", -2.0) + columns[40:]),
        r"events: run branch: event 1 \(selection\).*probabilit",
    ),
    "a prompt is deleted": (
        _sql(f"DELETE FROM prompts {_OF.format('attention')} AND idx = 4"),
        "prompts: run attention: 15 prompts have indices from 0 to 15: some are missing",
    ),
    "the last prompt is deleted": (
        _sql(f"DELETE FROM prompts {_OF.format('attention')} AND idx = 15"),
        r"events: run attention: event \d+ is about prompts that are not among the 15",
    ),
    "a prompt occurs twice": (
        _sql(f"UPDATE prompts SET prompt_id = 'p003' {_OF.format('attention')} AND idx = 4"),
        r"prompts: run attention: prompt 4 \('p003'\): its id occurs twice",
    ),
    "a prompt's hash is cut off": (
        _sql(f"UPDATE prompts SET content_hash = x'00' {_OF.format('attention')} AND idx = 4"),
        r"prompts: run attention: prompt 4 \('p004'\): its content hash has 1 bytes",
    ),
    "a prompt's status is impossible": (
        _sql(f"UPDATE prompts SET status = 9 {_OF.format('attention')} AND idx = 4"),
        r"prompts: run attention: prompt 4 \('p004'\): its status is 9",
    ),
    "a prompt's prior is impossible": (
        _sql(f"UPDATE prompts SET prior_rate = 3 {_OF.format('attention')} AND idx = 5"),
        r"prompts: run attention: prompt 5 \('p005'\): its prior is 3",
    ),
    "a prompt's text is no text": (
        _sql(f"UPDATE prompts SET text = CAST(x'ff00' AS TEXT) {_OF.format('attention')} AND idx = 5"),
        "prompts: run attention: its prompts cannot be read",
    ),
    "an embedding row is beyond the space": (
        _sql(f"UPDATE prompts SET embedding_row = 5000 {_OF.format('attention')} AND idx = 5"),
        "embeddings: run attention: embedding .* 5000 are missing from .*; the first belongs to prompt 'p005'",
    ),
    "a configuration is no JSON": (
        _sql("UPDATE runs SET config = '{' WHERE run_id = 'texts'"),
        "runs: run texts: its configuration cannot be read",
    ),
    "a run's embedding space is unknown": (
        _sql("UPDATE runs SET space = 'elsewhere' WHERE run_id = 'fused'"),
        "embeddings: run fused: its embedding space 'elsewhere' of width 4 cannot be used",
    ),
    "an answer is no JSON": (
        _sql(f"UPDATE requests SET response = x'7b' {_OF.format('fused')}"),
        "requests: run fused: the answer to request '.*' cannot be read",
    ),
    "a rewind is only in the replay store": (
        _sql("UPDATE runs SET rewind_epoch = 0 WHERE run_id = 'fused'"),
        "replay groups: replay/data.mdb: run fused: it was rewound 1 times, the database says 0",
    ),
    "the schema is of a newer version": (
        _sql("UPDATE alembic_version SET version_num = '9999'"),
        "database pages: state.db: .* schema '9999', written by a newer version",
    ),
}


@pytest.mark.parametrize("name", _DATABASE)
def test_damage_to_the_database(name: str, state: Path) -> None:
    damage, expected = _DATABASE[name]
    damage(state)
    _assert_found(verify(state), expected)


def test_a_log_that_cannot_be_folded(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise IndexError("no such prompt")

    monkeypatch.setattr("selector.state.RunState.apply", fails)
    _assert_found(verify(state), "folded states: run texts: its state cannot be made: event 1 fails: IndexError")


@pytest.mark.parametrize("page", [3, 8, 15])
def test_a_page_of_the_database_is_overwritten(page: int, state: Path) -> None:
    with open(state / "state.db", "r+b") as file:
        file.seek(page * 4096)
        file.write(b"\x5a" * 4096)
    _assert_found(verify(state), r"(database pages|prompts|events|requests): (state\.db|run \w+): ")


@pytest.mark.parametrize("left", [0, 2048, 20000])
def test_the_database_is_cut_off(left: int, state: Path) -> None:
    os.truncate(state / "state.db", left)
    _assert_found(verify(state), r"(database pages|stores): .*state\.db")


@pytest.mark.parametrize("name", ["state.db", "replay/data.mdb"])
def test_an_older_copy_of_a_store_was_put_in_its_place(name: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for step in range(2):
        service = InProcessService(state)
        service.client("run").create_run({"replay": {"informative_only": False}})
        service.client("run").register_prompts(["p000"])
        service.client("run").push_rollouts(step, [group_of("p000", step)])
        service.client("run").report_outcomes(step, {"p000": [1.0]})
        service.close()
        if step == 0:
            shutil.copy(state / name, tmp_path / "older")
    assert problems(verify(state)) == []
    shutil.copy(tmp_path / "older", state / name)
    _assert_found(verify(state), f"stores: {name} has lost its newest .* change")


def test_the_database_is_missing(state: Path) -> None:
    (state / "state.db").unlink()
    _assert_found(verify(state), r"stores: .* is no state directory: it has no state\.db")


@pytest.mark.parametrize(
    "estimator", ["TRACKER", *(pytest.param(name, marks=pytest.mark.slow) for name in ("FUSED", "ATTENTION"))]
)
def test_snapshots_are_what_the_log_makes(estimator: str, tmp_path: Path) -> None:
    service, stop = InProcessService(tmp_path / "state", snapshot_groups=4), threading.Event()
    try:
        run = LoadedRun("run", {"estimator": {"name": estimator}})
        run.begin(service.client("run"))
        stop.set()
        run.work(service.client("run"), stop)
    finally:
        service.close()
    report = verify(tmp_path / "state")
    assert problems(report) == []
    assert next(check for check in report.checks if check.name == "snapshots").examined > 0
    with _database(tmp_path / "state") as database:
        # An early report: what came after it was folded on top of something else.
        database.execute("UPDATE events SET meta = replace(meta, ': 0', ': 1') WHERE kind = 'report' AND seq < 5")
    _assert_found(verify(tmp_path / "state"), "snapshots: run run: the snapshot of event .* is not what its log makes")


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_of_an_embedding(state: Path) -> None:
    _flip(_space(state) / "vectors.f32", 5 * 16 + 3)
    assert problems(verify(state)) == [
        # It was forked with its pool.
        "embeddings: run branch: the embedding of prompt 'p005' (row 5) is damaged",
        "embeddings: run fused: the embedding of prompt 'p005' (row 5) is damaged",
        f"embeddings: {_space(state)}: 1 row(s) do not match their checksum: 5",
    ]


def test_a_flipped_bit_of_a_key(state: Path) -> None:
    _flip(_space(state) / "keys.bin", 20 * 36 + 3)
    _assert_found(verify(state), r"embeddings: run attention: the embedding of prompt 'p004' \(row 20\) is damaged")


def test_the_torn_tail_of_an_append_is_a_note(state: Path) -> None:
    with open(_space(state) / "keys.bin", "ab") as keys, open(_space(state) / "vectors.f32", "ab") as vectors:
        keys.write(b"\0" * 40)
        vectors.write(b"\0" * 17)
    report = verify(state)
    assert problems(report) == []
    assert notes(report) == [f"{_space(state)}: 1 row(s) that no prompt refers to are incomplete: 51"]


@pytest.mark.parametrize("name", ["vectors.f32", "keys.bin"])
def test_embeddings_are_cut_off(name: str, state: Path) -> None:
    path = _space(state) / name
    os.truncate(path, path.stat().st_size // 2)
    _assert_found(verify(state), r"embeddings: run \w+: embedding row\(s\) .* are missing from .*, which has 25")


def test_embeddings_are_missing(state: Path) -> None:
    for path in _space(state).iterdir():
        path.unlink()
    _assert_found(verify(state), "embeddings: run fused: its embedding space .* cannot be used")


def test_a_description_of_embeddings_is_damaged(state: Path) -> None:
    (_space(state) / "space.json").write_text('{"format": 1}')
    _assert_found(verify(state), r"embeddings: .*space\.json does not describe")


def test_embeddings_in_the_wrong_place(state: Path) -> None:
    space = _space(state)
    space.rename(space.parent / ("0" * 32))
    _assert_found(verify(state), f"embeddings: .*space.json describes .*, whose directory would be {space.name}")


# --- the replay store -------------------------------------------------------------------------------------------------


def _first(txn: Any, database: Any, run: int) -> tuple[bytes, bytes]:
    cursor = txn.cursor(db=database)
    assert cursor.set_range(run_prefix(run)) and bytes(cursor.key()).startswith(run_prefix(run))
    return bytes(cursor.key()), bytes(cursor.value())


def _changed(table: str, change: Callable[[bytes], bytes]) -> Callable[[Any, Any, int], None]:
    def damage(txn: Any, databases: Any, run: int) -> None:
        stored, value = _first(txn, databases[table], run)
        # Its checksum is made to fit, so that the check meant is what finds the damage.
        has_checksum = table != "payloads" and txn.get(b"format") == FORMAT
        value = unsealed(value) if has_checksum else value
        changed = change(value)
        assert changed != value
        txn.put(stored, sealed(changed) if has_checksum else changed, db=databases[table])

    return damage


def _deleted(table: str) -> Callable[[Any, Any, int], None]:
    return lambda txn, databases, run: txn.delete(_first(txn, databases[table], run)[0], db=databases[table])


def _row(**values: object) -> Callable[[bytes], bytes]:
    def change(stored: bytes) -> bytes:
        row = np.frombuffer(stored[: ROW.itemsize], dtype=ROW).copy()
        for name, value in values.items():
            row[name] = value
        return row.tobytes() + stored[ROW.itemsize :]

    return change


def _replaced(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], **values: Any) -> Any:
    return lambda stored: encode(replace(decode(stored), **values))


_REPLAY: dict[str, tuple[Callable[[Any, Any, int], None], str]] = {
    "a payload has a flipped bit": (
        _changed("payloads", lambda value: value[:9] + bytes([value[9] ^ 1]) + value[10:]),
        r"the payload of group '.*' of prompt 'p0\d\d' at \d+ does not match its checksum",
    ),
    "a payload is cut off": (_changed("payloads", lambda value: value[:-1]), "does not match its checksum"),
    "a payload is missing": (_deleted("payloads"), r"the payload of group .* of prompt .* at \d+ is missing"),
    "a group is missing": (_deleted("groups"), r"the payload at \d+ belongs to no group"),
    "a group's checksum differs": (_changed("groups", _row(checksum=1)), "does not match its checksum"),
    "a group is cut off": (_changed("groups", lambda value: value[:40]), r"group at \d+ cannot be decoded"),
    "a group is elsewhere": (_changed("groups", _row(position=3000)), r"group at \d+ \(.*\): it says it is at 3000"),
    "a group's number is impossible": (_changed("groups", _row(seq=3000)), "it lies beyond the end of the log"),
    "a group's eviction is unknown": (
        _changed("groups", _row(eviction=99)),
        "(its eviction is 99|cannot be decoded)",
    ),
    "a group left and is live": (
        _changed("groups", _row(eviction=1, evicted_position=-1)),
        r"it was evicted at -1 by CAPACITY",
    ),
    "a group is from the future": (_changed("groups", _row(policy_version=99)), "with policy version 99"),
    "counters are missing": (_deleted("meta"), "its counters are missing"),
    "counters are no JSON": (_changed("meta", lambda value: value[1:]), "its counters cannot be decoded"),
    "counters are too small": (
        _changed("meta", _replaced(decode_meta, encode_meta, next_position=1)),
        "it lies beyond the end of the log",
    ),
    "a sample refers to nothing": (
        _changed("samples", _replaced(decode_sample, encode_sample, position=900, picks=(800, 801))),
        "the sample of step 0: groups at 800, 801 are missing",
    ),
    "a sample refers to the future": (
        _changed("samples", _replaced(decode_sample, encode_sample, picks=(70, 71))),
        "the sample of step 0: it refers to groups that came later",
    ),
    "a sample is of another step": (
        _changed("samples", _replaced(decode_sample, encode_sample, step=77)),
        "the sample of step 0: it says it is of step 77",
    ),
    "a sample's probability is impossible": (
        _changed("samples", _replaced(decode_sample, encode_sample, probability=-1.0)),
        "with probability -1",
    ),
    "a sample is cut off": (_changed("samples", lambda value: value[:-2]), "the sample of step 0 cannot be decoded"),
    "a push is cut off": (_changed("pushes", lambda value: value[:-2]), r"the push at \d+ cannot be decoded"),
    "a push is elsewhere": (
        _changed("pushes", _replaced(decode_push, encode_push, position=900)),
        r"the push at \d+ says it is at 900",
    ),
    "a mark is cut off": (_changed("marks", lambda value: value[:-2]), "the mark of step 0 cannot be decoded"),
    "a mark is impossible": (
        _changed("marks", lambda _: encode_mark(Mark(0, 4000, 0))),
        "the mark of step 0 makes no sense",
    ),
}


@pytest.mark.parametrize("name", _REPLAY)
def test_damage_to_the_replay_store(name: str, state: Path) -> None:
    damage, expected = _REPLAY[name]
    with _database(state) as database:
        ((run,),) = database.execute("SELECT id FROM runs WHERE run_id = 'fused'")
    _replay(state, lambda txn, databases: damage(txn, databases, run))
    _assert_found(verify(state), f"replay groups: replay/data.mdb: run fused: .*{expected}")


@pytest.mark.parametrize("run_id", ["attention", "tracker"])
def test_a_buffer_that_holds_too_much(run_id: str, state: Path) -> None:
    """Groups that left are live again: more than fit, and two of one prompt where one is kept."""
    with _database(state) as database:
        ((run,),) = database.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,))

    def revive(txn: Any, databases: Any) -> None:
        cursor = txn.cursor(db=databases["groups"])
        cursor.set_range(run_prefix(run))
        change = _row(evicted_position=-1, evicted_log_step=-1, eviction=0)
        for stored, value in [(bytes(k), bytes(v)) for k, v in cursor.iternext()]:
            if stored.startswith(run_prefix(run)):
                txn.put(stored, change(value), db=databases["groups"])

    _replay(state, revive)
    expected = "a prompt has two live groups" if run_id == "attention" else "live groups have .* bytes, of at most 2000"
    _assert_found(verify(state), f"replay groups: replay/data.mdb: run {run_id}: {expected}")


def test_the_replay_store_is_missing(state: Path) -> None:
    (state / "replay" / "data.mdb").unlink()
    _assert_found(verify(state), r"stores: replay store .* cannot be opened: there is no .*data\.mdb")


def test_the_replay_store_is_something_else(state: Path) -> None:
    (state / "replay" / "data.mdb").write_bytes(b"not a database" * 1000)
    report = verify(state)
    _assert_found(report, "stores: replay store .* cannot be opened")
    # The rest is looked at all the same.
    assert next(check for check in report.checks if check.name == "events").examined > 0


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 8192, 40960])
def test_the_replay_store_is_cut_off(left: int, state: Path) -> None:
    """LMDB reads through a memory map: a page that is not there ends the process."""
    os.truncate(state / "replay" / "data.mdb", left)
    _assert_found(verify_isolated(state), r"(stores: replay store|replay groups: replay/data\.mdb)")


@pytest.mark.slow
def test_pages_of_the_replay_store_are_overwritten(state: Path) -> None:
    path = state / "replay" / "data.mdb"
    pages = path.stat().st_size // 4096
    with open(path, "r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\x5a" * ((pages - 2) * 4096))
    _assert_found(verify_isolated(state), r"(stores: replay store|replay groups: replay/data\.mdb)")


# --- backups ----------------------------------------------------------------------------------------------------------


def _manifest_files(backup: Path) -> Sequence[str]:
    return [facts["path"] for facts in json.loads((backup / "backup.json").read_text())["files"]]


def test_any_flipped_bit_of_a_backup(backup: Path) -> None:
    for name in _manifest_files(backup):
        _flip(backup / name, (backup / name).stat().st_size // 2)
        check = verify(backup, with_replay=False).checks[0]
        assert check.problems == [f"{name} does not match its checksum"]
        _flip(backup / name, (backup / name).stat().st_size // 2)
    assert verify(backup).sound


def test_a_file_of_a_backup_is_missing_or_cut_off(backup: Path) -> None:
    missing, cut = [name for name in _manifest_files(backup) if "embeddings" in name][:2]
    (backup / missing).unlink()
    os.truncate(backup / cut, 3)
    check = verify(backup).checks[0]
    assert check.problems[0] == f"{missing} is missing"
    assert check.problems[1].startswith(f"{cut} has 3 bytes, expected")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1, "files": 3}', '{"format": 2}'])
def test_a_manifest_is_damaged(content: str, backup: Path) -> None:
    (backup / "backup.json").write_text(content)
    _assert_found(verify(backup), r"checksums: .* is no backup: cannot use .*backup\.json")


# --- how damage is done -----------------------------------------------------------------------------------------------


def _assert_found(report: Report, expected: str) -> None:
    assert not report.sound
    assert any(re.match(expected, problem) for problem in problems(report)), problems(report)


def _database(state: Path) -> Any:
    """The database, whose changes are kept when the block has ended."""

    class Open:
        def __enter__(self) -> sqlite3.Connection:
            self.closing = closing(sqlite3.connect(state / "state.db", isolation_level=None))
            self.database = self.closing.__enter__()
            return self.database

        def __exit__(self, *error: Any) -> None:
            # Rows without a checksum, so that the check meant is what finds the damage.
            with suppress(sqlite3.Error):
                for table in ("runs", "prompts", "events", "requests"):
                    self.database.execute(f"UPDATE {table} SET checksum = NULL")
            self.closing.__exit__(*error)

    return Open()


def _replay(state: Path, change: Callable[[Any, dict[str, Any]], object]) -> None:
    with closing(lmdb.open(str(state / "replay"), max_dbs=len(TABLES) + 1, map_size=1 << 24)) as environment:
        databases = {name: environment.open_db(name.encode()) for name in TABLES}
        with environment.begin(write=True) as txn:
            change(txn, databases)


def _space(state: Path) -> Path:
    (space,) = (state / "embeddings").iterdir()
    return space


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 0x10]))


def _next_release(tmp_path: Path) -> Path:
    from tests.migrations.test_upgrade import write_next_release

    return write_next_release(tmp_path / "migrations")
