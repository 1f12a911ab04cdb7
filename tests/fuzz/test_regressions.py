"""Faults that fuzzing found, each as the smallest input that showed it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
import pytest

from clients import MalformedAnswer
from selector.cli.options import load_config
from selector.cli.serve import serve
from selector.config import config_from_json, config_to_json, resolve
from selector.embedding.embedder import Embedder
from selector.embedding.errors import SpaceMismatchError
from selector.embedding.store import EmbeddingStore
from selector.errors import ServiceError
from selector.events import ReplacementEvent, ReportEvent, ReportFacts, check_prompts, decode
from selector.maintenance.manifest import FileFacts, Manifest, read_manifest
from selector.replay import records
from selector.replay.history import SampleEvent
from selector.service import replay_servicer
from selector.service.token_file import TokenFileError, parse
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.fuzz.client_target import USES, Answer, Hostile
from tests.service.bad_input import RUN, STEPS, Stubs, filled, group, push, refusal_of
from tests.service.running import InProcessService


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    running = Hostile()
    yield running
    running.close()


# --- the port ---------------------------------------------------------------------------------------------------------


def test_a_path_that_is_not_text_does_not_end_the_server(service: InProcessService, stubs: Stubs) -> None:
    """grpc.aio from 1.84 on ends its server, and with it every connection."""

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    headers = {b":method": b"POST", b":scheme": b"http", b":path": b"/a/\xff", b":authority": b"x", b"te": b"trailers"}
    block = b"".join(literal(*header) for header in [*headers.items(), (b"content-type", b"application/grpc")])
    host, _, port = service.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, block))
        # Once a ping behind it is answered the request has been taken.
        connection.sendall(frame(6, 0, 0, b"12345678"))
        received = b""
        while b"12345678" not in received and (data := connection.recv(65536)):
            received += data
    with grpc.insecure_channel(service.address) as channel:
        method: Any = channel.unary_unary("/selector.v1.SelectorService/ListRuns")
        answer = method(b"", timeout=20)
    assert pb.ListRunsResponse.FromString(answer).runs
    assert stubs.call("GetRun", pb.GetRunRequest(run_id=RUN)).run.run_id == RUN


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_product_of_extents_is_not_computed_without_end(stubs: Stubs) -> None:
    """300 extents have a product of 5,600 digits, more than Python writes."""
    column = replay_pb.Column(name="c", dtype="int8", shape=[2**62] * 300)
    refused = refusal_of(lambda: stubs.call("PushRollouts", push(group(columns=[column]))))
    assert (refused.reason, refused.violations[0][0]) == ("INVALID_GROUP", "groups[0].columns[0].shape")


def test_a_group_has_a_bounded_number_of_columns(stubs: Stubs) -> None:
    columns = [replay_pb.Column(name=f"c{i}", dtype="bytes") for i in range(257)]
    refused = refusal_of(lambda: stubs.call("PushRollouts", push(group(columns=columns))))
    assert (refused.reason, refused.violations[0][0]) == ("INVALID_GROUP", "groups[0].columns")
    assert stubs.call("PushRollouts", push(group(columns=columns[1:]), step=STEPS)).stored == 1


def test_groups_that_are_listed_as_refused_are_bounded(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes each on the wire, a kilobyte each when they are held with what is wrong with them."""
    monkeypatch.setattr(replay_servicer, "_MOST_REFUSED", 20)
    empty = replay_pb.RolloutGroup()
    answer = stubs.call("PushRollouts", push(*[empty] * 20, skip_refused=True))
    assert len(answer.refused) == 20
    refused = refusal_of(lambda: stubs.call("PushRollouts", push(*[empty] * 21, skip_refused=True)))
    assert refused.metadata == {"refused": "20"}


def test_an_id_that_is_refused_for_its_length_is_not_sent_back_whole(stubs: Stubs) -> None:
    answer = stubs.call("PushRollouts", push(group(prompt_id="x" * 100_000), skip_refused=True))
    assert answer.refused[0].field == "prompt_id"
    assert answer.ByteSize() < 1000


# --- files ------------------------------------------------------------------------------------------------------------


def _report(**changes: Any) -> ReportEvent:
    two = np.array([0.5, 0.5])
    fields: dict[str, Any] = {
        "seq": 7,
        "step": 1,
        "purpose": 1,
        "prompt": np.array([0, 1], dtype=np.int32),
        "count": np.array([1, 1], dtype=np.int32),
        "outcomes": two,
        "predicted": two,
        "population": two,
        "arm": np.ones(2, dtype=np.uint8),
        "facts": ReportFacts(0, 0, 0),
    }
    return ReportEvent(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"count": np.array([-1, 3], dtype=np.int32)}, id="negative-count"),
        pytest.param({"count": np.array([2, 2], dtype=np.int32)}, id="count-beyond-outcomes"),
        pytest.param({"outcomes": np.array([0.5, np.nan])}, id="outcome-that-is-none"),
        pytest.param({"outcomes": np.array([0.5, 7.0])}, id="outcome-out-of-range"),
    ],
)
def test_reports_that_do_not_add_up_are_damaged(changes: dict[str, Any]) -> None:
    assert decode(_report().to_row()).seq == 7
    with pytest.raises(ValueError, match="event 7 of kind 'report' is damaged"):
        decode(_report(**changes).to_row())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"meta": "[" * 5000}, id="nested"),
        pytest.param({"meta": "[]"}, id="no-mapping"),
        pytest.param({"meta": '{"skipped_rollouts": true, "dropped_rollouts": 0, "clipped_outcomes": 0}'}, id="type"),
        pytest.param({"kind": "unheard-of"}, id="kind"),
        pytest.param({"columns": "text"}, id="text"),
        pytest.param({"columns": b"\xff" * 8}, id="size"),
    ],
)
def test_rows_that_are_no_events_are_damaged(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="event 7 of kind"):
        decode(replace(_report().to_row(), **changes))


