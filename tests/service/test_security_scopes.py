"""Which token may do what: every RPC of both services against tokens of every scope, through the real server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from clients import NotFound, PermissionDenied, SelectorClient
from selector.grants import Grant, Scope, admin, digest_of
from selector.service import scopes
from selector.v1 import selector_service_pb2 as pb
from tests.service.bad_input import METHODS, SERVICES, Refusal, Stubs, refusal_of
from tests.service.certificates import ROOT
from tests.service.running import InProcessService

OURS, OURS_TOO, THEIRS, NOBODYS = "ours-1", "shared", "theirs-1", "theirs-2"

_READERS = {"GetRun", "PredictDifficulty", "ExplainPrompt", "GetSelectionQuality", "ExportRun"}
_OF_A_RUN = sorted(set(METHODS) - {"ListRuns"})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """A service with an administrator's token, a writer's and a reader's, and a run of theirs and others."""
    runs = ("ours-*", OURS_TOO)
    tokens = (
        admin("admin"),
        Grant(digest_of("writer"), Scope.WRITE, runs, "writer"),
        Grant(digest_of("reader"), Scope.READ, runs, "reader"),
    )
    state = tmp_path_factory.mktemp("state")
    service = InProcessService(state, tokens=tokens, metrics_listen="127.0.0.1:0")
    for run_id in (OURS, OURS_TOO, THEIRS):
        service.client(run_id, token="admin").create_run({})
    yield service
    service.close()


@pytest.fixture
def stubs(guarded: InProcessService) -> Iterator[Stubs]:
    made = Stubs(guarded.address)
    yield made
    made.close()


def _request(rpc: str, run_id: str, **fields: Any) -> Message:
    method, module = METHODS[rpc]
    new = {"new_run_id": "ours-new"} if rpc == "ForkRun" else {}
    message: Message = getattr(module, method.input_type.name)(**{"run_id": run_id, **new, **fields})
    return message


def _call(stubs: Stubs, rpc: str, request: Any, token: str) -> Any:
    return stubs.call(rpc, request, metadata=[("authorization", f"Bearer {token}")])


def _refusal(stubs: Stubs, rpc: str, request: Any, token: str) -> Refusal:
    return refusal_of(lambda: _call(stubs, rpc, request, token))


def _code(stubs: Stubs, rpc: str, request: Any, token: str) -> grpc.StatusCode:
    try:
        _call(stubs, rpc, request, token)
    except grpc.RpcError as error:
        refused: Any = error
        code: grpc.StatusCode = refused.code()
        return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("pattern", "covered", "spared"),
    [
        ("team-a-*", ["team-a-", "team-a-1", "team-a-*"], ["team-a", "team-b-1", "team-", "t", "", "xteam-a-1"]),
        ("shared", ["shared"], ["shared-2", "share", "SHARED", "", "xshared"]),
        ("*", ["a", "team-a-1", "*"], []),
        ("a.c", ["a.c"], ["abc", "a.c.d"]),
    ],
)
def test_a_pattern_is_an_id_or_a_prefix_and_nothing_more(pattern: str, covered: list[str], spared: list[str]) -> None:
    for scope in (Scope.READ, Scope.WRITE):
        grant = Grant(b"", scope, (pattern,))
        assert all(grant.allows(Scope.READ, run_id) for run_id in covered)
        assert all(grant.allows(Scope.WRITE, run_id) is (scope is Scope.WRITE) for run_id in covered)
        assert not any(grant.allows(asked, run_id) for run_id in spared for asked in (Scope.READ, Scope.WRITE))
        assert not grant.allows(Scope.ADMIN, covered[0])


def test_every_rpc_of_both_services_is_in_the_table() -> None:
    names = [method.name for service, _ in SERVICES for method in service.methods]
    assert len(set(names)) == len(names), "the table goes by the name alone"
    assert set(scopes.NEEDS) == set(names)
    for rpc, needs in scopes.NEEDS.items():
        method, _ = METHODS[rpc]
        fields = set(method.input_type.fields_by_name)
        assert {need.field for need in needs} == {name for name in fields if name.endswith("run_id")}, rpc


