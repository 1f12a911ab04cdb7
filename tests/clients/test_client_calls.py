"""Both clients against a scripted server: retries, deadlines, streams, paging, and what is sent."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

import clients
from clients import AsyncSelectorClient, RetryPolicy, RolloutGroup, Sample, SelectorClient, Unavailable
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as selector_pb
from tests.clients.groups import GROUP

UNAVAILABLE, INVALID = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT
Caller = Callable[..., Any]

# Method, arguments, RPC.
CHANGING: list[tuple[str, tuple[Any, ...], str]] = [
    ("create_run", ({"group_size": 4},), "CreateRun"),
    ("delete_run", (), "DeleteRun"),
    ("fork", ("other", 3), "ForkRun"),
    ("rewind", (3,), "RewindRun"),
    ("register_prompts", (["a", "b"], ["x", "y"]), "RegisterPrompts"),
    ("retire_prompts", (["a"],), "RetirePrompts"),
    ("import_priors", ({"a": (0.5, 8)},), "ImportPriors"),
    ("select_batch", (1, 8), "SelectBatch"),
    ("report_outcomes", (1, {"a": [1, 0]}), "ReportOutcomes"),
    ("push_rollouts", (1, [GROUP]), "PushRollouts"),
    ("sample_rollouts", (1, 4), "SampleRollouts"),
    ("report_training", (1, 0.5), "ReportTraining"),
]


@pytest.fixture
def refuse(script: Any) -> Callable[..., Any]:
    """``refuse(code, retry_after_s)`` for scripts."""
    return inspect.getmodule(type(script)).Refusal  # type: ignore[union-attr]


@pytest.mark.parametrize(("method", "arguments", "rpc"), CHANGING)
def test_every_attempt_of_a_change_is_the_same_request(
    call: Caller, script: Any, refuse: Any, method: str, arguments: tuple[Any, ...], rpc: str
) -> None:
    script.answers[rpc] = [refuse(UNAVAILABLE), refuse(UNAVAILABLE), *_good(rpc)]
    call(method, *arguments)
    first, second, third = script.attempts[rpc]
    assert first == second == third
    header = first[0] if isinstance(first, list) else first
    # Of a sample the step says which it is.
    assert bool(header.request_id) is (rpc != "SampleRollouts")
    call(method, *arguments)
    call(method, *arguments, request_id="mine")
    again, mine = (attempt[0] if isinstance(attempt, list) else attempt for attempt in script.attempts[rpc][-2:])
    assert not header.request_id or again.request_id not in ("", header.request_id)
    assert mine.request_id == "mine"


def _good(rpc: str) -> list[Any]:
    module = replay_pb if hasattr(replay_pb, f"{rpc}Response") else selector_pb
    return [getattr(module, f"{rpc}Response")()]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, UNAVAILABLE)])
def test_only_unavailable_is_tried_again(call: Caller, script: Any, refuse: Any, code: grpc.StatusCode) -> None:
    script.answers["GetRun"] = [refuse(code)]
    with pytest.raises(clients.SelectorError) as caught:
        call("get_run")
    assert caught.value.code is code
    assert caught.value.message == "refused by the script"
    assert len(script.attempts["GetRun"]) == 1


def test_attempts_are_bounded(call: Caller, script: Any, refuse: Any) -> None:
    script.answers["GetRun"] = [refuse(UNAVAILABLE)]
    with pytest.raises(Unavailable):
        call("get_run", options={"retry": RetryPolicy(max_attempts=3, initial_backoff_s=0.001)})
    assert len(script.attempts["GetRun"]) == 3


def test_a_wait_that_outlasts_the_deadline_is_not_begun(call: Caller, script: Any, refuse: Any) -> None:
    script.answers["GetRun"] = [refuse(UNAVAILABLE, retry_after_s=3600)]
    with pytest.raises(Unavailable) as caught:
        call("get_run", timeout_s=20)
    assert caught.value.retry_after_s == 3600
    assert len(script.attempts["GetRun"]) == 1


def test_the_deadline_is_the_methods_and_can_be_set_per_call(call: Caller, script: Any, refuse: Any) -> None:
    script.answers["GetRun"] = [refuse(UNAVAILABLE), refuse(UNAVAILABLE), selector_pb.GetRunResponse()]
    # Ten seconds between two looks at the clock: before and after each attempt. Below 1000 s gRPC sends a deadline in
    # steps of at most a second, above in steps of ten.
    ticks = itertools.count(1000.0, 10.0)
    call("get_run", options={"timeout_s": 100.0, "clock": lambda: next(ticks)})
    call("get_run", timeout_s=900.0)
    assert script.remaining_s == pytest.approx([90, 70, 50, 900], abs=2)
    script.answers["GetRun"] = [lambda _: _sleep_past_any_deadline()]
    with pytest.raises(clients.DeadlineExceeded):
        call("get_run", timeout_s=0.3)
    assert len(script.attempts["GetRun"]) == 5
    with pytest.raises(clients.DeadlineExceeded):
        call("get_run", timeout_s=0)
    assert len(script.attempts["GetRun"]) == 5


def _sleep_past_any_deadline() -> selector_pb.GetRunResponse:
    time.sleep(1.0)
    return selector_pb.GetRunResponse()


def test_a_service_that_is_not_there_is_unavailable() -> None:
    with (
        SelectorClient("127.0.0.1:1", "run", retry=RetryPolicy(max_attempts=2, initial_backoff_s=0.01)) as client,
        pytest.raises(ConnectionError),
    ):
        client.get_run()


def test_backoff_grows_is_spread_and_gives_way_to_the_service() -> None:
    policy = RetryPolicy(max_attempts=5, initial_backoff_s=0.1, max_backoff_s=1.0)
    error = Unavailable("no")

    def delay(attempt: int, jitter: float = 0.5, **options: Any) -> float | None:
        return policy.delay_s(attempt, options.pop("error", error), options.pop("remaining_s", 60.0), jitter, **options)

    assert [delay(attempt) for attempt in (1, 2, 3, 4, 5)] == pytest.approx([0.1, 0.2, 0.4, 0.8, None])
    assert delay(1, jitter=0.0) == pytest.approx(0.05)
    assert delay(10_000, patient=True) == pytest.approx(1.0)
    assert delay(1, error=Unavailable("no", retry_after_s=7.0)) == 7.0
    assert delay(1, error=Unavailable("no", retry_after_s=7.0), remaining_s=7.0) is None
    assert delay(1, error=clients.ResourceExhausted("no", retry_after_s=1.0)) is None


# Streams


def test_prompts_are_streamed_in_frames_and_sent_again_whole(call: Caller, script: Any, refuse: Any) -> None:
    count, width = 3000, 300
    embeddings = np.random.default_rng(0).normal(size=(count, width))
    ids = [f"prompt-{index}" for index in range(count)]
    script.answers["RegisterPrompts"] = [refuse(UNAVAILABLE), selector_pb.RegisterPromptsResponse(added=count)]
    registered = call(
        "register_prompts",
        ids,
        [f"text {index}" for index in range(count)],
        embeddings,
        domains=["math", None, "code"] * 1000,
        priors=[(0.25, 8), None, 0.5] * 1000,
        token_counts=np.arange(count),
        replace=True,
    )
    assert registered.added == count
    first, second = script.attempts["RegisterPrompts"]
    assert first == second
    assert len(first) > 3 and max(frame.ByteSize() for frame in first) < 1.1 * 2**20
    assert [frame.run_id for frame in first] == ["run"] + [""] * (len(first) - 1)
    assert first[0].replace
    prompts = [prompt for frame in first for prompt in frame.prompts]
    assert [prompt.prompt_id for prompt in prompts] == ids
    np.testing.assert_array_equal(
        np.stack([np.frombuffer(prompt.embedding, "<f4") for prompt in prompts]), embeddings.astype(np.float32)
    )
    assert [prompt.token_count for prompt in prompts] == list(range(count))
    assert [(p.domain, p.HasField("prior"), p.prior.pass_rate, p.prior.trials) for p in prompts[:3]] == [
        ("math", True, 0.25, 8),
        ("", False, 0.0, 0),
        ("code", True, 0.5, 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["x"]}, "texts: expected one per prompt (2), got 1"),
        ({"domains": ["x"] * 3}, "domains: expected one per prompt (2), got 3"),
        ({"token_counts": [1]}, "token_counts: expected one per prompt (2), got 1"),
        ({"embeddings": np.zeros((3, 4))}, "embeddings: expected numbers of shape (2, width), got float64 (3, 4)"),
        ({"embeddings": np.zeros(2)}, "embeddings: expected numbers of shape (2, width)"),
        ({"embeddings": np.full((2, 1), "x")}, "embeddings: expected numbers"),
        ({"priors": [0.5, "often"]}, "priors[1]: expected (pass_rate, trials)"),
        ({"priors": [(0.5, 1, 2), None]}, "priors[0]: expected (pass_rate, trials)"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_anything_is_sent(
    call: Caller, script: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        call("register_prompts", ["a", "b"], **arguments)
    assert message in str(caught.value)
    assert not script.attempts


def test_what_cannot_be_encoded_within_a_stream_is_the_error_that_is_raised(call: Caller) -> None:
    with pytest.raises(ValueError, match=re.escape("texts[1]: expected text that UTF-8 can hold")):
        call("register_prompts", ["a", "b"], ["fine", "lone \ud800"])


def test_groups_are_pushed_in_frames_and_a_large_one_has_its_own(call: Caller, script: Any) -> None:
    def group(index: int, tokens: int) -> RolloutGroup:
        return RolloutGroup.from_arrays(
            prompt_id=f"p{index}",
            policy_version=2,
            prompt_token_ids=[1],
            response_token_ids=[np.arange(tokens)],
            behavior_log_probs=[np.zeros(tokens)],
            rewards=[1],
            outcomes=[1],
        )

    groups = [group(index, 10_000) for index in range(20)] + [group(20, 400_000), group(21, 5)]
    response = replay_pb.PushRolloutsResponse(stored=21, refused=[replay_pb.RefusedGroup(index=3, reason="X")])
    script.answers["PushRollouts"] = [response]
    pushed = call("push_rollouts", 2, iter(groups), skip_refused=True, options={"same_host": False})
    assert pushed.stored == 21
    assert pushed.refused == (clients.RefusedGroup(3, "", "", "X", "", ""),)
    (frames,) = script.attempts["PushRollouts"]
    assert (frames[0].run_id, frames[0].step, frames[0].skip_refused) == ("run", 2, True)
    assert [message for frame in frames for message in frame.groups] == [group.to_proto() for group in groups]
    assert all(frame.ByteSize() < 1.1 * 2**20 or len(frame.groups) == 1 for frame in frames)
    assert 3 <= len(frames) < 10
    # A service that knows no memory, or cannot reach it, does not say that it read any: the groups are sent.
    call("push_rollouts", 2, groups, request_id=frames[0].request_id, skip_refused=True)
    _, lent, sent = script.attempts["PushRollouts"]
    assert lent[0].HasField("memory")
    assert not any(frame.groups for frame in lent)
    assert sent == frames


def test_a_sample_that_breaks_off_is_taken_again_whole(call: Caller, script: Any, refuse: Any) -> None:
    def message(prompt_id: str, **end: Any) -> replay_pb.SampleRolloutsResponse:
        response = replay_pb.SampleRolloutsResponse(**end)
        sampled = response.groups.add(age_steps=2, times_sampled=1, probability=0.5)
        sampled.group.CopyFrom(GROUP.to_proto())
        sampled.group.prompt_id = prompt_id
        return response

    end = {"last": True, "shortfall": 1, "shortfall_reason": "SHORTFALL_REASON_BUFFER_TOO_SMALL", "eligible_groups": 2}
    whole = [message("a"), message("b", **end)]
    script.answers["SampleRollouts"] = [[message("a"), refuse(UNAVAILABLE)], whole]
    sample = call("sample_rollouts", 5, 3, True, "newest", 1, ["x"], True, (1, 2))
    assert isinstance(sample, Sample)
    assert [group.prompt_id for group in sample] == ["a", "b"]
    assert (sample.shortfall, sample.shortfall_reason, sample.eligible_groups) == (1, "BUFFER_TOO_SMALL", 2)
    assert (sample[0].age_steps, sample[0].times_sampled, sample[0].probability) == (2, 1, 0.5)
    np.testing.assert_array_equal(sample[1].log_probs(0), [-0.5])
    sent = script.attempts["SampleRollouts"][1]
    expected = replay_pb.SampleRolloutsRequest(
        run_id="run",
        step=5,
        count=3,
        request_id=sent.request_id,
        wait=True,
        order="SAMPLE_ORDER_NEWEST",
        min_age_steps=1,
        exclude_prompt_ids=["x"],
        informative_only=True,
        shard=selector_pb.Shard(index=1, count=2),
    )
    assert sent == expected


def test_nothing_to_do_needs_no_call(call: Caller, script: Any) -> None:
    assert call("sample_rollouts", 1, 0) == []
    assert call("push_rollouts", 1, []).stored == 0
    assert call("report_outcomes", 1, {}).applied_groups == 0
    assert len(call("predict_difficulty", [])) == 0
    assert not script.attempts


def test_the_history_is_exported_row_by_row(call: Caller, script: Any, refuse: Any) -> None:
    record = selector_pb.OutcomeRecord(step=3, purpose="PURPOSE_TRAIN", outcomes=[1, 0], arm="ARM_UNIFORM")
    rows = [
        selector_pb.ExportRunResponse(outcomes=[selector_pb.OutcomeRow(prompt_id=prompt_id, record=record)] * 2)
        for prompt_id in "ab"
    ]
    script.answers["ExportRun"] = [rows]
    exported = call("export", "outcomes")
    assert [row.prompt_id for row in exported] == ["a", "a", "b", "b"]
    assert (exported[0].record.step, exported[0].record.purpose, exported[0].record.arm) == (3, "TRAIN", "UNIFORM")
    np.testing.assert_array_equal(exported[0].record.outcomes, [1.0, 0.0])
    assert script.attempts["ExportRun"][0].kind == selector_pb.EXPORT_KIND_OUTCOMES
    script.answers["ExportRun"] = [[rows[0], refuse(UNAVAILABLE)]]
    with pytest.raises(Unavailable):
        call("export", "selections")
    with pytest.raises(ValueError, match="kind: expected one of OUTCOMES, SELECTIONS"):
        call("export", "everything")


# What is sent and read


def test_a_selection(call: Caller, script: Any) -> None:
    script.answers["SelectBatch"] = [
        selector_pb.SelectBatchResponse(
            prompt_ids=["a", "b"],
            predicted_difficulties=[0.25, 0.5],
            standard_errors=[0.1, 0.2],
            probabilities=[1.0, 0.5],
            arms=["ARM_TARGETED", "ARM_REVIEW"],
            rollouts=[8, 4],
            replay_groups=3,
            shortfall=1,
            shortfall_reason="SHORTFALL_REASON_LEASED",
            estimate_step=-1,
            degraded=True,
        )
    ]
    selection = call("select_batch", np.int64(7), 6, "REFERENCE", 2, True, ("x", "y"), (0, 2))
    assert len(selection) == 2
    assert (selection.prompt_ids, selection.arms) == (("a", "b"), ("TARGETED", "REVIEW"))
    assert (selection.replay_groups, selection.shortfall, selection.shortfall_reason) == (3, 1, "LEASED")
    assert (selection.estimate_step, selection.degraded, selection.reference_due) == (-1, True, False)
    assert selection.predicted_difficulties.dtype == np.float64 and selection.rollouts.dtype == np.int32
    np.testing.assert_array_equal(selection.rollouts, [8, 4])
    np.testing.assert_array_equal(selection.standard_errors, [0.1, 0.2])
    (sent,) = script.attempts["SelectBatch"]
    assert sent == selector_pb.SelectBatchRequest(
        run_id="run",
        step=7,
        round=2,
        batch_size=6,
        purpose="PURPOSE_REFERENCE",
        request_id=sent.request_id,
        exclude_prompt_ids=["x", "y"],
        fresh_only=True,
        shard=selector_pb.Shard(index=0, count=2),
    )


def test_a_report(call: Caller, script: Any) -> None:
    outcomes = {"a": np.array([1, 0, 1], dtype=np.float32), "b": [True, False]}
    call("report_outcomes", 4, outcomes, "reference", {"b": ["completed", "ABORTED"]})
    (sent,) = script.attempts["ReportOutcomes"]
    assert (sent.step, sent.purpose) == (4, selector_pb.PURPOSE_REFERENCE)
    assert [(item.prompt_id, list(item.outcomes), list(item.statuses)) for item in sent.outcomes] == [
        ("a", [1.0, 0.0, 1.0], []),
        ("b", [1.0, 0.0], [selector_pb.ROLLOUT_STATUS_COMPLETED, selector_pb.ROLLOUT_STATUS_ABORTED]),
    ]


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("report_outcomes", (1, {"a": "ok"}), "outcomes['a']: expected a list of numbers"),
        ("report_outcomes", (1, {"a": 1.0}), "outcomes['a']: expected a list of numbers"),
        ("report_outcomes", (1, {"a": [1]}, "test"), "purpose: expected one of TRAIN, REFERENCE"),
        ("report_outcomes", (1, {"a": [1]}, "train", {"b": ["ABORTED"]}), "statuses['b']: expected only prompts"),
        ("report_outcomes", (1, {"a": [1]}, "train", {"a": ["DONE"]}), "statuses['a'][0]: expected one of COMPLETED"),
        ("retire_prompts", ("abc",), "prompt_ids: expected a list of ids, got the string 'abc'"),
        ("predict_difficulty", ("abc",), "prompt_ids: expected a list of ids, got the string 'abc'"),
        ("select_batch", (1, 2, "train", 0, False, "abc"), "exclude_prompt_ids: expected a list of ids"),
        ("sample_rollouts", (1, 2, False, "oldest"), "order: expected one of UNIFORM, NEWEST"),
        (
            "report_training",
            (1, None, None, None, None, {"loss": {"a": "x"}}),
            "signals['loss']['a']: expected a number, got 'x'",
        ),
        ("create_run", ({"sede": 1},), "config.sede: no such field (did you mean 'seed'?)"),
    ],
)
def test_arguments_that_cannot_be_sent_are_named(
    call: Caller, script: Any, method: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        call(method, *arguments)
    assert message in str(caught.value)
    assert not script.attempts


def test_what_the_trainer_saw(call: Caller, script: Any) -> None:
    script.answers["ReportTraining"] = [selector_pb.ReportTrainingResponse(already_applied=True)]
    assert call("report_training", 3, 0.5, updates=0, signals={"entropy": {"a": 0.5, "b": np.float32(1)}}) is True
    (sent,) = script.attempts["ReportTraining"]
    assert sent.effective_sample_size == 0.5 and sent.HasField("updates")
    assert not sent.HasField("clip_fraction")
    assert list(sent.signals) == [selector_pb.Signal(name="entropy", prompt_ids=["a", "b"], values=[0.5, 1.0])]


def test_predictions_of_the_whole_pool_are_read_page_by_page(call: Caller, script: Any) -> None:
    def page(request: selector_pb.PredictDifficultyRequest) -> selector_pb.PredictDifficultyResponse:
        number = int(request.page_token or 0)
        return selector_pb.PredictDifficultyResponse(
            prompt_ids=[f"p{number}", f"q{number}"],
            predicted_difficulties=[number, number + 0.5],
            standard_errors=[1, 1],
            bases=["BASIS_OWN", "BASIS_PRIOR"],
            own_weights=[0, 1],
            estimate_step=4 - number,
            next_page_token=str(number + 1) if number < 2 else "",
        )

    script.answers["PredictDifficulty"] = [page]
    predictions = call("predict_difficulty")
    assert predictions.prompt_ids == ("p0", "q0", "p1", "q1", "p2", "q2")
    np.testing.assert_array_equal(predictions.predicted_difficulties, [0, 0.5, 1, 1.5, 2, 2.5])
    assert predictions.bases == ("OWN", "PRIOR") * 3
    assert predictions.estimate_step == 2


def test_predictions_of_many_ids_are_asked_for_in_parts(call: Caller, script: Any) -> None:
    def answer(request: selector_pb.PredictDifficultyRequest) -> selector_pb.PredictDifficultyResponse:
        half = [0.5] * len(request.prompt_ids)
        return selector_pb.PredictDifficultyResponse(
            prompt_ids=request.prompt_ids,
            predicted_difficulties=half,
            standard_errors=half,
            bases=["BASIS_OWN"] * len(half),
            own_weights=half,
        )

    script.answers["PredictDifficulty"] = [answer]
    ids = [f"prompt-{index}" for index in range(25_000)]
    predictions = call("predict_difficulty", iter(ids))
    assert predictions.prompt_ids == tuple(ids)
    assert max(len(request.prompt_ids) for request in script.attempts["PredictDifficulty"]) < 25_000


def test_runs_are_listed_page_by_page(call: Caller, script: Any) -> None:
    script.answers["ListRuns"] = [
        selector_pb.ListRunsResponse(runs=[{"run_id": "a"}, {"run_id": "b"}], next_page_token="b"),
        selector_pb.ListRunsResponse(runs=[{"run_id": "c"}]),
    ]
    assert [run.run_id for run in call("list_runs")] == ["a", "b", "c"]
    assert [request.page_token for request in script.attempts["ListRuns"]] == ["", "b"]


def test_warnings_are_logged_once_and_the_token_never(
    target: str, script: Any, caplog: pytest.LogCaptureFixture, refuse: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    response = selector_pb.CreateRunResponse(created=True, warnings=["any log-probs are accepted"])
    script.answers["CreateRun"] = [refuse(UNAVAILABLE), response]
    with SelectorClient(target, "run", token="s3cret", retry=RetryPolicy(initial_backoff_s=0.01)) as client:
        assert client.create_run().warnings == ("any log-probs are accepted",)
        client.create_run()
        assert "s3cret" not in repr(client)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["run run: any log-probs are accepted"]
    assert warnings[0].name == "selector.client"
    assert "s3cret" not in caplog.text
    assert {metadata["authorization"] for metadata in script.metadata} == {"Bearer s3cret"}


@pytest.mark.parametrize(
    ("target", "warned"),
    [
        ("localhost:1", False),
        ("127.0.0.1:1", False),
        ("dns:///localhost:1", False),
        ("ipv4:127.0.0.1:1", False),
        ("[::1]:1", False),
        ("unix:/tmp/x", False),
        ("selector.example:1", True),
        ("dns:///selector.example:1", True),
    ],
)
def test_a_token_without_encryption_is_warned_about(
    target: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    SelectorClient(target, "run", token="s3cret").close()
    assert ("unencrypted" in caplog.text) is warned
    assert "s3cret" not in caplog.text


def test_calls_without_a_token_carry_none(call: Caller, script: Any) -> None:
    call("get_run")
    call("get_run", options={"token": "t"})
    assert ["authorization" in metadata for metadata in script.metadata] == [False, True]


def test_answers_beyond_the_limit_are_refused_and_the_limit_is_a_setting(call: Caller, script: Any) -> None:
    script.answers["ExplainPrompt"] = [selector_pb.ExplainPromptResponse(text="x" * 5 * 2**20)]
    assert len(call("explain", "p").text) == 5 * 2**20
    with pytest.raises(clients.ResourceExhausted, match="larger than max"):
        call("explain", "p", options={"max_message_bytes": 2**20})


def test_both_clients_have_the_same_methods() -> None:
    def methods(cls: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert methods(SelectorClient) == methods(AsyncSelectorClient)


def _some_calls(client: Any) -> list[Callable[[], Any]]:
    """Calls of every kind but export, which is an iterator; of an async client they are to be awaited."""
    return [
        client.get_run,
        client.wait_ready,
        lambda: client.register_prompts(["p"], ["text"]),
        lambda: client.push_rollouts(0, [GROUP]),
        lambda: client.sample_rollouts(0, 1),
    ]


def test_a_closed_client_says_so(target: str) -> None:
    client = SelectorClient(target, "run")
    client.get_run()
    client.close()
    for call in (*_some_calls(client), lambda: list(client.export("prompts"))):
        with pytest.raises(clients.ClientClosed, match="the client was closed"):
            call()

    async def closed() -> None:
        client = AsyncSelectorClient(target, "run")
        await client.get_run()
        await client.close()
        for call in _some_calls(client):
            with pytest.raises(clients.ClientClosed, match="the client was closed"):
                await call()
        with pytest.raises(clients.ClientClosed):
            async for _ in client.export("prompts"):
                pass

    asyncio.run(closed())
