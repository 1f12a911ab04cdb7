"""Every argument of every method of both clients: what cannot be sent is a ``ValueError`` that names it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clients import AsyncSelectorClient, Column, RolloutGroup, SamplingSettings, SelectorClient
from selector.v1 import selector_service_pb2 as selector_pb
from tests.clients.groups import GROUP

Caller = Callable[..., Any]
# Wrong values of one argument, each with how the error begins; by default with the argument's name.
Wrong = list[Any]


class Named:
    """A wrong value, and what its error names."""

    def __init__(self, value: Any, name: str) -> None:
        self.value = value
        self.name = name


_HUGE = 10**5000
INT64: Wrong = [1.5, math.nan, True, np.True_, "0", None, [1], 2**63, -(2**63) - 1, _HUGE]
INT32: Wrong = [2.5, math.inf, False, "2", None, 2**31, -(2**31) - 1, _HUGE]
NUMBER: Wrong = ["0.5", True, [0.5], 10**400, np.array("0.5"), np.array(True), np.complex128(1 + 2j)]
TEXT: Wrong = [5, b"a", None, ["a"], "lone \ud800"]
BOOLEAN: Wrong = [1, "yes", None]
NAME: Wrong = ["nothing", 99, None, True, "\ud800"]
REQUEST_ID: Wrong = [5, b"a", "\ud800"]
TIMEOUT: Wrong = ["1", math.nan, True, [1]]
SHARD: Wrong = [
    5,
    (1,),
    (0, 1, 2),
    "01",
    np.zeros(()),
    np.zeros((2, 2)),
    Named((0.5, 2), "shard.index"),
    Named(([0.5], 2), "shard.index"),
    Named((0, ()), "shard.count"),
    Named(np.array(3), "shard"),
    Named(np.zeros((2, 2)), "shard"),
    Named((0, True), "shard.count"),
]


def changed(**changes: Any) -> RolloutGroup:
    """A group with fields that ``from_arrays`` did not see."""
    return replace(GROUP, **changes)


def ids(name: str) -> Wrong:
    """Wrong lists of ids."""
    return [
        *(5, "ab", b"ab"),
        *(Named(["a", 5], f"{name}[1]"), Named(["a", None], f"{name}[1]"), Named(["a", b"b"], f"{name}[1]")),
        Named(["a", "b", "\ud800"], f"{name}[2]"),
        Named(np.array([1, 2]), f"{name}[0]"),
    ]


CHANGE: dict[str, Wrong] = {"request_id": REQUEST_ID, "timeout_s": TIMEOUT}

# Method, arguments that can be sent, and wrong values by argument.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Wrong]]] = {
    "create_run": (
        {},
        {
            "config": [
                *(5, "paper", [1]),
                Named({"group_size": 2.5}, "config.group_size"),
                Named({"group_size": 2**31}, "config.group_size"),
                Named({"seed": _HUGE}, "config.seed"),
                Named({"replay": {"fresh_fraction": True}}, "config.replay.fresh_fraction"),
                Named({"replay": {"informative_only": 1}}, "config.replay.informative_only"),
                Named({"estimator": {"adapter": "\ud800"}}, "config.estimator.adapter"),
                Named({"outcome_range": [0, "1"]}, "config.outcome_range[1]"),
            ],
            **CHANGE,
        },
    ),
    "get_run": ({}, {"timeout_s": TIMEOUT}),
    "list_runs": ({}, {"timeout_s": TIMEOUT}),
    "delete_run": ({}, CHANGE),
    "fork": ({"new_run_id": "b", "step": 1}, {"new_run_id": TEXT, "step": INT64, **CHANGE}),
    "rewind": ({"step": 1}, {"step": INT64, **CHANGE}),
    "register_prompts": (
        {"prompt_ids": ["a", "b"], "texts": ["x", "y"]},
        {
            "prompt_ids": [
                *ids("prompt_ids")[:3],
                Named(["a", 5], "prompt_ids[1]"),
                Named(["\ud800", "b"], "prompt_ids[0]"),
            ],
            "texts": [
                *(5, "xy", ["x"], {"x", "y"}, {"a": "x", "b": "y"}),
                Named(["x", 5], "texts[1]"),
                Named(["x", b"y"], "texts[1]"),
                Named(["x", "y \ud800"], "texts[1]"),
            ],
            "embeddings": [5, "xy", [[1, 2], [3]], [[1, 2], [None, 3]], [[1, 2]], [[True], [False]]],
            "domains": [5, "xy", ["x"], Named([None, 5], "domains[1]"), Named(["\ud800", None], "domains[0]")],
            "priors": [
                *(5, "xy", [0.5]),
                Named([0.5, (0.5, 1.5)], "priors[1].trials"),
                Named([None, (0.5, True)], "priors[1].trials"),
                Named([None, (0.5, 2**31)], "priors[1].trials"),
                Named([None, ("0.5", 1)], "priors[1].pass_rate"),
                Named([None, (0.5,)], "priors[1]"),
                Named([None, "0.5"], "priors[1]"),
            ],
            "token_counts": [
                *(5, [1], {1, 2}, frozenset({1, 2})),
                Named([1, 1.5], "token_counts[1]"),
                Named(np.array([1, 1.5]), "token_counts[1]"),
                Named([1, None], "token_counts[1]"),
                Named([1, 2**31], "token_counts[1]"),
                Named([True, 1], "token_counts[0]"),
            ],
            "replace": BOOLEAN,
            **CHANGE,
        },
    ),
    "import_priors": (
        {"priors": {"a": (0.5, 8)}},
        {
            "priors": [
                *(5, [("a", 0.5)]),
                Named({"b": (0.5, 1.5)}, "priors['b'].trials"),
                Named({"b": (0.5, 2**31)}, "priors['b'].trials"),
                Named({"b": ("0.5", 1)}, "priors['b'].pass_rate"),
                Named({"b": "often"}, "priors['b']"),
                Named({5: 0.5}, "priors[5].prompt_id"),
                Named({"\ud800": 0.5}, r"priors['\ud800'].prompt_id"),
            ],
            "step": [value for value in INT64 if value is not None],
            **CHANGE,
        },
    ),
    "retire_prompts": ({"prompt_ids": ["a"]}, {"prompt_ids": [None, *ids("prompt_ids")], **CHANGE}),
    "explain": ({"prompt_id": "a"}, {"prompt_id": TEXT, "limit": INT32, "timeout_s": TIMEOUT}),
    "predict_difficulty": ({}, {"prompt_ids": ids("prompt_ids"), "timeout_s": TIMEOUT}),
    "select_batch": (
        {"step": 0, "batch_size": 2},
        {
            "step": INT64,
            "batch_size": INT32,
            "purpose": NAME,
            "round": INT32,
            "fresh_only": BOOLEAN,
            "exclude_prompt_ids": [None, *ids("exclude_prompt_ids")],
            "shard": SHARD,
            **CHANGE,
        },
    ),
    "report_outcomes": (
        {"step": 0, "outcomes": {"a": [0.0, 1.0]}},
        {
            "step": INT64,
            "outcomes": [
                *(5, [1.0], None),
                Named({"a": 1.0}, "outcomes['a']"),
                Named({"a": [1.0, None]}, "outcomes['a']"),
                Named({"a": [[1.0], [1.0, 2.0]]}, "outcomes['a']"),
                Named({5: [1.0]}, "outcomes[5].prompt_id"),
                Named({"\ud800": [1.0]}, r"outcomes['\ud800'].prompt_id"),
            ],
            "purpose": NAME,
            "statuses": [
                *(5, ["ABORTED"]),
                Named({"a": 5}, "statuses['a']"),
                Named({"a": "ABORTED"}, "statuses['a']"),
                Named({"a": ["ABORTED", 99]}, "statuses['a'][1]"),
            ],
            **CHANGE,
        },
    ),
    "push_rollouts": (
        {"step": 0, "groups": [GROUP]},
        {
            "step": INT64,
            "groups": [
                *(5, None),
                Named([GROUP, 5], "groups[1]"),
                Named([GROUP, changed(prompt_id=5)], "groups[1].prompt_id"),
                Named([GROUP, changed(group_id="\ud800")], "groups[1].group_id"),
                Named([GROUP, changed(policy_version=0.5)], "groups[1].policy_version"),
                Named([GROUP, changed(statuses=("ABORTED", "DONE"))], "groups[1].statuses[1]"),
                Named([changed(sampling=SamplingSettings(top_k=1.5))], "groups[0].sampling.top_k"),  # type: ignore[arg-type]
                Named([changed(columns={"\ud800": Column("bytes", (), b"")})], "groups[0].columns[0].name"),
            ],
            "skip_refused": BOOLEAN,
            **CHANGE,
        },
    ),
    "sample_rollouts": (
        {"step": 0, "count": 2},
        {
            "step": INT64,
            "count": [*INT32, np.zeros(2)],
            "wait": BOOLEAN,
            "order": NAME,
            "min_age_steps": INT32,
            "exclude_prompt_ids": [None, *ids("exclude_prompt_ids")],
            "informative_only": BOOLEAN,
            "shard": SHARD,
            **CHANGE,
        },
    ),
    "report_training": (
        {"step": 0},
        {
            "step": INT64,
            "effective_sample_size": NUMBER,
            "max_importance_weight": NUMBER,
            "clip_fraction": NUMBER,
            "updates": [value for value in INT32 if value is not None],
            "signals": [
                *(5, ["loss"]),
                Named({"loss": 5}, "signals['loss']"),
                Named({"loss": {"a": 1, "b": "x"}}, "signals['loss']['b']"),
                Named({"loss": {"a": 1, "b": [1, 2]}}, "signals['loss']['b']"),
                Named({5: {"a": 1}}, "signals[5].name"),
                Named({"loss": {"a": 1, 5: 1}}, "signals['loss'].prompt_ids[1]"),
                Named({"loss": {"a": 1, "\ud800": 1}}, "signals['loss'].prompt_ids[1]"),
            ],
            **CHANGE,
        },
    ),
    "quality": ({}, {"timeout_s": TIMEOUT}),
    "export": ({"kind": "outcomes"}, {"kind": NAME, "timeout_s": TIMEOUT}),
    "wait_ready": ({}, {"timeout_s": TIMEOUT}),
}


def _methods() -> dict[str, list[str]]:
    """Public methods, with the arguments of each."""
    return {
        name: [argument for argument in inspect.signature(member).parameters if argument != "self"]
        for name, member in inspect.getmembers(SelectorClient, inspect.isfunction)
        if not name.startswith("_")
    }


def test_no_method_and_no_argument_is_left_out() -> None:
    arguments = {name: sorted(names) for name, names in _methods().items() if name != "close"}
    assert {name: sorted(wrong) for name, (_, wrong) in METHODS.items()} == arguments


@pytest.mark.parametrize(
    ("method", "argument"), [(name, argument) for name, (_, wrong) in METHODS.items() for argument in wrong]
)
def test_what_cannot_be_sent_is_a_value_error_that_names_it(call: Caller, method: str, argument: str) -> None:
    sound, wrong = METHODS[method]
    for entry in wrong[argument]:
        value, name = (entry.value, entry.name) if isinstance(entry, Named) else (entry, argument)
        with pytest.raises(ValueError) as caught:
            call(method, **{**sound, argument: value})
        # Of its children only UnicodeError could get here, which tells about bytes and names nothing.
        assert type(caught.value) is ValueError
        told = str(caught.value)
        assert told.startswith(f"{name}: expected "), told
        assert told.encode() and len(told) < 500


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("list_runs", "wait_ready")])
def test_the_run_id_is_named(method: str) -> None:
    sound, _ = METHODS[method]
    for run_id in (5, None, "\ud800"):
        with (
            SelectorClient("127.0.0.1:1", run_id) as client,  # type: ignore[arg-type]
            pytest.raises(ValueError, match=r"^run_id: expected text"),
        ):
            getattr(client, method)(**sound)


def test_who_is_called_and_the_token_are_text() -> None:
    with pytest.raises(ValueError, match=r"^target: expected"):
        SelectorClient(5, "run")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^token: expected text, got bytes$"):
        SelectorClient("127.0.0.1:1", "run", token=b"s3cret")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [
        "",
        "nonsense",
        "127.0.0.1",
        "http://127.0.0.1:50051",
        "https://a.b:1",
        "host:port",
        "host:0",
        "host:65536",
        "::1:5",
        "host:50051/",
        " host:50051",
        "host:",
        ":50051",
    ],
)
@pytest.mark.parametrize("client", [SelectorClient, AsyncSelectorClient])
def test_a_target_that_is_none_is_refused_when_the_client_is_made(client: Any, target: str) -> None:
    with pytest.raises(ValueError, match=r"^target: expected host:port, such as 127.0.0.1:50051, got '"):
        client(target, "run")


def test_targets_of_every_form_are_taken() -> None:
    for target in (
        "127.0.0.1:1",
        "[::1]:1",
        "a-b.example:65535",
        "http:1",
        "dns:///host",
        "unix:/tmp/x",
        "ipv4:1.2.3.4:5",
    ):
        SelectorClient(target, "run").close()


def test_an_id_beyond_the_first_part_is_named_by_its_place_before_anything_is_sent(call: Caller, script: Any) -> None:
    names: list[Any] = [f"p{index}" for index in range(12_000)]
    names[11_000] = "\ud800"
    with pytest.raises(ValueError, match=r"^prompt_ids\[11000\]: expected text"):
        call("predict_difficulty", names)
    assert not script.attempts


def test_numbers_of_numpy_and_whole_floats_are_taken(call: Caller, script: Any) -> None:
    call("select_batch", np.int64(3), 4.0, round=np.uint8(1), fresh_only=np.True_, shard=np.array([0, 2]))
    (sent,) = script.attempts["SelectBatch"]
    assert (sent.step, sent.batch_size, sent.round, sent.fresh_only) == (3, 4, 1, True)
    assert (sent.shard.index, sent.shard.count) == (0, 2)
    call("register_prompts", np.array(["a", "b"]), priors=np.array([[0.5, 8], [0.25, 4]]), token_counts=np.arange(2.0))
    (frames,) = script.attempts["RegisterPrompts"]
    assert [(p.prompt_id, p.prior.pass_rate, p.prior.trials, p.token_count) for p in frames[0].prompts] == [
        ("a", 0.5, 8, 0),
        ("b", 0.25, 4, 1),
    ]
    # The keys of a mapping have the order of its values.
    call("register_prompts", {"c": 1}.keys(), ["x"], timeout_s=math.inf)
    assert [p.prompt_id for p in script.attempts["RegisterPrompts"][1][0].prompts] == ["c"]
    call("import_priors", {"a": (np.float32(0.5), np.float64(8)), "b": None, "c": 1}, np.int32(2))
    (asked,) = script.attempts["ImportPriors"]
    assert [(prior.pass_rate, prior.trials) for prior in asked.priors] == [(0.5, 8), (0.0, 0), (1.0, 1)]
    assert asked.step == 2
    call("report_training", 1, np.float32(0.5), updates=np.int64(2))
    (seen,) = script.attempts["ReportTraining"]
    assert (seen.effective_sample_size, seen.updates) == (0.5, 2)
    assert not selector_pb.ReportTrainingRequest(step=1).HasField("updates") and not seen.HasField("clip_fraction")
