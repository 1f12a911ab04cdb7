"""Requests of SelectorService that must be refused; the run's configuration has a module of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from selector.service.pages import page_token
from selector.v1 import selector_service_pb2 as pb
from selector.v1.reasons import Reason
from tests.service.bad_input import PROMPTS, RUN, STEPS, Case, Stubs, check_refused, embedding, filled
from tests.service.running import InProcessService

_UNKNOWN = [f"unknown-{i}" for i in range(13)]
_FIRST_TEN = tuple(f"unknown-{i}'" for i in range(10))
_HUGE = 2**53
_ENUM = 77
_RATE = "priors[1].pass_rate"


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


def _case(name: str, request: Any, field: str, *says: str, reason: Reason = Reason.INVALID_FIELD) -> Case:
    rpc = type(request).__name__.removesuffix("Request")
    return Case(name, rpc, request, field, reason, says)


def _run_ids(rpc: str, **others: Any) -> list[Case]:
    """What is wrong with a run_id, whatever the method."""
    request = getattr(pb, f"{rpc}Request")
    return [
        Case("run-id-empty", rpc, request(run_id="", **others), "run_id"),
        Case("run-id-characters", rpc, request(run_id="a b/ü", **others), "run_id", says=("[A-Za-z0-9._-]", "'a b/ü'")),
        Case("run-id-long", rpc, request(run_id="r" * 129, **others), "run_id", says=("{1,128}", "got 'rrr")),
        Case(
            "run-id-unknown",
            rpc,
            request(run_id="nobody", **others),
            reason=Reason.RUN_NOT_FOUND,
            says=("run_id", "'nobody'"),
            covers="run_id",
        ),
    ]


def _request_ids(rpc: str, **others: Any) -> list[Case]:
    """A request_id that is too long."""
    request = getattr(pb, f"{rpc}Request")
    return [Case("request-id-long", rpc, request(request_id="i" * 257, **others), "request_id")]


_RUNS = [
    *[case for case in _run_ids("CreateRun") if case.reason is not Reason.RUN_NOT_FOUND],
    *_request_ids("CreateRun", run_id="new"),
    _case(
        "other-config",
        pb.CreateRunRequest(run_id=RUN, config={"group_size": 3}),
        "config.group_size",
        "the run has 2; got 3",
        reason=Reason.RUN_EXISTS,
    ),
    *_run_ids("GetRun"),
    _case("page-size-negative", pb.ListRunsRequest(page_size=-1), "page_size", "expected", "[0, 1000]; got -1"),
    _case("page-size-large", pb.ListRunsRequest(page_size=1001), "page_size", "[0, 1000]; got 1001"),
    _case("page-token-garbage", pb.ListRunsRequest(page_token="§§"), "page_token", reason=Reason.INVALID_PAGE_TOKEN),
    _case(
        "page-token-not-ours", pb.ListRunsRequest(page_token="aGFsbG8="), "page_token", reason=Reason.INVALID_PAGE_TOKEN
    ),
    _case(
        "page-token-of-predict-difficulty",
        pb.ListRunsRequest(page_token=page_token("pool", 10)),
        "page_token",
        reason=Reason.INVALID_PAGE_TOKEN,
    ),
    *_run_ids("DeleteRun"),
    *_request_ids("DeleteRun", run_id=RUN),
    *_run_ids("ForkRun", new_run_id="fork", step=1),
    *_request_ids("ForkRun", run_id=RUN, new_run_id="fork", step=1),
    _case("new-run-id-empty", pb.ForkRunRequest(run_id=RUN, step=1), "new_run_id"),
    _case("new-run-id-characters", pb.ForkRunRequest(run_id=RUN, new_run_id="a/b", step=1), "new_run_id"),
    _case(
        "onto-itself",
        pb.ForkRunRequest(run_id=RUN, new_run_id=RUN, step=1),
        "new_run_id",
        "run 'filled' exists",
        reason=Reason.RUN_EXISTS,
    ),
    _case("step-negative", pb.ForkRunRequest(run_id=RUN, new_run_id="fork", step=-1), "step"),
    _case("step-huge", pb.ForkRunRequest(run_id=RUN, new_run_id="fork", step=_HUGE), "step"),
    *_run_ids("RewindRun", step=1),
    *_request_ids("RewindRun", run_id=RUN, step=1),
    _case("step-negative", pb.RewindRunRequest(run_id=RUN, step=-1), "step"),
    _case("step-huge", pb.RewindRunRequest(run_id=RUN, step=_HUGE), "step"),
    _case(
        "request-id-of-another-call",
        pb.RewindRunRequest(run_id=RUN, step=1, request_id="report-0"),
        "request_id",
        "'report-0'",
        "ReportOutcomes",
        reason=Reason.REQUEST_ID_REUSED,
    ),
]


def _register(*prompts: dict[str, Any], **head: Any) -> list[pb.RegisterPromptsRequest]:
    return [pb.RegisterPromptsRequest(**{"run_id": RUN, "prompts": prompts, **head})]


def _new(name: str = "new", **changes: Any) -> dict[str, Any]:
    return {"prompt_id": name, "embedding": embedding(99), **changes}


def _pool(
    name: str, request: Any, field: str, *says: str, reason: Reason = Reason.INVALID_FIELD, covers: str = ""
) -> Case:
    return Case(name, "RegisterPrompts", request, field, reason, says, covers)


_POOL = [
    *_run_ids("RegisterPrompts"),
    _pool("stream-empty", [], "run_id", "at least one message"),
    _pool("run-id-missing", _register(_new(), run_id=""), "run_id"),
    _pool(
        "run-id-changes",
        [*_register(_new()), *_register(_new("newer"), run_id="other")],
        "run_id",
        "expected 'filled' throughout the stream; got 'other'",
    ),
    _pool("request-id-long", _register(_new(), request_id="i" * 257), "request_id"),
    _pool(
        "request-id-with-other-content",
        _register(_new(), request_id="register-1"),
        "request_id",
        "'register-1'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
    _pool("prompt-id-empty", _register(_new(""), run_id=RUN), "prompts[0].prompt_id", "1 to 256 bytes", "got 0"),
    _pool("prompt-id-long", _register(_new("ü" * 129)), "prompts[0].prompt_id", "got 258"),
    _pool(
        "prompt-id-twice",
        [*_register(_new()), *_register(_new(embedding=embedding(98)))],
        "prompts[1].prompt_id",
        "'new'",
        "prompts[0]",
        reason=Reason.DUPLICATE_PROMPT,
    ),
    _pool(
        "content-differs",
        _register(_new(), _new("p3")),
        "prompts",
        "'p3'",
        "set replace",
        reason=Reason.PROMPT_CONTENT_DIFFERS,
    ),
    _pool("text-long", _register(_new(text="x" * (4 * 2**20 + 1))), "prompts[0].text", "at most 4194304", "4194305"),
    _pool("domain-long", _register(_new(domain="ü" * 129)), "prompts[0].domain", "at most 256", "got 258"),
    _pool("token-count-negative", _register(_new(token_count=-1)), "prompts[0].token_count"),
    _pool("embedding-not-float32", _register(_new(embedding=b"12345")), "prompts[0].embedding", "float32", "5 bytes"),
    _pool("embedding-too-wide", _register(_new(embedding=bytes(4 * 65537))), "prompts[0].embedding", "65536", "65537"),
    _pool("embedding-nan", _register(_new(), _new("b", embedding=b"\0\0\xc0\x7f" * 4)), "prompts[1].embedding"),
    _pool("embedding-infinite", _register(_new(embedding=b"\0\0\x80\x7f" * 4)), "prompts[0].embedding"),
    _pool(
        "embedding-of-another-width",
        _register(_new(embedding=embedding(0, 5))),
        "prompts[].embedding",
        "width:4",
        "width:5",
        reason=Reason.EMBEDDING_MISMATCH,
    ),
    _pool(
        "embedding-width-changes",
        # The repeated prompt must not shift the position that is named.
        [*_register(_new(), _new()), *_register(_new("b", embedding=embedding(1, 5)))],
        "prompts[2].embedding",
        "expected width 4; got 5",
        reason=Reason.EMBEDDING_MISMATCH,
    ),
    _pool(
        "embeddings-and-texts-mixed",
        _register(_new(), {"prompt_id": "b", "text": "no embedding"}),
        "prompts[1].embedding",
        reason=Reason.EMBEDDING_MISMATCH,
    ),
    _pool(
        "no-encoder",
        _register({"prompt_id": "b", "text": "no embedding"}),
        "prompts[].embedding",
        "without an encoder",
        reason=Reason.NO_ENCODER,
    ),
    *[
        _pool(
            f"prior-pass-rate-{rate}",
            _register(_new(prior={"pass_rate": rate, "trials": 4})),
            "prompts[0].prior.pass_rate",
        )
        for rate in (-0.1, 1.1, math.nan, math.inf)
    ],
    *[
        _pool(f"prior-trials-{n}", _register(_new(prior={"pass_rate": 0.5, "trials": n})), "prompts[0].prior.trials")
        for n in (0, -1)
    ],
    *_run_ids("RetirePrompts", prompt_ids=["p1"]),
    *_request_ids("RetirePrompts", run_id=RUN, prompt_ids=["p1"]),
    _case("none", pb.RetirePromptsRequest(run_id=RUN), "prompt_ids", "at least one id; got none"),
    _case(
        "unknown",
        pb.RetirePromptsRequest(run_id=RUN, prompt_ids=["p1", *_UNKNOWN]),
        "prompt_ids[1]",
        "13 unknown",
        *_FIRST_TEN,
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case(
        "request-id-with-other-content",
        pb.RetirePromptsRequest(run_id=RUN, prompt_ids=["p1"], request_id="retire-1"),
        "request_id",
        "'retire-1'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
]


def _import(**changes: Any) -> pb.ImportPriorsRequest:
    return pb.ImportPriorsRequest(**{"run_id": RUN, "priors": [_prior()], **changes})


def _prior(**changes: Any) -> pb.ImportedPrior:
    return pb.ImportedPrior(**{"prompt_id": "p1", "pass_rate": 0.5, "trials": 4, **changes})


_PRIORS = [
    *_run_ids("ImportPriors", priors=[_prior()]),
    *_request_ids("ImportPriors", run_id=RUN, priors=[_prior()]),
    _case("none", _import(priors=[]), "priors", "at least one prior; got none"),
    *[_case(f"step-{step}", _import(step=step), "step") for step in (-1, _HUGE)],
    *[
        _case(f"prompt-id-{len(name)}", _import(priors=[_prior(), _prior(prompt_id=name)]), "priors[1].prompt_id")
        for name in ("", "x" * 257)
    ],
    _case(
        "prompt-twice",
        _import(priors=[_prior(), _prior(prompt_id="p2"), _prior()]),
        "priors[2].prompt_id",
        "'p1'",
        reason=Reason.DUPLICATE_PROMPT,
    ),
    *[
        _case(f"pass-rate-{rate}", _import(priors=[_prior(prompt_id="p2"), _prior(pass_rate=rate)]), _RATE)
        for rate in (-0.1, 1.1, math.nan, math.inf)
    ],
    _case("trials-negative", _import(priors=[_prior(trials=-1)]), "priors[0].trials"),
    _case(
        "request-id-with-other-content",
        _import(request_id="retire-1"),
        "request_id",
        "'retire-1'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
]


def _select(**changes: Any) -> pb.SelectBatchRequest:
    return pb.SelectBatchRequest(**{"run_id": RUN, "step": STEPS, "batch_size": 4, **changes})


def _report(*outcomes: dict[str, Any], **changes: Any) -> pb.ReportOutcomesRequest:
    given = outcomes or ({"prompt_id": "p1", "outcomes": [0.0, 1.0]},)
    return pb.ReportOutcomesRequest(**{"run_id": RUN, "step": STEPS, "outcomes": given, **changes})


def _outcome(value: float) -> pb.ReportOutcomesRequest:
    return _report({"prompt_id": "p2", "outcomes": [0.0]}, {"prompt_id": "p1", "outcomes": [0.0, value]})


def _training(**changes: Any) -> pb.ReportTrainingRequest:
    return pb.ReportTrainingRequest(**{"run_id": RUN, "step": STEPS, **changes})


def _signal(**changes: Any) -> pb.ReportTrainingRequest:
    return _training(signals=[{"name": "entropy", "prompt_ids": ["p1", "p2"], "values": [0.1, 0.2], **changes}])


_STEP = [
    *_run_ids("SelectBatch", batch_size=1),
    *_request_ids("SelectBatch", run_id=RUN, step=STEPS, batch_size=4),
    _case("step-negative", _select(step=-1), "step"),
    _case("step-huge", _select(step=_HUGE), "step"),
    _case("round-negative", _select(round=-1), "round"),
    _case("round-huge", _select(round=2**31 - 1), "round"),
    _case("batch-size-zero", _select(batch_size=0), "batch_size"),
    _case("batch-size-negative", _select(batch_size=-4), "batch_size"),
    _case("batch-size-huge", _select(batch_size=2**31 - 1), "batch_size"),
    _case("reference-size-negative", _select(purpose=pb.PURPOSE_REFERENCE, batch_size=-1), "batch_size"),
    _case("purpose-unknown", _select(purpose=_ENUM), "purpose"),
    _case("purpose-negative", _select(purpose=-1), "purpose"),
    _case(
        "reference-fresh-only",
        _select(purpose=pb.PURPOSE_REFERENCE, fresh_only=True),
        "fresh_only",
        "references are always fresh",
        reason=Reason.CONTRADICTORY_FIELDS,
    ),
    _case(
        "exclude-unknown",
        _select(exclude_prompt_ids=["p5", "p1", *_UNKNOWN]),
        "exclude_prompt_ids[2]",
        "13 unknown",
        *_FIRST_TEN,
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case("shard-count-zero", _select(shard={"index": 0, "count": 0}), "shard.count"),
    _case("shard-count-negative", _select(shard={"index": 0, "count": -2}), "shard.count"),
    _case("shard-index-too-large", _select(shard={"index": 2, "count": 2}), "shard.index"),
    _case("shard-index-negative", _select(shard={"index": -1, "count": 2}), "shard.index"),
    _case(
        "other-batch-size",
        _select(step=0, batch_size=5, fresh_only=True),
        "round",
        "batch_size 4, now 5",
        reason=Reason.SELECTION_DIFFERS,
    ),
    _case(
        "request-id-of-another-call",
        _select(request_id="report-0"),
        "request_id",
        "'report-0'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
    *_run_ids("ReportOutcomes", outcomes=[{"prompt_id": "p1", "outcomes": [1.0]}]),
    _case("request-id-long", _report(request_id="i" * 257), "request_id"),
    _case(
        "request-id-with-other-content",
        _report(request_id="report-0"),
        "request_id",
        "'report-0'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
    _case("step-negative", _report(step=-1), "step"),
    _case("step-huge", _report(step=_HUGE), "step"),
    _case("purpose-unknown", _report(purpose=_ENUM), "purpose"),
    _case("outcomes-none", pb.ReportOutcomesRequest(run_id=RUN), "outcomes", "at least one prompt; got none"),
    _case(
        "prompt-id-twice",
        _report({"prompt_id": "p1", "outcomes": [0.0]}, {"prompt_id": "p1", "outcomes": [1.0]}),
        "outcomes[1].prompt_id",
        "'p1'",
        "outcomes[0]",
        reason=Reason.DUPLICATE_PROMPT,
    ),
    _case(
        "prompt-id-empty",
        _report({"prompt_id": "", "outcomes": [0.0]}),
        "outcomes[0].prompt_id",
        "unknown prompt",
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case(
        "prompt-ids-unknown",
        _report(*({"prompt_id": p, "outcomes": [0.0]} for p in ["p1", *_UNKNOWN])),
        "outcomes[1].prompt_id",
        "13 unknown",
        *_FIRST_TEN,
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case("group-empty", _report({"prompt_id": "p1"}), "outcomes[0].outcomes", "'p1'", "got none"),
    *[
        _case(
            f"outcome-{value}",
            _outcome(value),
            "outcomes[1].outcomes[1]",
            f"got {value}",
            "expected",
            "'p1'",
            reason=Reason.INVALID_OUTCOME,
        )
        for value in (math.nan, math.inf, -math.inf, 1.4, -1.0001)
    ],
    _case(
        "statuses-too-few",
        _report({"prompt_id": "p1", "outcomes": [0.0, 1.0], "statuses": [1]}),
        "outcomes[0].statuses",
        "one per outcome, 2; got 1",
    ),
    _case(
        "status-unknown",
        _report({"prompt_id": "p1", "outcomes": [0.0, 1.0], "statuses": [1, _ENUM]}),
        "outcomes[0].statuses[1]",
    ),
    _case(
        "status-negative",
        _report({"prompt_id": "p1", "outcomes": [0.0], "statuses": [-1]}),
        "outcomes[0].statuses[0]",
    ),
    *_run_ids("ReportTraining"),
    *_request_ids("ReportTraining", run_id=RUN),
    _case("step-negative", _training(step=-1), "step"),
    _case("step-huge", _training(step=_HUGE), "step"),
    *[
        _case(f"{field}-{value}", _training(**{field: value}), field)
        for field, values in {
            "effective_sample_size": (-0.1, 1.1, math.nan),
            "max_importance_weight": (-0.1, math.inf, math.nan),
            "clip_fraction": (-0.1, 1.1, math.nan),
            "updates": (-1,),
        }.items()
        for value in values
    ],
    _case("signal-name-empty", _signal(name=""), "signals[0].name"),
    _case("signal-name-characters", _signal(name="a b"), "signals[0].name"),
    _case("signal-name-long", _signal(name="n" * 65), "signals[0].name"),
    _case(
        "signal-name-twice",
        _training(signals=[{"name": "a"}, {"name": "a"}]),
        "signals[1].name",
        "'a'",
    ),
    _case(
        "signal-prompt-twice",
        _signal(prompt_ids=["p1", "p1"]),
        "signals[0].prompt_ids[1]",
        "'p1'",
        reason=Reason.DUPLICATE_PROMPT,
    ),
    _case(
        "signal-prompt-unknown",
        _signal(prompt_ids=["p1", "nobody"]),
        "signals[0].prompt_ids[1]",
        "'nobody'",
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case("signal-values-too-few", _signal(values=[0.1]), "signals[0].values", "one per prompt id, 2; got 1"),
    _case("signal-value-nan", _signal(values=[0.1, math.nan]), "signals[0].values[1]"),
    _case("signal-value-infinite", _signal(values=[-math.inf, 0.1]), "signals[0].values[0]"),
    _case(
        "request-id-with-other-content",
        _training(request_id="train-0"),
        "request_id",
        "'train-0'",
        reason=Reason.REQUEST_ID_REUSED,
    ),
]

_LOOKING = [
    *_run_ids("PredictDifficulty"),
    _case(
        "prompt-ids-unknown",
        pb.PredictDifficultyRequest(run_id=RUN, prompt_ids=[*PROMPTS, *_UNKNOWN]),
        f"prompt_ids[{len(PROMPTS)}]",
        "13 unknown",
        *_FIRST_TEN,
        reason=Reason.UNKNOWN_PROMPT,
    ),
    _case("page-size-negative", pb.PredictDifficultyRequest(run_id=RUN, page_size=-1), "page_size"),
    _case("page-size-large", pb.PredictDifficultyRequest(run_id=RUN, page_size=100_001), "page_size"),
    *[
        _case(
            f"page-token-{name}",
            pb.PredictDifficultyRequest(run_id=RUN, page_token=token),
            "page_token",
            reason=Reason.INVALID_PAGE_TOKEN,
        )
        for name, token in {
            "garbage": "§§",
            "not-base64": "abc",
            "not-ours": "aGFsbG8=",
            "of-list-runs": page_token("runs", "filled"),
            "negative": page_token("pool", "-1"),
            "behind-the-end": page_token("pool", len(PROMPTS)),
            "long": "A" * 4000,
        }.items()
    ],
    _case(
        "ids-and-page-token",
        pb.PredictDifficultyRequest(run_id=RUN, prompt_ids=["p1"], page_token="MTA="),
        "page_token",
        "prompt_ids",
        reason=Reason.CONTRADICTORY_FIELDS,
    ),
    _case(
        "ids-and-page-size",
        pb.PredictDifficultyRequest(run_id=RUN, prompt_ids=["p1"], page_size=10),
        "page_size",
        "prompt_ids",
        reason=Reason.CONTRADICTORY_FIELDS,
    ),
    *_run_ids("ExplainPrompt", prompt_id="p1"),
    _case("prompt-id-empty", pb.ExplainPromptRequest(run_id=RUN), "prompt_id"),
    _case("prompt-id-long", pb.ExplainPromptRequest(run_id=RUN, prompt_id="p" * 257), "prompt_id"),
    Case(
        "prompt-id-unknown",
        "ExplainPrompt",
        pb.ExplainPromptRequest(run_id=RUN, prompt_id="nobody"),
        reason=Reason.PROMPT_NOT_FOUND,
        says=("prompt_id", "'nobody'", "'filled'"),
        covers="prompt_id",
    ),
    _case("limit-negative", pb.ExplainPromptRequest(run_id=RUN, prompt_id="p1", limit=-1), "limit"),
    _case("limit-large", pb.ExplainPromptRequest(run_id=RUN, prompt_id="p1", limit=10_001), "limit"),
    *_run_ids("GetSelectionQuality"),
    *_run_ids("ExportRun", kind=pb.EXPORT_KIND_OUTCOMES),
    _case("kind-missing", pb.ExportRunRequest(run_id=RUN), "kind"),
    _case("kind-unknown", pb.ExportRunRequest(run_id=RUN, kind=_ENUM), "kind"),  # type: ignore[arg-type]
]

CASES = [*_RUNS, *_POOL, *_PRIORS, *_STEP, *_LOOKING]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_refused_and_changes_nothing(stubs: Stubs, case: Case) -> None:
    check_refused(stubs, case)
