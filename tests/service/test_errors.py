"""How errors arrive: within what headers can carry, with limits named, and without harm to anything else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from clients.errors import ResourceExhausted
from selector.run import Run
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import ERROR_DOMAIN, Reason
from tests.service.bad_input import RUN, STEPS, Stubs, everything, filled, group, push, refusal_of
from tests.service.running import InProcessService


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


def test_every_reason_has_a_code_of_grpc() -> None:
    for reason in Reason:
        assert grpc.StatusCode[reason.code] is not grpc.StatusCode.OK
        assert reason.meaning
    assert ERROR_DOMAIN == "selector.v1"


@pytest.mark.parametrize("character", ["a", "ü", "字", "🙂", "\0", "\n", "'", "\\", "%"])
def test_long_ids_of_any_characters_arrive(stubs: Stubs, character: str) -> None:
    """gRPC percent-encodes the message and base64-encodes the details into headers of at most 8 KiB in all."""
    longest = 256 // len(character.encode()) - 2
    unknown = [f"{i}{character * longest}" for i in range(12)]
    request = pb.RetirePromptsRequest(run_id=RUN, prompt_ids=unknown)
    refusal = refusal_of(lambda: stubs.call("RetirePrompts", request))
    assert refusal.reason == "UNKNOWN_PROMPT"
    assert refusal.message.startswith("prompt_ids: 12 unknown prompt(s)")
    assert [field for field, _ in refusal.violations] == [f"prompt_ids[{i}]" for i in range(10)]
    assert all(description.startswith("unknown prompt ") for _, description in refusal.violations)


def test_long_values_are_cut_in_the_message(stubs: Stubs) -> None:
    request = pb.CreateRunRequest(run_id="new", config={"outcome_range": [0.123456789] * 5000})
    refusal = refusal_of(lambda: stubs.call("CreateRun", request))
    assert refusal.message.startswith("config.outcome_range: expected two finite numbers")
    assert refusal.message.endswith("…")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """A service with low limits."""
    running = InProcessService(
        tmp_path_factory.mktemp("small"),
        max_message_bytes=2**16,
        max_stream_bytes=2**17,
        max_prompts=20,
        max_runs=2,
    )
    yield running
    running.close()


@pytest.fixture(scope="module")
def small_stubs(small: InProcessService) -> Iterator[Stubs]:
    yield from filled(small)


_LARGE_REPORT = pb.ReportOutcomesRequest(
    run_id=RUN, step=STEPS, outcomes=[pb.PromptOutcomes(prompt_id="p1", outcomes=[1.0] * 10_000)]
)
_LARGE_GROUP = group(prompt_token_ids=bytes(70_000))


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [("ReportOutcomes", _LARGE_REPORT), ("PushRollouts", push(_LARGE_GROUP))],
    ids=["unary", "stream"],
)
def test_a_message_too_large_names_the_limit(small_stubs: Stubs, rpc: str, request_: Any) -> None:
    before = everything(small_stubs)
    with pytest.raises(grpc.RpcError) as caught:
        small_stubs.call(rpc, request_)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(2**16) in error.details()
    assert everything(small_stubs) == before


def test_the_client_raises_resource_exhausted_for_a_message_too_large(
    small: InProcessService, small_stubs: Stubs
) -> None:
    with pytest.raises(ResourceExhausted, match=str(2**16)):
        small.client(RUN).report_outcomes(STEPS, {"p1": [1.0] * 10_000})


def _quota(stubs: Stubs, rpc: str, request: Any) -> tuple[str, str]:
    """Name and value of the limit that refuses the request."""
    before = everything(stubs)
    refusal = refusal_of(lambda: stubs.call(rpc, request))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert refusal.retry_after_s is not None and refusal.retry_after_s > 0
    assert f"{refusal.metadata['limit']}={refusal.metadata['value']}" in refusal.message
    assert everything(stubs) == before
    return refusal.metadata["limit"], refusal.metadata["value"]


def test_quotas_name_their_limit(small_stubs: Stubs) -> None:
    small_stubs.call("CreateRun", pb.CreateRunRequest(run_id="second"))
    assert _quota(small_stubs, "CreateRun", pb.CreateRunRequest(run_id="third")) == ("max_runs", "2")
    fork = pb.ForkRunRequest(run_id=RUN, new_run_id="third", step=1)
    assert _quota(small_stubs, "ForkRun", fork) == ("max_runs", "2")
    prompts = [pb.Prompt(prompt_id=f"more-{i}") for i in range(9)]
    register = pb.RegisterPromptsRequest(
        run_id="second", prompts=[*prompts, *(pb.Prompt(prompt_id=f"b{i}") for i in range(12))]
    )
    assert _quota(small_stubs, "RegisterPrompts", register) == ("max_prompts", "20")
    long = [pb.Prompt(prompt_id=f"long-{i}", text="x" * 50_000) for i in range(3)]
    stream = [pb.RegisterPromptsRequest(run_id=RUN, prompts=[prompt]) for prompt in long]
    assert _quota(small_stubs, "RegisterPrompts", stream) == ("max_stream_bytes", str(2**17))
    frames = push() + push(group(prompt_token_ids=bytes(50_000))) * 3
    assert _quota(small_stubs, "PushRollouts", frames) == ("max_stream_bytes", str(2**17))


def test_prompts_that_exist_do_not_count_against_the_quota_again(small_stubs: Stubs) -> None:
    """A trainer that restarts registers its whole pool again."""
    run = pb.CreateRunRequest(run_id="second")
    small_stubs.call("CreateRun", run)
    pool = [pb.Prompt(prompt_id=f"known-{i}") for i in range(12)]
    small_stubs.call("RegisterPrompts", pb.RegisterPromptsRequest(run_id="second", prompts=pool))
    again = small_stubs.call("RegisterPrompts", pb.RegisterPromptsRequest(run_id="second", prompts=pool))
    assert (again.added, again.unchanged) == (0, 12)


def test_a_defect_is_internal_and_stays_inside(
    stubs: Stubs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller learns that it was a defect, the log learns which; nothing is applied and the service goes on."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    before = everything(stubs)
    report = pb.ReportOutcomesRequest(
        run_id=RUN, step=STEPS, outcomes=[pb.PromptOutcomes(prompt_id="p1", outcomes=[1.0, 0.0])]
    )
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "selector.service"):
        patched.setattr(Run, "report", broken)
        refusal = refusal_of(lambda: stubs.call("ReportOutcomes", report))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in refusal.message
    assert "a secret of the inside" in caplog.text
    assert everything(stubs) == before
    assert stubs.call("ReportOutcomes", report).applied_groups == 1


def test_a_fork_beyond_history_leaves_nothing_behind(tmp_path: Path) -> None:
    """The new id stays free: it can be created, or forked from a step that is still there."""
    service = InProcessService(tmp_path / "state", rewind_window_steps=1)
    stubs = next(filled(service))
    try:
        for step in range(STEPS, STEPS + 3):
            stubs.call("PushRollouts", push(group(policy_version=step), step=step))
        before = everything(stubs)
        fork = pb.ForkRunRequest(run_id=RUN, new_run_id="fork", step=1)
        for _ in range(2):
            assert refusal_of(lambda: stubs.call("ForkRun", fork)).reason == "REWIND_BEYOND_HISTORY"
        rewind = pb.RewindRunRequest(run_id=RUN, step=1)
        assert refusal_of(lambda: stubs.call("RewindRun", rewind)).reason == "REWIND_BEYOND_HISTORY"
        assert everything(stubs) == before
        fork.step = STEPS + 3
        assert stubs.call("ForkRun", fork).run.replay_groups > 0
    finally:
        stubs.close()
        service.close()