@pytest.mark.parametrize("prompt", [-1, 3])
def test_events_about_prompts_that_are_not_there_are_found(prompt: int) -> None:
    event = ReplacementEvent(1, np.array([0, prompt], dtype=np.int32))
    with pytest.raises(ValueError, match="not among the 3 of the pool"):
        check_prompts(event, 3)
    check_prompts(ReplacementEvent(1, np.array([0, 2], dtype=np.int32)), 3)


def test_replay_records_that_are_cut_short_are_damaged() -> None:
    sample = records.encode_sample(SampleEvent(5, 2, b"f" * 16, 2, 4, 0.5, (1, 3), (1, 2)))
    assert records.decode_sample(sample).picks == (1, 3)
    for value in (b"", sample[:-1], sample + b"\0", sample[:40]):
        with pytest.raises(ValueError, match="damaged"):
            records.decode_sample(value)


@pytest.mark.parametrize("text", ["[" * 5000, "null", "{}", '{"outcome_range": 5}'])
def test_a_stored_configuration_that_is_none_is_damaged(text: str) -> None:
    with pytest.raises(ValueError, match="stored configuration is damaged"):
        config_from_json(text)


def test_a_stored_configuration_with_a_value_of_another_type_is_damaged() -> None:
    values = json.loads(config_to_json(resolve({})))
    with pytest.raises(ValueError, match="group_size"):
        config_from_json(json.dumps({**values, "group_size": 8.5}))


@pytest.mark.parametrize(
    "description",
    [
        pytest.param(b"\xff", id="no-text"),
        pytest.param(b"[" * 5000, id="nested"),
        pytest.param(b'{"format": 1e999, "key": "client width:2", "width": 2}', id="infinite"),
        pytest.param(b'{"format": 1, "key": "\\ud800", "width": 2}', id="surrogate"),
        pytest.param(b'{"format": 1, "key": "client width:3", "width": 3}', id="of-another-directory"),
    ],
)
def test_a_space_that_is_not_described_is_refused_and_no_other_is_made(description: bytes, tmp_path: Path) -> None:
    Embedder(None, EmbeddingStore(tmp_path)).keep(np.ones((1, 2), dtype=np.float32))
    (directory,) = tmp_path.iterdir()
    (directory / "space.json").write_bytes(description)
    with pytest.raises(SpaceMismatchError):
        EmbeddingStore(tmp_path).spaces()
    assert list(tmp_path.iterdir()) == [directory]


@pytest.mark.parametrize(
    "text", ["listen: !!int x", "listen: !!float ''", "listen: 2001-99-99", "[" * 500, "listen: 0x" + "f" * 5000]
)
def test_an_option_file_that_yaml_stumbles_over_is_a_usage_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(click.BadParameter):
        load_config(click.Context(serve), serve.params[0], path)


@pytest.mark.parametrize("text", ["tokens: !!int a-secret", "tokens: [!!float '']", "tokens: " + "[" * 500])
def test_a_token_file_that_yaml_stumbles_over_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(TokenFileError) as caught:
        parse(text.encode())
    assert "secret" not in str(caught.value)


def test_a_manifest_that_is_nested_or_names_a_file_twice_is_none(tmp_path: Path) -> None:
    (tmp_path / "backup.json").write_text("[" * 5000)
    with pytest.raises(ServiceError, match="is no backup"):
        read_manifest(tmp_path)
    files = (FileFacts("state.db", 1, "a"), FileFacts("./state.db", 1, "a"))
    Manifest("1", "0001", 0.0, files, ()).write(tmp_path)
    with pytest.raises(ServiceError, match="names a file twice"):
        read_manifest(tmp_path)


# --- answers ----------------------------------------------------------------------------------------------------------

_BROKEN_GROUP = replay_pb.RolloutGroup(prompt_id="p", lengths=[1], rewards=[0], outcomes=[0], response_token_ids=b"abc")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("rpc", "messages"),
    [
        pytest.param("SelectBatch", [pb.SelectBatchResponse(prompt_ids=["a"])], id="columns-not-parallel"),
        pytest.param("PredictDifficulty", [pb.PredictDifficultyResponse(own_weights=[1.0])], id="more-than-prompts"),
        pytest.param("ListRuns", [pb.ListRunsResponse(next_page_token="t")], id="the-same-page-for-ever"),
        pytest.param(
            "SampleRollouts",
            [replay_pb.SampleRolloutsResponse(groups=[replay_pb.SampledGroup(group=_BROKEN_GROUP)])],
            id="group-does-not-fit",
        ),
    ],
)
def test_answers_that_do_not_fit_together_are_malformed(
    rpc: str, messages: list[Any], asynchronous: bool, hostile: Hostile
) -> None:
    answer = Answer(rpc, [message.SerializeToString() for message in messages], asynchronous=asynchronous)
    with pytest.raises(MalformedAnswer):
        hostile.use(answer)


def test_a_good_status_without_a_message_is_no_answer(hostile: Hostile) -> None:
    for rpc in sorted(set(USES) - {"SampleRollouts", "ExportRun"}):
        with pytest.raises(MalformedAnswer):
            hostile.use(Answer(rpc, []))