def test_an_rpc_that_is_not_in_the_table_is_refused_to_everybody(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "NEEDS", {k: v for k, v in scopes.NEEDS.items() if k != "GetRun"})
    for token in ("admin", "writer"):
        assert _code(stubs, "GetRun", _request("GetRun", OURS), token) is grpc.StatusCode.PERMISSION_DENIED
    assert _code(stubs, "ListRuns", pb.ListRunsRequest(), "admin") is grpc.StatusCode.OK


@pytest.mark.parametrize("rpc", _OF_A_RUN)
def test_others_runs_are_out_of_reach_and_it_is_not_told_whether_they_exist(stubs: Stubs, rpc: str) -> None:
    for token in ("reader", "writer"):
        there, nowhere = (_refusal(stubs, rpc, _request(rpc, run_id), token) for run_id in (THEIRS, NOBODYS))
        assert there.code is nowhere.code is grpc.StatusCode.PERMISSION_DENIED
        assert there.reason == "PERMISSION_DENIED"
        assert there.message.replace(THEIRS, "") == nowhere.message.replace(NOBODYS, "")
        assert there.metadata == nowhere.metadata
        assert isinstance(there.exception, PermissionDenied) and isinstance(there.exception, PermissionError)
        told = there.message + str(there.metadata)
        assert "ours" not in told.replace("ours-new", "") and "shared" not in told


@pytest.mark.parametrize("rpc", _OF_A_RUN)
def test_reading_is_not_writing_and_writing_is_both(stubs: Stubs, rpc: str) -> None:
    denied = grpc.StatusCode.PERMISSION_DENIED
    # A run that is not there, so that nothing is changed: NOT_FOUND and INVALID_ARGUMENT come from behind the check.
    request = _request(rpc, "ours-none")
    assert (_code(stubs, rpc, request, "reader") is denied) is (rpc not in _READERS)
    assert _code(stubs, rpc, request, "writer") is not denied
    if rpc not in _READERS:
        assert _refusal(stubs, rpc, request, "reader").metadata["scope"] == "write"


@pytest.mark.parametrize("rpc", _OF_A_RUN)
def test_what_is_no_run_id_is_bad_input_for_everybody(stubs: Stubs, rpc: str) -> None:
    for run_id in ("", "ours-1\n", "ours-/../theirs-1", "ours-" + "x" * 200):
        for token in ("writer", "admin"):
            refusal = _refusal(stubs, rpc, _request(rpc, run_id), token)
            assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refusal.violations[0][0] == "run_id"
            assert "\n" not in refusal.message


def test_a_listing_holds_what_the_token_may_read(guarded: InProcessService, stubs: Stubs) -> None:
    listed = {
        token: [run.run_id for run in guarded.client("a", token=token).list_runs()]
        for token in ("admin", "writer", "reader")
    }
    assert {OURS, OURS_TOO, THEIRS} <= set(listed["admin"])
    for token in ("writer", "reader"):
        assert {OURS, OURS_TOO} <= set(listed[token])
        assert all(run_id.startswith("ours-") or run_id == OURS_TOO for run_id in listed[token])
    # Page by page as well, whatever lies between.
    found, page = [], ""
    while True:
        answer = _call(stubs, "ListRuns", pb.ListRunsRequest(page_size=1, page_token=page), "reader")
        found += [run.run_id for run in answer.runs]
        page = answer.next_page_token
        if not page:
            break
    assert found == listed["reader"]


