"""Every mutating call is applied once however often it comes, also across restarts, and for long."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from clients import SelectorClient
from clients.errors import from_rpc_error
from selector.grants import Scope
from selector.service.scopes import NEEDS
from selector.storage import tables
from selector.storage.database import Database
from selector.storage.runs import RunStore
from selector.v1 import run_pb2
from tests.resume import calls
from tests.resume.operations import Operation
from tests.service.bad_input import METHODS, Stubs
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import prompts

IDS = prompts(12)
# The requests per run over which every mutating call is promised to be applied once.
PROMISED = 10_000


@dataclass(frozen=True)
class Case:
    """A call that changes something, and another one that must not have the same request id.

    Attributes:
        other: None where a request says nothing but the run and the id.
        before: calls that come first.
    """

    call: Operation
    other: Operation | None
    before: tuple[Operation, ...] = field(default=())


def _config(**values: Any) -> run_pb2.RunConfig:
    return calls.config_of({"seed": 3, **values})


def _groups(step: int, *ids: str) -> list[tuple[str, int, str]]:
    return [(prompt_id, step, "") for prompt_id in ids]


NAME = "mine"
BEGUN = _config(cool_down_steps=1, replay={"max_age_steps": 0})
CASES = {
    "CreateRun": Case(
        calls.create("new", _config()).changed(request_id=NAME),
        calls.create("new", _config(group_size=3)).changed(request_id=NAME),
    ),
    "DeleteRun": Case(
        calls.delete("doomed").changed(request_id=NAME),
        None,
        before=(calls.create("doomed", _config()),),
    ),
    "ForkRun": Case(calls.fork("run", "fork", 2, NAME), calls.fork("run", "fork2", 2, NAME)),
    "RewindRun": Case(calls.rewind("run", 2, NAME), calls.rewind("run", 1, NAME)),
    "RegisterPrompts": Case(
        calls.register("run", [calls.prompt("x", False)], request_id=NAME),
        calls.register("run", [calls.prompt("y", False)], request_id=NAME),
    ),
    "RetirePrompts": Case(calls.retire("run", ["p000"], NAME), calls.retire("run", ["p001"], NAME)),
    "ImportPriors": Case(
        calls.import_priors("run", ["p000", "p001", "nobody"], 3, request_id=NAME),
        calls.import_priors("run", ["p000", "p001", "nobody"], request_id=NAME),
    ),
    "SelectBatch": Case(calls.select("run", 3, 4, request_id=NAME), calls.select("run", 4, 4, request_id=NAME)),
    "ReportOutcomes": Case(
        calls.report("run", 3, ["p000", "p001"], request_id=NAME), calls.report("run", 3, ["p002"], request_id=NAME)
    ),
    "ReportTraining": Case(
        calls.training("run", 3, {"entropy": ["p000"]}, request_id=NAME),
        calls.training("run", 3, {"entropy": ["p001"]}, request_id=NAME),
    ),
    "PushRollouts": Case(
        calls.push("run", 3, _groups(3, "p000", "p001", "p002"), request_id=NAME),
        calls.push("run", 3, _groups(3, "p003"), request_id=NAME),
    ),
    "SampleRollouts": Case(calls.sample("run", 3, 2, request_id=NAME), calls.sample("run", 4, 2, request_id=NAME)),
}
# They only look, so that they may come as often as they like. Every other RPC needs a case above.
READ_ONLY = {
    "GetRun",
    "ListRuns",
    "PredictDifficulty",
    "ExplainPrompt",
    "GetSelectionQuality",
    "ExportRun",
}


def test_there_is_a_case_for_every_mutating_rpc() -> None:
    """Every RPC has a case or only looks; what changes something takes a request id and asks for WRITE."""
    assert not READ_ONLY & set(CASES)
    assert READ_ONLY | set(CASES) == set(METHODS)
    for name, (method, _) in METHODS.items():
        assert ("request_id" in method.input_type.fields_by_name) == (name in CASES), name
        assert any(need.scope is Scope.WRITE for need in NEEDS[name]) == (name in CASES), name


def _send(address: str, operation: Operation) -> list[bytes]:
    """The answer, without what says that it was given before."""
    stubs = Stubs(address)
    try:
        method, _ = METHODS[operation.rpc]
        answer = stubs.call(operation.rpc, operation.messages if method.client_streaming else operation.request)
    finally:
        stubs.close()
    messages: list[Message] = answer if isinstance(answer, list) else [answer]
    for message in messages:
        for name in ("already_applied", "created"):
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
    return [message.SerializeToString(deterministic=True) for message in messages]


def _refused(address: str, operation: Operation) -> str | None:
    with pytest.raises(grpc.RpcError) as refused:
        _send(address, operation)
    return from_rpc_error(refused.value).reason


def _begin(send: Callable[[Operation], object], run_id: str) -> None:
    """A run of three steps with a buffer."""
    send(calls.create(run_id, BEGUN))
    send(calls.register(run_id, [calls.prompt(prompt_id, False) for prompt_id in IDS]))
    for step in range(3):
        send(calls.select(run_id, step, 4))
        send(calls.report(run_id, step, IDS[step : step + 4]))
        send(calls.push(run_id, step, _groups(step, *IDS[step : step + 4])))


def _shown(address: str, run_id: str) -> list[object]:
    """The runs there are, and everything that one of them shows."""
    with SelectorClient(address, run_id) as client:
        runs = [run.run_id for run in client.list_runs()]
    return [runs, *(_send(address, operation) for operation in calls.looks(run_id))]


def _of(rpc: str, operation: Operation) -> Operation:
    """The call on the RPC's own run."""
    return operation.changed(run_id=f"run-{rpc}") if operation.request.run_id == "run" else operation


