"""Requests of ReplayService that must be refused, and what skip_refused makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from selector.v1 import replay_service_pb2 as pb
from selector.v1 import selector_service_pb2 as selector_pb
from selector.v1.reasons import Reason
from tests.service.bad_input import (
    RUN,
    SAMPLING,
    STEPS,
    Case,
    Stubs,
    check_refused,
    filled,
    group,
    log_probs,
    push,
    token_ids,
)
from tests.service.running import InProcessService


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


def _push(name: str, request: Any, field: str, *says: str, reason: Reason = Reason.INVALID_FIELD) -> Case:
    return Case(name, "PushRollouts", request, field, reason, says)


def _group(name: str, field: str, *says: str, reason: Reason = Reason.INVALID_GROUP, **changes: Any) -> Case:
    """A stream whose second group is not sound."""
    sound = group(prompt_id="p1", group_id="sound")
    return _push(f"group-{name}", push(sound, group(**changes)), f"groups[1].{field}", *says, reason=reason)


def _column(title: str, field: str, *says: str, reason: Reason = Reason.INVALID_GROUP, **changes: Any) -> Case:
    column = {"name": "experts", "dtype": "int16", "shape": [3, 2], "data": bytes(12), "lengths": [2, 1], **changes}
    return _group(f"column-{title}", f"columns[0].{field}", *says, reason=reason, columns=[pb.Column(**column)])


def _sampling(name: str, field: str, *says: str, **changes: Any) -> Case:
    settings = {key: value for key, value in {**SAMPLING, **changes}.items() if value is not None}
    return _group(f"sampling-{name}", field, *says, reason=Reason.SAMPLING_DIFFERS, sampling=settings)


def _sample(name: str, field: str, *says: str, reason: Reason = Reason.INVALID_FIELD, **changes: Any) -> Case:
    request = pb.SampleRolloutsRequest(**{"run_id": RUN, "step": STEPS, "count": 2, **changes})
    return Case(name, "SampleRollouts", request, field, reason, says)


_RANGE = "expected an integer in"

_PUSH = [
    _push("stream-empty", [], "run_id", "at least one message"),
    _push("run-id-missing", push(group(), run_id=""), "run_id"),
    _push("run-id-characters", push(group(), run_id="a b"), "run_id"),
    Case(
        "run-id-unknown",
        "PushRollouts",
        push(group(), run_id="nobody"),
        reason=Reason.RUN_NOT_FOUND,
        says=("run_id", "'nobody'"),
        covers="run_id",
    ),
    _push("run-id-changes", [*push(group()), *push(group(), run_id="other")], "run_id", "'filled'", "got 'other'"),
    _push("step-negative", push(group(), step=-1), "step", _RANGE, "got -1"),
    _push("step-huge", push(group(), step=2**53), "step", _RANGE),
    _push("request-id-long", push(group(), request_id="i" * 257), "request_id"),
    _push(
        "request-id-with-other-content",
        push(group(), request_id="push-0"),
        "request_id",
        "'push-0'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
    _push(
        "in-a-later-message",
        [*push(group(prompt_id="p1")), *push(group(prompt_id="p2"), group(lengths=[]))],
        "groups[2].lengths",
        "got none",
        reason=Reason.INVALID_GROUP,
    ),
    _push(
        "many-groups",
        push(*[group(prompt_id=f"nobody-{i}") for i in range(13)]),
        "groups[9].prompt_id",
        "unknown prompt 'nobody-0'",
        "12 more groups",
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _push(
        "one-group-id-two-contents",
        push(group(group_id="same"), group(prompt_id="p1", group_id="same")),
        "groups[1].group_id",
        "'same'",
        "other content",
        reason=Reason.INVALID_GROUP,
    ),
    _push(
        "two-groups-of-a-prompt-without-ids",
        push(group(prompt_id="p1"), group(prompt_id="p1", rewards=[0.25, 0.5])),
        "groups[1].group_id",
        "'p1@",
        "prompt_id@policy_version unless a group_id is given",
        reason=Reason.INVALID_GROUP,
    ),
    _push(
        "larger-than-the-buffer",
        push(group(prompt_token_ids=bytes(4096))),
        "groups[0]",
        "capacity_bytes = 4096",
        reason=Reason.QUOTA_EXCEEDED,
    ),
]

_GROUP = [
    _group("prompt-id-empty", "prompt_id", "1 to 256", "got 0", reason=Reason.INVALID_FIELD, prompt_id=""),
    _group("prompt-id-long", "prompt_id", "got 257", reason=Reason.INVALID_FIELD, prompt_id="p" * 257),
    _group("prompt-id-unknown", "prompt_id", "'nobody'", reason=Reason.UNKNOWN_PROMPT, prompt_id="nobody"),
    _group("group-id-long", "group_id", "got 257", reason=Reason.INVALID_FIELD, group_id="g" * 257),
    _group("version-negative", "policy_version", "got -1", reason=Reason.INVALID_FIELD, policy_version=-1),
    _group("version-after-step", "policy_version", "got 4", reason=Reason.INVALID_FIELD, policy_version=STEPS + 1),
    _group("sampling-missing", "sampling", "got nothing", reason=Reason.SAMPLING_DIFFERS, sampling=None),
    _sampling("temperature", "sampling.temperature", "temperature=1 ", "temperature=0.7", temperature=0.7),
    _sampling("temperature-nan", "sampling.temperature", "temperature=nan", temperature=math.nan),
    _sampling("temperature-unset", "sampling.temperature", "temperature=unset", temperature=None),
    _sampling("top-p", "sampling.top_p", "top_p=0.9", "top_p=1", top_p=1.0),
    _sampling("top-k", "sampling.top_k", "top_k=50", "top_k=0", top_k=-1),
    _sampling("mode", "sampling.log_prob_mode", "mode=PROCESSED", "mode=RAW", log_prob_mode=1),
    _sampling("mode-unset", "sampling.log_prob_mode", "mode=UNSPECIFIED", log_prob_mode=0),
    _group(
        "sampling-mode-unknown",
        "sampling.log_prob_mode",
        "expected one of",
        "got 77",
        reason=Reason.INVALID_FIELD,
        sampling={**SAMPLING, "log_prob_mode": 77},
    ),
    _group("lengths-none", "lengths", "got none", lengths=[]),
    _group("length-zero", "lengths[1]", "expected > 0; got 0", lengths=[3, 0]),
    _group("length-negative", "lengths[0]", "expected > 0; got -1", lengths=[-1, 4]),
    _group("lengths-huge", "response_token_ids", "got 12", lengths=[2**31 - 1, 2**31 - 1]),
    _group("rewards-too-few", "rewards", "one per rollout, 2; got 1", rewards=[1.0]),
    _group("reward-nan", "rewards[1]", "finite", "nan", rewards=[1.0, math.nan]),
    _group("reward-infinite", "rewards[0]", "finite", "inf", rewards=[math.inf, 0.0]),
    _group("outcomes-too-many", "outcomes", "one per rollout, 2; got 3", outcomes=[0.0, 1.0, 1.0]),
    _group("outcome-nan", "outcomes[1]", "finite", reason=Reason.INVALID_OUTCOME, outcomes=[0.0, math.nan]),
    _group("outcome-outside", "outcomes[0]", "[-1, 1]; got 1.5", reason=Reason.INVALID_OUTCOME, outcomes=[1.5, 0.0]),
    _group("statuses-too-few", "statuses", "one per rollout, 2; got 1", statuses=[1]),
    _group("status-unknown", "statuses[1]", "got 77", reason=Reason.INVALID_FIELD, statuses=[1, 77]),
    _group("status-negative", "statuses[0]", "got -1", reason=Reason.INVALID_FIELD, statuses=[-1, 1]),
    _group("prompt-tokens-not-int32", "prompt_token_ids", "multiple of 4", "got 5", prompt_token_ids=b"12345"),
    _group("response-tokens-too-few", "response_token_ids", "12 bytes", "got 8", response_token_ids=token_ids(1, 2)),
    _group("prompt-token-negative", "prompt_token_ids[1]", ">= 0; got -2", prompt_token_ids=token_ids(7, -2)),
    _group(
        "response-token-negative",
        "response_token_ids[2]",
        "rollout 1, token 0: expected a token id >= 0 where the mask is 1; got -1",
        "prompt 'p0'",
        response_token_ids=token_ids(1, 2, -1),
    ),
    _group(
        "response-token-negative-where-the-mask-is-1",
        "response_token_ids[1]",
        "rollout 0, token 1",
        response_token_ids=token_ids(-1, -1, 3),
        loss_mask=b"\0\1\1",
    ),
    _group("log-probs-too-few", "behavior_log_probs", "12 bytes", "got 8", behavior_log_probs=log_probs(-1, -1)),
    *[
        _group(
            f"log-prob-{value}",
            "behavior_log_probs[2]",
            "rollout 1, token 0",
            f"got {value}",
            reason=Reason.INVALID_LOG_PROB,
            behavior_log_probs=log_probs(-1, 0, value),
        )
        for value in (math.nan, math.inf, -math.inf, 0.5)
    ],
    _group(
        "log-prob-where-the-mask-is-1",
        "behavior_log_probs[1]",
        "rollout 0, token 1",
        reason=Reason.INVALID_LOG_PROB,
        behavior_log_probs=log_probs(math.nan, math.nan, -1),
        loss_mask=b"\0\1\1",
    ),
    _group("mask-too-short", "loss_mask", "3 bytes", "got 2", loss_mask=b"\1\1"),
    _group("mask-not-0-or-1", "loss_mask[2]", "0 or 1; got 2", loss_mask=b"\1\1\2"),
    _column("name-empty", "name", "1 to 64", "got ''", reason=Reason.INVALID_FIELD, name=""),
    _column("name-characters", "name", "got 'a b'", reason=Reason.INVALID_FIELD, name="a b"),
    _column("dtype-unknown", "dtype", "got 'float33'", reason=Reason.INVALID_FIELD, dtype="float33"),
    _column("dtype-object", "dtype", "got 'object'", reason=Reason.INVALID_FIELD, dtype="object"),
    _column("shape-negative", "shape", "[-3, -2]", shape=[-3, -2]),
    _column("shape-huge", "data", "got 12", shape=[2**62, 2**62]),
    _column("data-too-short", "data", "12 bytes", "got 11", data=bytes(11)),
    _column("lengths-too-few", "lengths", "one extent >= 0 per rollout, 2", "[3]", lengths=[3]),
    _column("lengths-negative", "lengths", "[4, -1]", lengths=[4, -1]),
    _column("lengths-do-not-add-up", "lengths", "the first axis, 3; got 4", lengths=[2, 2]),
    _column("lengths-of-bytes", "lengths", "the bytes, 12; got 3", dtype="bytes", shape=[]),
    _group(
        "column-twice",
        "columns[1].name",
        "'a'",
        reason=Reason.INVALID_FIELD,
        columns=[pb.Column(name="a", dtype="bytes"), pb.Column(name="a", dtype="bytes")],
    ),
]

_MEMORY = {"process": 1, "descriptor": 3, "key": bytes(32)}
_MEMORIES: list[tuple[str, str, dict[str, Any]]] = [
    ("process-zero", "memory.process", {"process": 0}),
    ("process-huge", "memory.process", {"process": 2**31}),
    ("descriptor-negative", "memory.descriptor", {"descriptor": -1}),
    ("key-missing", "memory.key", {"key": b""}),
    ("key-long", "memory.key", {"key": bytes(33)}),
]

_MEMORY_CASES = [
    *(
        _push(f"memory-{name}", [pb.PushRolloutsRequest(run_id=RUN, step=STEPS, memory={**_MEMORY, **changes})], field)
        for name, field, changes in _MEMORIES
    ),
    *(_sample(f"memory-{name}", field, memory={**_MEMORY, **changes}) for name, field, changes in _MEMORIES),
    _push(
        "messages-without-memory",
        [pb.PushRolloutsRequest(run_id=RUN, step=STEPS, memory_messages=[7])],
        "memory_messages",
        reason=Reason.CONTRADICTORY_FIELDS,
    ),
]

_SAMPLE = [
    _sample("run-id-empty", "run_id", run_id=""),
    Case(
        "run-id-unknown",
        "SampleRollouts",
        pb.SampleRolloutsRequest(run_id="nobody", count=1),
        reason=Reason.RUN_NOT_FOUND,
        says=("run_id", "'nobody'"),
        covers="run_id",
    ),
    _sample("step-negative", "step", step=-1),
    _sample("step-huge", "step", step=2**53),
    _sample("count-zero", "count", count=0),
    _sample("count-negative", "count", count=-1),
    _sample("count-huge", "count", count=2**31 - 1),
    _sample("request-id-long", "request_id", request_id="i" * 257),
    _sample("order-unknown", "order", order=77),
    _sample("order-negative", "order", order=-1),
    _sample("min-age-negative", "min_age_steps", min_age_steps=-1),
    _sample("exclude-empty-id", "exclude_prompt_ids[1]", exclude_prompt_ids=["p1", ""]),
    _sample("exclude-long-id", "exclude_prompt_ids[0]", exclude_prompt_ids=["p" * 257]),
    _sample("shard-count-zero", "shard.count", shard={"index": 0, "count": 0}),
    _sample("shard-index-too-large", "shard.index", shard={"index": 3, "count": 3}),
    _sample(
        "other-count",
        "step",
        "step 2",
        "2 groups asked for then, 3 now",
        reason=Reason.SELECTION_DIFFERS,
        step=STEPS - 1,
        count=3,
    ),
]

CASES = [*_PUSH, *_GROUP, *_SAMPLE, *_MEMORY_CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_refused_and_changes_nothing(stubs: Stubs, case: Case) -> None:
    check_refused(stubs, case)


def test_waiting_without_a_deadline_is_refused(stubs: Stubs) -> None:
    """Cases are sent with a deadline, so this one stands alone."""
    request = pb.SampleRolloutsRequest(run_id=RUN, step=STEPS + 1, count=1000, wait=True)
    case = Case(
        "wait-without-a-deadline", "SampleRollouts", request, "wait", Reason.CONTRADICTORY_FIELDS, ("deadline",)
    )
    check_refused(stubs, case, timeout_s=None)


def _second_group(request: Any) -> pb.RolloutGroup:
    unsound: pb.RolloutGroup = request[0].groups[1]
    return unsound


def test_skip_refused_stores_what_is_sound_and_lists_the_rest(stubs: Stubs) -> None:
    """Every unsound group comes back with the position, reason and field that would have refused the whole stream."""
    run = "skipping"
    config = {"outcome_range": [-1.0, 1.0], "sampling": SAMPLING}
    stubs.call("CreateRun", selector_pb.CreateRunRequest(run_id=run, config=config))
    prompts = [selector_pb.Prompt(prompt_id=f"p{i}") for i in range(2)]
    stubs.call("RegisterPrompts", selector_pb.RegisterPromptsRequest(run_id=run, prompts=prompts))
    groups = [group(prompt_id="p1", group_id="sound"), *(_second_group(case.request) for case in _GROUP)]
    answer = stubs.call("PushRollouts", push(*groups, run_id=run, skip_refused=True))
    assert answer.stored == 1
    assert [(r.index, r.reason, f"groups[1].{r.field}", r.prompt_id) for r in answer.refused] == [
        (i, case.reason.name, case.field, groups[i].prompt_id) for i, case in enumerate(_GROUP, start=1)
    ]
    assert all(refused.description for refused in answer.refused)
    frames = stubs.call("SampleRollouts", pb.SampleRolloutsRequest(run_id=run, step=STEPS, count=10))
    assert [sampled.group for frame in frames for sampled in frame.groups] == [groups[0]]
    stubs.seen = []
