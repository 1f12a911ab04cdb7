"""Reading a run's history: however slowly it is read, nothing is held up, and what arrives is what happened."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from clients import FailedPrecondition, SelectorClient
from clients.errors import from_rpc_error
from selector.events import REPORT, SELECTION, EventRow
from selector.storage import runs as storage
from selector.storage.database import Database
from selector.storage.runs import RunRow, RunStore
from selector.v1 import selector_service_pb2 as pb
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub
from tests.service.running import InProcessService
from tests.service.trainer import outcomes_of, prompts

BATCH, STEPS = 4_000, 3


def filled(client: SelectorClient) -> SelectorClient:
    """A run whose export is far more than what is sent ahead of a reader."""
    client.create_run({"seed": 2, "score": "UNIFORM", "cool_down_steps": 0, "estimator": {"name": "TRACKER"}})
    ids = prompts(BATCH)
    client.register_prompts(ids)
    for step in range(STEPS):
        client.select_batch(step, BATCH)
        client.report_outcomes(step, {prompt_id: [0.0, 1.0, 1.0, 0.0] for prompt_id in ids})
    return client


@contextmanager
def exporting(service: InProcessService, kind: pb.ExportKind) -> Iterator[Callable[[], Any]]:
    """Begins exports; over a connection on which no more than 64 KiB of each is sent ahead of its reader."""
    with grpc.insecure_channel(service.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        yield lambda: SelectorServiceStub(channel).ExportRun(pb.ExportRunRequest(run_id="run", kind=kind))


def seqs(rows: Iterator[EventRow]) -> list[int]:
    return [row.seq for row in rows]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    database = Database(tmp_path / "state.db")
    yield RunStore(database)
    database.close()


def add_run(store: RunStore, run_id: str = "run") -> int:
    with store.transaction() as tx:
        return tx.insert_run(RunRow(0, run_id, "{}", "{}", 0.0, "", 0, 0, 0, "", 0))


def append(store: RunStore, run: int, start: int, stop: int) -> None:
    """Events of these seqs; every third is a report, the others selections."""
    with store.transaction() as tx:
        for seq in range(start, stop):
            kind = REPORT if seq % 3 == 0 else SELECTION
            tx.append_event(run, EventRow(seq, kind, seq, 1, 0, b"", b"", "{}"))


def test_readers_that_pause_hold_nothing_up(own_service: InProcessService, tmp_path: Path) -> None:
    """Twenty exports are begun and not read on: calls go on, and the write-ahead log can be folded in."""
    client = filled(own_service.client("run"))
    expected = [(row.prompt_id, row.record.step) for row in client.export("selections")]
    assert len(expected) == BATCH * STEPS
    with exporting(own_service, pb.EXPORT_KIND_SELECTIONS) as export:
        streams = [export() for _ in range(20)]
        begun = [next(stream) for stream in streams]
        chosen = client.select_batch(STEPS, 8, timeout_s=20)
        client.report_outcomes(STEPS, outcomes_of(chosen.prompt_ids, STEPS), timeout_s=20)
        with closing(sqlite3.connect(tmp_path / "state" / "state.db", timeout=10)) as database:
            ((busy, _, _),) = database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert not busy
        for first, stream in list(zip(begun, streams, strict=True))[::19]:
            # As of when it was begun: without what was selected since.
            rows = [row for frame in (first, *stream) for row in frame.selections]
            assert [(row.prompt_id, row.record.step) for row in rows] == expected
        for stream in streams:
            stream.cancel()


@pytest.mark.parametrize("change", ["rewound", "deleted", "made anew"])
def test_an_export_ends_when_its_run_is_changed(
    own_service: InProcessService, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(storage, "_EVENTS_PER_PAGE", 1)
    client = filled(own_service.client("run"))
    with exporting(own_service, pb.EXPORT_KIND_OUTCOMES) as export:
        rows = export()
        next(rows)
        if change == "rewound":
            client.rewind(STEPS)
        else:
            client.delete_run()
        if change == "made anew":
            client.create_run()
        with pytest.raises(grpc.RpcError) as ended:
            list(rows)
    error = from_rpc_error(ended.value)
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "HISTORY_CHANGED"


def test_export_and_explanation_tell_the_same(own_service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation has the newest records of its prompt, oldest first, whatever the pages and the frames are."""
    monkeypatch.setattr(storage, "_EVENTS_PER_PAGE", 3)
    client = own_service.client("run")
    client.create_run({"seed": 4, "cool_down_steps": 0})
    ids = prompts(6)
    client.register_prompts(ids)
    for step in range(14):
        chosen = client.select_batch(step, 3)
        client.report_outcomes(step, outcomes_of(chosen.prompt_ids, step))
    everything: dict[str, list[Any]] = {kind: list(client.export(kind)) for kind in ("outcomes", "selections")}
    assert {kind: len(rows) for kind, rows in everything.items()} == {"outcomes": 42, "selections": 42}
    for prompt_id in ids:
        own = {kind: [row.record for row in rows if row.prompt_id == prompt_id] for kind, rows in everything.items()}
        for limit in (1, 2, 100):
            found = client.explain(prompt_id, limit)
            assert list(found.selections) == own["selections"][-limit:]
            shown = [(record.step, record.outcomes.tolist(), record.difficulty) for record in found.outcomes]
            assert shown == [(r.step, r.outcomes.tolist(), r.difficulty) for r in own["outcomes"][-limit:]]