@dataclass
class Applied:
    """A call that was answered, asked again at once, and then again by a service that had been restarted."""

    answers: list[list[bytes]] = field(default_factory=list)
    shown: list[list[object]] = field(default_factory=list)
    refusals: list[str | None] = field(default_factory=list)


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Applied]]:
    service = InProcessService(tmp_path_factory.mktemp("state"))
    found = {rpc: Applied() for rpc in CASES}

    def again(rpc: str) -> None:
        found[rpc].answers.append(_send(service.address, _of(rpc, CASES[rpc].call)))
        other = CASES[rpc].other
        if other is not None:
            found[rpc].refusals.append(_refused(service.address, _of(rpc, other)))
        shown = _shown(service.address, f"run-{rpc}")
        found[rpc].shown.append(shown)

    for rpc, case in CASES.items():
        _begin(lambda operation: _send(service.address, operation), f"run-{rpc}")
        for operation in case.before:
            _send(service.address, operation)
        found[rpc].shown.append(_shown(service.address, f"run-{rpc}"))
        again(rpc)
        again(rpc)
    service.restart()
    for rpc in CASES:
        again(rpc)
    yield found
    service.close()


@pytest.mark.parametrize("rpc", CASES)
def test_a_call_that_comes_again_is_applied_once(applied: dict[str, Applied], rpc: str) -> None:
    case = applied[rpc]
    first, second, restarted = case.answers
    assert first == second == restarted
    assert case.refusals == ["REQUEST_ID_REUSED"] * (0 if CASES[rpc].other is None else 3)
    (runs_before, *before), (runs_after, *after), (runs_again, *again), (_, *at_last) = case.shown
    assert after == again == at_last and runs_after == runs_again
    # A sample changes what is counted of the groups, which is seen by sampling alone.
    assert (runs_before, before) != (runs_after, after) or rpc == "SampleRollouts"


def test_without_an_id_a_report_is_another_report(own_service: InProcessService) -> None:
    _begin(lambda operation: _send(own_service.address, operation), "run")
    for request_id in ("", "", "a", "b"):
        before = _shown(own_service.address, "run")
        _send(own_service.address, CASES["ReportOutcomes"].call.changed(request_id=request_id))
        assert _shown(own_service.address, "run") != before


