"""The Python client on bad input: typed exceptions of what the service refuses, ValueError for what cannot be sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from clients import AsyncSelectorClient, RolloutGroup, SelectorClient, SelectorError
from clients.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from tests.service.bad_input import RUN, SAMPLING, STEPS, Stubs, everything, filled
from tests.service.running import InProcessService

Use = Callable[[Any], Any]


@pytest.fixture(scope="module")
def stubs(service: InProcessService) -> Iterator[Stubs]:
    yield from filled(service)


def _group(prompt_id: str = "p0", log_prob: float = -1.0, **sampling: Any) -> RolloutGroup:
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=STEPS,
        prompt_token_ids=[1],
        response_token_ids=[[1], [2]],
        behavior_log_probs=[np.array([log_prob], dtype=np.float32), [-1.0]],
        rewards=[0.0, 1.0],
        outcomes=[0.0, 1.0],
        sampling={**SAMPLING, "log_prob_mode": "PROCESSED", **sampling},
    )


@dataclass(frozen=True)
class _Refused:
    """A call that the service refuses."""

    use: Use
    kind: type[SelectorError]
    reason: str
    field: str = ""


_REFUSED = {
    "other-config": _Refused(lambda c: c.create_run({}), AlreadyExists, "RUN_EXISTS", "config.group_size"),
    "config": _Refused(
        lambda c: c.create_run({"group_size": 0}), InvalidArgument, "INVALID_FIELD", "config.group_size"
    ),
    "contradiction": _Refused(
        lambda c: c.create_run({"score": "uniform", "score_temperature": 1.0}),
        InvalidArgument,
        "CONTRADICTORY_FIELDS",
        "config.score_temperature",
    ),
    "fork": _Refused(lambda c: c.fork("a/b", 1), InvalidArgument, "INVALID_FIELD", "new_run_id"),
    "rewind": _Refused(lambda c: c.rewind(-1), InvalidArgument, "INVALID_FIELD", "step"),
    "embedding-nan": _Refused(
        lambda c: c.register_prompts(["a"], embeddings=[[math.nan] * 4]),
        InvalidArgument,
        "INVALID_FIELD",
        "prompts[0].embedding",
    ),
    "embedding-width": _Refused(
        lambda c: c.register_prompts(["a"], embeddings=np.ones((1, 5))),
        InvalidArgument,
        "EMBEDDING_MISMATCH",
        "prompts[].embedding",
    ),
    "no-encoder": _Refused(
        lambda c: c.register_prompts(["a"], texts=["?"]), FailedPrecondition, "NO_ENCODER", "prompts[].embedding"
    ),
    "prior": _Refused(
        lambda c: c.register_prompts(["a"], priors=[(1.5, 3)]),
        InvalidArgument,
        "INVALID_FIELD",
        "prompts[0].prior.pass_rate",
    ),
    "content-differs": _Refused(
        lambda c: c.register_prompts(["p1"], embeddings=np.ones((1, 4))),
        InvalidArgument,
        "PROMPT_CONTENT_DIFFERS",
        "prompts",
    ),
    "imported-prior": _Refused(
        lambda c: c.import_priors({"p1": (0.5, 4), "p2": (1.5, 4)}),
        InvalidArgument,
        "INVALID_FIELD",
        "priors[1].pass_rate",
    ),
    "retire": _Refused(lambda c: c.retire_prompts(["nobody"]), InvalidArgument, "UNKNOWN_PROMPT", "prompt_ids[0]"),
    "batch-size": _Refused(lambda c: c.select_batch(STEPS, 0), InvalidArgument, "INVALID_FIELD", "batch_size"),
    "shard": _Refused(
        lambda c: c.select_batch(STEPS, 2, shard=(2, 2)), InvalidArgument, "INVALID_FIELD", "shard.index"
    ),
    "other-batch": _Refused(
        lambda c: c.select_batch(0, 3, fresh_only=True), InvalidArgument, "SELECTION_DIFFERS", "round"
    ),
    "outcome-nan": _Refused(
        lambda c: c.report_outcomes(STEPS, {"p1": [0.0, math.nan]}),
        InvalidArgument,
        "INVALID_OUTCOME",
        "outcomes[0].outcomes[1]",
    ),
    "outcomes-of-nobody": _Refused(
        lambda c: c.report_outcomes(STEPS, {"p1": [1.0], "nobody": [1.0]}),
        InvalidArgument,
        "UNKNOWN_PROMPT",
        "outcomes[1].prompt_id",
    ),
    "outcomes-empty": _Refused(
        lambda c: c.report_outcomes(STEPS, {"p1": []}), InvalidArgument, "INVALID_FIELD", "outcomes[0].outcomes"
    ),
    "request-id": _Refused(
        lambda c: c.report_outcomes(STEPS, {"p1": [1.0]}, request_id="report-0"),
        InvalidArgument,
        "REQUEST_ID_REUSED",
        "request_id",
    ),
    "training": _Refused(
        lambda c: c.report_training(STEPS, clip_fraction=2.0), InvalidArgument, "INVALID_FIELD", "clip_fraction"
    ),
    "predict": _Refused(
        lambda c: c.predict_difficulty(["p1", "nobody"]), InvalidArgument, "UNKNOWN_PROMPT", "prompt_ids[1]"
    ),
    "explain": _Refused(lambda c: c.explain("nobody"), NotFound, "PROMPT_NOT_FOUND"),
    "push-unknown": _Refused(
        lambda c: c.push_rollouts(STEPS, [_group(), _group("nobody")]),
        InvalidArgument,
        "UNKNOWN_PROMPT",
        "groups[1].prompt_id",
    ),
    "push-sampling": _Refused(
        lambda c: c.push_rollouts(STEPS, [_group(temperature=0.5)]),
        FailedPrecondition,
        "SAMPLING_DIFFERS",
        "groups[0].sampling.temperature",
    ),
    "push-log-prob": _Refused(
        lambda c: c.push_rollouts(STEPS, [_group(log_prob=0.5)]),
        InvalidArgument,
        "INVALID_LOG_PROB",
        "groups[0].behavior_log_probs[0]",
    ),
    "sample": _Refused(lambda c: c.sample_rollouts(STEPS, -1), InvalidArgument, "INVALID_FIELD", "count"),
}


@pytest.mark.parametrize("refused", _REFUSED.values(), ids=_REFUSED)
def test_refusals_raise_typed_exceptions(service: InProcessService, stubs: Stubs, refused: _Refused) -> None:
    before = stubs.seen or everything(stubs)
    client = service.client(RUN)
    with pytest.raises(refused.kind) as caught:
        refused.use(client)
    assert caught.value.reason == refused.reason
    assert [v.field for v in caught.value.violations][:1] == ([refused.field] if refused.field else [])
    assert refused.field.removeprefix("config.") in str(caught.value)
    stubs.seen = everything(stubs)
    assert stubs.seen == before


_UNSENDABLE: dict[str, tuple[Use, str]] = {
    "config-field": (lambda c: c.create_run({"group_sise": 8}), "group_size"),
    "config-type": (lambda c: c.create_run({"group_size": "eight"}), "config.group_size"),
    "config-enum": (lambda c: c.create_run({"score": "BEST"}), "BEST"),
    "texts-length": (lambda c: c.register_prompts(["a", "b"], texts=["x"]), "texts"),
    "embeddings-shape": (lambda c: c.register_prompts(["a"], embeddings=np.ones(4)), "embeddings"),
    "prior-type": (lambda c: c.register_prompts(["a"], priors=["high"]), "priors[0]"),
    "imported-prior-type": (lambda c: c.import_priors({"p1": "high"}), "priors['p1']"),
    "imported-priors-type": (lambda c: c.import_priors([0.5]), "priors"),
    "purpose": (lambda c: c.select_batch(STEPS, 2, purpose="test"), "test"),
    "ids-are-one-string": (lambda c: c.retire_prompts("p1"), "prompt_ids"),
    "outcomes-shape": (lambda c: c.report_outcomes(STEPS, {"p1": [[1.0]]}), "outcomes['p1']"),
    "status": (lambda c: c.report_outcomes(STEPS, {"p1": [1.0]}, statuses={"p1": ["DONE"]}), "DONE"),
    "statuses-of-others": (lambda c: c.report_outcomes(STEPS, {"p1": [1.0]}, statuses={"p2": []}), "statuses['p2']"),
    "order": (lambda c: c.sample_rollouts(STEPS, 1, order="oldest"), "oldest"),
    "kind": (lambda c: list(c.export("bananas")), "bananas"),
}


@pytest.mark.parametrize(("use", "says"), _UNSENDABLE.values(), ids=_UNSENDABLE)
def test_what_cannot_be_sent_is_a_value_error(use: Use, says: str) -> None:
    """There is no service at this address: nothing is sent."""
    with SelectorClient("127.0.0.1:1", RUN, timeout_s=0.01) as client, pytest.raises(ValueError) as caught:
        use(client)
    assert says in str(caught.value)
    assert not isinstance(caught.value, SelectorError)


@pytest.mark.parametrize(
    ("run_id", "kind", "reason"), [("nobody", LookupError, "RUN_NOT_FOUND"), ("a b", ValueError, "INVALID_FIELD")]
)
def test_runs_that_do_not_exist(service: InProcessService, run_id: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind) as caught:
        service.client(run_id).get_run()
    assert isinstance(caught.value, SelectorError)
    assert caught.value.reason == reason


def test_the_asynchronous_client_raises_the_same(service: InProcessService, stubs: Stubs) -> None:
    async def refused() -> SelectorError:
        async with AsyncSelectorClient(service.address, RUN) as client:
            with pytest.raises(InvalidArgument) as caught:
                await client.report_outcomes(STEPS, {"nobody": [1.0]})
            return caught.value

    error = asyncio.run(refused())
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_PROMPT")
    assert [str(v) for v in error.violations] == ["outcomes[0].prompt_id: unknown prompt 'nobody'"]