def test_pages_are_the_whole_log_in_order(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_EVENTS_PER_PAGE", 4)
    run, other = add_run(store), add_run(store, "other")
    assert seqs(store.events(run)) == []
    for total in (3, 4, 5, 12):
        append(store, run, len(seqs(store.events(run))) + 1, total + 1)
        append(store, other, len(seqs(store.events(other))) + 1, total + 6)
        assert seqs(store.events(run)) == list(range(1, total + 1))
    assert seqs(store.events(run, [REPORT])) == [3, 6, 9, 12]
    assert seqs(store.events(run, [REPORT, SELECTION], before_seq=9)) == list(range(1, 9))
    assert seqs(store.events(run, epoch=0)) == list(range(1, 13))


def test_a_reader_of_the_log_sees_what_is_appended_but_no_other_past(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_EVENTS_PER_PAGE", 4)
    run = add_run(store)
    append(store, run, 1, 7)
    growing, bounded, rewound = store.events(run), store.events(run, before_seq=7), store.events(run)
    for rows in (growing, bounded, rewound):
        next(rows)
    append(store, run, 7, 10)
    assert seqs(growing) == list(range(2, 10))
    assert seqs(bounded) == list(range(2, 7))
    with store.transaction() as tx:
        tx.drop_events(run, 3)
        tx.update_run(run, rewind_epoch=1)
    append(store, run, 3, 12)
    with pytest.raises(storage.ServiceError, match="rewound or deleted"):
        list(rewound)
    with pytest.raises(storage.ServiceError, match="rewound or deleted"):
        list(store.events(run, epoch=0))
    assert seqs(store.events(run, epoch=1)) == list(range(1, 12))


def test_why_a_prompt_was_not_selected_in_a_later_round(service: InProcessService) -> None:
    client = service.client("rounds")
    client.create_run({"seed": 1})
    client.register_prompts(prompts(8))
    first = client.select_batch(0, 3).prompt_ids
    client.report_outcomes(0, outcomes_of(first[1:], 0))
    second = client.select_batch(0, 3, round=1).prompt_ids
    assert not set(first) & set(second)
    reasons = {prompt_id: client.explain(prompt_id).not_selected_because for prompt_id in prompts(8)}
    assert reasons[first[0]] == "it was selected at step 0 and has not been reported yet"
    assert {reasons[prompt_id] for prompt_id in first[1:]} == {"it was selected in an earlier round of the step"}
    assert {reasons[prompt_id] for prompt_id in second} == {""}
    rest = set(prompts(8)) - {*first, *second}
    assert all(reasons[prompt_id].startswith("others ranked higher then") for prompt_id in rest)


def test_why_a_prompt_was_not_selected_again_in_a_reference_window(service: InProcessService) -> None:
    client = service.client("windows")
    reference = {"mode": "DEDICATED", "size": 2, "every_steps": 3}
    client.create_run({"seed": 1, "reference": reference, "cool_down_steps": 0})
    client.register_prompts(prompts(12))
    picked = []
    for step in range(5):
        if client.get_run().reference_due:
            drawn = client.select_batch(step, purpose="reference").prompt_ids
            client.report_outcomes(step, outcomes_of(drawn, step), purpose="reference")
        picked.append(client.select_batch(step, 3).prompt_ids)
        client.report_outcomes(step, outcomes_of(picked[-1], step))
    # The second window began with step 3.
    assert client.explain(picked[4][0]).not_selected_because == ""
    for prompt_id in picked[3]:
        reason = client.explain(prompt_id).not_selected_because
        assert reason == "it was already chosen in this reference window: selected at step 3"
    earlier = {p for batch in picked[:3] for p in batch} - {*picked[3], *picked[4]}
    assert earlier
    for prompt_id in earlier:
        assert client.explain(prompt_id).not_selected_because.startswith("others ranked higher then")


def test_the_state_of_a_run_needs_no_database() -> None:
    program = (
        "import sys, selector.state, selector.open_selections, selector.events; print('sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