def test_an_id_is_of_one_rpc(own_service: InProcessService) -> None:
    """Whichever of the two stores remembers it."""
    _begin(lambda operation: _send(own_service.address, operation), "run")
    on_run = [rpc for rpc, case in CASES.items() if case.call.request.run_id == "run"]
    for rpc in on_run:
        _send(own_service.address, CASES[rpc].call.changed(request_id=f"of-{rpc}"))
    shown = _shown(own_service.address, "run")
    others = [("DeleteRun", calls.delete("run")), *((rpc, CASES[rpc].other) for rpc in on_run)]
    for taken in on_run:
        for rpc, operation in others:
            assert operation is not None
            reason = _refused(own_service.address, operation.changed(request_id=f"of-{taken}"))
            assert reason == "REQUEST_ID_REUSED", (taken, rpc)
    assert _shown(own_service.address, "run") == shown


def test_a_fork_that_was_deleted_does_not_come_back(own_service: InProcessService) -> None:
    _begin(lambda operation: _send(own_service.address, operation), "run")
    _send(own_service.address, calls.fork("run", "fork", 2, NAME))
    _send(own_service.address, calls.delete("fork"))
    assert _refused(own_service.address, calls.fork("run", "fork", 2, NAME)) == "RUN_NOT_FOUND"
    _send(own_service.address, calls.fork("run", "fork", 2, "another"))
    assert _shown(own_service.address, "run")[0] == ["fork", "run"]
    # The one that the first request made is still gone.
    assert _refused(own_service.address, calls.fork("run", "fork", 2, NAME)) == "RUN_NOT_FOUND"


def test_a_fork_is_only_of_the_request_that_made_it(own_service: InProcessService) -> None:
    """Its source may have gone back and on since, so that another fork of the same step would not be the same."""
    _begin(lambda operation: _send(own_service.address, operation), "run")
    first = _send(own_service.address, calls.fork("run", "fork", 2, NAME))
    _send(own_service.address, calls.rewind("run", 1))
    for request_id in ("", "another"):
        assert _refused(own_service.address, calls.fork("run", "fork", 2, request_id)) == "RUN_EXISTS"
    own_service.restart()
    assert _send(own_service.address, calls.fork("run", "fork", 2, NAME)) == first


def test_a_fork_that_an_older_version_recorded_is_told_from_a_later_run(own_service: InProcessService) -> None:
    """It did not record which run the request had made."""
    _begin(lambda operation: _send(own_service.address, operation), "run")
    first = _send(own_service.address, calls.fork("run", "fork", 2, NAME))

    def as_recorded_before() -> None:
        database = Database(own_service.state_dir / "state.db")
        with database.write() as connection:
            answer = {"response": b"{}", "checksum": None}
            connection.execute(tables.requests.update().where(tables.requests.c.request_id == NAME).values(**answer))
        database.close()

    own_service.restart(as_recorded_before)
    assert _send(own_service.address, calls.fork("run", "fork", 2, NAME)) == first
    _send(own_service.address, calls.delete("fork"))
    _send(own_service.address, calls.create("fork", BEGUN))
    assert _refused(own_service.address, calls.fork("run", "fork", 2, NAME)) == "RUN_NOT_FOUND"


def test_two_runs_may_be_deleted_under_the_same_id(own_service: InProcessService) -> None:
    """Who may not see a run need not know which ids it was called with."""
    for run_id in ("one", "other"):
        _send(own_service.address, calls.create(run_id, BEGUN))
        _send(own_service.address, calls.delete(run_id).changed(request_id=NAME))
    for run_id in ("one", "other"):
        _send(own_service.address, calls.delete(run_id).changed(request_id=NAME))
        assert _refused(own_service.address, calls.delete(run_id)) == "RUN_NOT_FOUND"