def test_a_fork_reads_one_run_and_writes_the_other(guarded: InProcessService) -> None:
    with pytest.raises(PermissionDenied, match="read run"):
        guarded.client(THEIRS, token="writer").fork("ours-fork", 0)
    with pytest.raises(PermissionDenied, match="new_run_id"):
        guarded.client(OURS, token="writer").fork("theirs-fork", 0)
    with pytest.raises(PermissionDenied, match="new_run_id"):
        guarded.client(OURS, token="reader").fork("ours-fork", 0)
    assert guarded.client(OURS, token="writer").fork("ours-fork", 0).run_id == "ours-fork"
    guarded.client("ours-fork", token="writer").delete_run()
    with pytest.raises(NotFound):
        guarded.client("ours-fork", token="reader").get_run()


def test_a_run_is_trained_with_a_writers_token(guarded: InProcessService) -> None:
    client: SelectorClient = guarded.client("ours-trained", token="writer")
    client.create_run({"group_size": 2})
    client.register_prompts(["a", "b"])
    batch = client.select_batch(0, 2)
    client.report_outcomes(0, {prompt_id: [0.0, 1.0] for prompt_id in batch.prompt_ids})
    client.rewind(0)
    watching = guarded.client("ours-trained", token="reader")
    assert watching.get_run().pool.active == 2
    assert len(watching.predict_difficulty()) == 2
    client.delete_run()


def test_a_stream_is_refused_at_its_first_message_and_cannot_change_runs(stubs: Stubs) -> None:
    for rpc in ("RegisterPrompts", "PushRollouts"):
        first, second = _request(rpc, OURS), _request(rpc, THEIRS)
        assert _refusal(stubs, rpc, [first, second], "writer").code is grpc.StatusCode.INVALID_ARGUMENT
        assert _refusal(stubs, rpc, [second, first], "writer").code is grpc.StatusCode.PERMISSION_DENIED
        # An empty first message must not let the second choose the run.
        empty = _request(rpc, "")
        assert _refusal(stubs, rpc, [empty, second], "writer").code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Bearer admin"), ("authorization", "Bearer admin")],
        [("authorization", "Basic admin")],
        [("authorization", "Bearer  admin")],
        [("authorization", "Bearer ADMIN")],
        [("x-authorization", "Bearer admin")],
    ],
)
def test_who_cannot_be_told_is_unauthenticated(stubs: Stubs, metadata: list[tuple[str, str]]) -> None:
    for rpc in ("ListRuns", "GetRun"):
        request = pb.ListRunsRequest() if rpc == "ListRuns" else _request(rpc, THEIRS)
        refusal = refusal_of(partial(stubs.call, rpc, request, metadata=metadata))
        assert (refusal.code, refusal.metadata) == (grpc.StatusCode.UNAUTHENTICATED, {})
        assert "admin" not in refusal.message.lower()


def test_the_scheme_is_of_any_case(stubs: Stubs) -> None:
    assert stubs.call("ListRuns", pb.ListRunsRequest(), metadata=[("authorization", "bearer admin")]).runs


def test_refusals_are_counted(guarded: InProcessService, stubs: Stubs) -> None:
    _refusal(stubs, "SelectBatch", _request("SelectBatch", THEIRS), "reader")
    _refusal(stubs, "SelectBatch", _request("SelectBatch", THEIRS), "guessed")
    with urllib.request.urlopen(f"http://{guarded.metrics_address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        series = f'selector_rpc_total{{code="{code}",method="SelectBatch"}}'
        (line,) = [line for line in text.splitlines() if line.startswith(series)]
        assert float(line.split()[-1]) >= 1
    assert "guessed" not in text


def test_the_documented_table_is_the_one_that_is_checked() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    documented = {name: needs for names, needs, *_ in rows for name in names.split(", ") if name in METHODS}
    said = {
        scopes._READ: "read",
        scopes._WRITE: "write",
        scopes.NEEDS["ForkRun"]: "read on the source, write on the new run",
        (): "any token; it lists the runs that the token may read",
    }
    assert documented == {rpc: said[needs] for rpc, needs in scopes.NEEDS.items()}