@pytest.fixture
def fast_directory() -> Iterator[Path]:
    """In memory where there is such a place: 20,000 writes are waited for."""
    fast = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=fast if fast.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
def test_a_deletion_is_known_after_ten_thousand_others(tmp_path: Path) -> None:
    """Deletions of all runs are remembered in one place; as many by calls would take minutes."""
    service = InProcessService(tmp_path / "state")
    doomed = CASES["DeleteRun"]
    for operation in (*doomed.before, doomed.call, *doomed.before):
        _send(service.address, operation)

    def delete_others() -> None:
        database = Database(tmp_path / "state" / "state.db")
        store = RunStore(database)
        (row,) = store.runs()
        with store.transaction() as tx:
            other = tx.insert_run(replace(row, run_id="other"))
            for i in range(PROMISED):
                tx.delete_run(other, "other", f"delete-{i}")
        database.close()

    service.restart(delete_others)
    _send(service.address, doomed.call)
    with service.client("doomed") as client:
        assert [run.run_id for run in client.list_runs()] == ["doomed"]
    service.close()


@pytest.mark.slow
def test_a_call_is_known_after_ten_thousand_others_and_a_restart(fast_directory: Path) -> None:
    """The calls on one run come again after 10,000 further requests that are remembered in the same place."""
    # One after the other they are made on one run: the rewind takes nothing of the others back, and groups that are
    # sampled stay in the buffer.
    kept = calls.push("run", 3, _groups(3, "p011"), salt=1)
    sample = calls.sample("run", 3, 1, exclude_prompt_ids=IDS[:11])
    changed = {
        "CreateRun": Case(calls.create("run", BEGUN), calls.create("run", _config(group_size=3))),
        "RewindRun": Case(calls.rewind("run", 3), calls.rewind("run", 1)),
        "SampleRollouts": Case(sample, calls.sample("run", 4, 1), before=(kept,)),
    }
    cases = {**changed, **{rpc: case for rpc, case in CASES.items() if rpc not in changed}}
    process = ServiceProcess(fast_directory / "state", "--rewind-window-steps=5")
    stubs = Stubs(process.address)

    def send(operation: Operation) -> Any:
        method, _ = METHODS[operation.rpc]
        return stubs.call(operation.rpc, operation.messages if method.client_streaming else operation.request)

    try:
        named = {rpc: case.call.changed(request_id=f"first-{rpc}") for rpc, case in cases.items()}
        others = {
            rpc: case.other.changed(request_id=f"first-{rpc}") for rpc, case in cases.items() if case.other is not None
        }
        answers: dict[str, Any] = {}
        send(named["CreateRun"])
        _begin(send, "run")
        for rpc, operation in named.items():
            for earlier in cases[rpc].before:
                send(earlier)
            answers[rpc] = send(operation)
        (sampled,) = answers["SampleRollouts"]
        assert [group.group.prompt_id for group in sampled.groups] == ["p011"]
        # A new run of the id of the one that was deleted, which has to stay.
        for operation in cases["DeleteRun"].before:
            send(operation)
        for i in range(PROMISED):
            send(calls.retire("run", ["p011"], f"retire-{i}"))
            send(calls.push("run", 4 + i // 10, _groups(4 + i // 10, IDS[i % 11]), salt=i, request_id=f"push-{i}"))
        for _ in range(2):
            shown = _shown(process.address, "run")
            for rpc, operation in named.items():
                again = send(operation)
                assert getattr(again, "already_applied", True) and not getattr(again, "created", False), rpc
                assert rpc != "SampleRollouts" or again == answers[rpc]
                if rpc in others:
                    assert _refused(process.address, others[rpc]) == "REQUEST_ID_REUSED", rpc
            assert _shown(process.address, "run") == shown
            stubs.close()
            process.kill()
            process = ServiceProcess(fast_directory / "state", "--rewind-window-steps=5")
            stubs = Stubs(process.address)
    finally:
        stubs.close()
        process.kill()
