"""What each method of the clients sends and how it reads the answer, without any input or output of its own.

An operation is a generator. It yields ``Call`` (send this, hand me the response; a list of them for a response stream)
or a float (wait so many seconds), and returns the method's result. The clients only drive operations, one with
``grpc`` and one with ``grpc.aio``, so both behave alike by construction.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from clients import results
from clients.arguments import (
    Shard,
    id_list,
    mapping_of,
    outcomes_message,
    purpose_number,
    shard_message,
    signal_message,
)
from clients.config import run_config
from clients.decoding import decode
from clients.errors import MalformedAnswer
from clients.messages import build, listed, shown
from clients.names import enum_number, short_name
from clients.rollout_group import RolloutGroup
from clients.same_host import SameHost
from clients.sampled_groups import decoded
from clients.streams import Prior, prompt_stream, rate_and_trials, rollout_stream, rollout_stream_in
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as selector_pb

T = TypeVar("T")
Columns = TypeVar("Columns", results.Selection, results.Predictions)


@dataclass(frozen=True)
class Call:
    """One RPC.

    Attributes:
        rpc: its name.
        request: the message or stream.
        patient: it is retried until the deadline.
        again: the request of further attempts, None = the same.
    """

    rpc: str
    request: Any
    patient: bool = False
    again: Any = None

    @property
    def retried(self) -> Call:
        """The next attempt."""
        return self if self.again is None else replace(self, request=self.again, again=None)


Operation = Generator["Call | float", Any, T]

# The call that is not of our own services, and the one that is answered by a stream.
HEALTH = "Check"
STREAMED = "SampleRollouts"
_SERVICES = ("selector.v1.SelectorService", "selector.v1.ReplayService")
_POLL_S = 0.1
_LISTED = 10
# Ids per request: keeps a request for named prompts below the message limit.
_IDS_PER_CALL = 10_000
# As many priors take less than 3 MB with usual ids, and less than 30 MB with the longest.
_PRIORS_PER_CALL = 100_000
# What a group takes in an answer besides its payload, roughly.
_ACCOMPANYING_BYTES = 512


def answered(operation: Operation[T], response: Any) -> Call | float:
    """The operation's next step, given the response to its last one (None at first).

    Raises:
        StopIteration: it is done; ``value`` is its result.
        MalformedAnswer: the response cannot be one.
        ValueError: the operation's own arguments cannot be sent.
    """
    try:
        return operation.send(response)
    except ValueError as error:
        if response is None:
            raise
        raise MalformedAnswer(f"the answer does not fit together: {error}") from error


def received(message: T | None) -> T:
    """A message of an answer; gRPC hands out None where none came, or where it could not be decoded."""
    if message is None:
        raise MalformedAnswer("the answer holds no message that can be decoded")
    return message


def request_id_of(request_id: str | None) -> str:
    """The caller's own request id, or a new one."""
    return uuid.uuid4().hex if request_id is None else request_id


def create_run(
    run_id: str, config: Mapping[str, Any] | run_pb2.RunConfig | None, request_id: str
) -> Operation[results.RunCreated]:
    """CreateRun."""
    request = build(selector_pb.CreateRunRequest, run_id=run_id, config=run_config(config), request_id=request_id)
    return decode(results.RunCreated, (yield Call("CreateRun", request)))


def get_run(run_id: str) -> Operation[results.RunInfo]:
    """GetRun."""
    response = yield Call("GetRun", build(selector_pb.GetRunRequest, run_id=run_id))
    return decode(results.RunInfo, response.run)


def list_runs() -> Operation[list[results.RunInfo]]:
    """ListRuns, all pages."""
    runs: list[results.RunInfo] = []
    token = ""
    while True:
        response = yield Call("ListRuns", selector_pb.ListRunsRequest(page_token=token))
        runs += [decode(results.RunInfo, run) for run in response.runs]
        token = _next_page(token, response)
        if not token:
            return runs


def delete_run(run_id: str, request_id: str) -> Operation[None]:
    """DeleteRun."""
    yield Call("DeleteRun", build(selector_pb.DeleteRunRequest, run_id=run_id, request_id=request_id))


def fork(run_id: str, new_run_id: str, step: int, request_id: str) -> Operation[results.RunInfo]:
    """ForkRun."""
    request = build(selector_pb.ForkRunRequest, run_id=run_id, new_run_id=new_run_id, step=step, request_id=request_id)
    response = yield Call("ForkRun", request)
    return decode(results.RunInfo, response.run)


def rewind(run_id: str, step: int, request_id: str) -> Operation[results.Rewound]:
    """RewindRun."""
    request = build(selector_pb.RewindRunRequest, run_id=run_id, step=step, request_id=request_id)
    return decode(results.Rewound, (yield Call("RewindRun", request)))


def register_prompts(
    run_id: str,
    prompt_ids: Sequence[str],
    texts: Sequence[str | None] | None,
    embeddings: Any,
    domains: Sequence[str | None] | None,
    priors: Sequence[Prior] | None,
    token_counts: Any,
    replace: bool,
    request_id: str,
) -> Operation[results.Registered]:
    """RegisterPrompts."""
    header = build(selector_pb.RegisterPromptsRequest, run_id=run_id, replace=replace, request_id=request_id)
    stream = prompt_stream(header, prompt_ids, texts, embeddings, domains, priors, token_counts)
    return decode(results.Registered, (yield Call("RegisterPrompts", stream)))


def import_priors(
    run_id: str, priors: Mapping[str, Prior], step: int | None, request_id: str
) -> Operation[results.PriorsImported]:
    """ImportPriors, in parts that fit into messages; no priors need no call."""
    mapping_of(priors, "priors", "prompt id -> prior")
    header = build(selector_pb.ImportPriorsRequest, run_id=run_id, request_id=request_id, step=step)
    messages = []
    for prompt_id, prior in priors.items():
        where = f"priors[{shown(prompt_id)}]"
        rate, trials = (0.0, 0) if prior is None else rate_and_trials(prior, where)
        messages.append(build(selector_pb.ImportedPrior, where, prompt_id=prompt_id, pass_rate=rate, trials=trials))
    parts: list[results.PriorsImported] = []
    for start in range(0, len(messages), _PRIORS_PER_CALL):
        request = selector_pb.ImportPriorsRequest(priors=messages[start : start + _PRIORS_PER_CALL])
        request.MergeFrom(header)
        if start and request_id:
            # Every part is a request of its own.
            request.request_id = f"{request_id}+{start}"
        parts.append(decode(results.PriorsImported, (yield Call("ImportPriors", request))))
    return results.PriorsImported(
        imported=sum(part.imported for part in parts),
        unknown=sum(part.unknown for part in parts),
        unknown_prompt_ids=tuple(name for part in parts for name in part.unknown_prompt_ids)[:_LISTED],
    )


def retire_prompts(run_id: str, prompt_ids: Iterable[str], request_id: str) -> Operation[results.Retired]:
    """RetirePrompts."""
    request = build(
        selector_pb.RetirePromptsRequest,
        run_id=run_id,
        prompt_ids=id_list(prompt_ids, "prompt_ids"),
        request_id=request_id,
    )
    return decode(results.Retired, (yield Call("RetirePrompts", request)))


def select_batch(
    run_id: str,
    step: int,
    batch_size: int,
    purpose: str,
    round: int,
    fresh_only: bool,
    exclude_prompt_ids: Iterable[str],
    shard: Shard | None,
    request_id: str,
) -> Operation[results.Selection]:
    """SelectBatch."""
    request = build(
        selector_pb.SelectBatchRequest,
        run_id=run_id,
        step=step,
        round=round,
        batch_size=batch_size,
        purpose=purpose_number(purpose),
        request_id=request_id,
        exclude_prompt_ids=id_list(exclude_prompt_ids, "exclude_prompt_ids"),
        fresh_only=fresh_only,
        shard=shard_message(shard),
    )
    return _parallel(decode(results.Selection, (yield Call("SelectBatch", request))))


def report_outcomes(
    run_id: str,
    step: int,
    outcomes: Mapping[str, Any],
    purpose: str,
    statuses: Mapping[str, Sequence[str]] | None,
    request_id: str,
) -> Operation[results.OutcomesReported]:
    """ReportOutcomes; nothing to report needs no call."""
    mapping_of(outcomes, "outcomes", "prompt id -> outcomes")
    statuses = mapping_of({} if statuses is None else statuses, "statuses", "prompt id -> statuses")
    for prompt_id in statuses:
        if prompt_id not in outcomes:
            raise ValueError(f"statuses[{shown(prompt_id)}]: expected only prompts with outcomes")
    request = build(
        selector_pb.ReportOutcomesRequest,
        run_id=run_id,
        step=step,
        purpose=purpose_number(purpose),
        request_id=request_id,
        outcomes=[
            outcomes_message(prompt_id, values, statuses.get(prompt_id)) for prompt_id, values in outcomes.items()
        ],
    )
    if not outcomes:
        return results.OutcomesReported()
    return decode(results.OutcomesReported, (yield Call("ReportOutcomes", request)))


def predict_difficulty(run_id: str, prompt_ids: Iterable[str] | None) -> Operation[results.Predictions]:
    """PredictDifficulty, all pages. No ids are no predictions, not the whole pool."""
    pages: list[results.Predictions] = []
    if prompt_ids is None:
        token = ""
        while True:
            request = build(selector_pb.PredictDifficultyRequest, run_id=run_id, page_token=token)
            response = yield Call("PredictDifficulty", request)
            pages.append(_parallel(decode(results.Predictions, response)))
            token = _next_page(token, response)
            if not token:
                break
    else:
        # Of all ids, so that one that cannot be sent is found, and its place told, before the first call.
        whole = build(selector_pb.PredictDifficultyRequest, run_id=run_id, prompt_ids=id_list(prompt_ids, "prompt_ids"))
        for start in range(0, len(whole.prompt_ids), _IDS_PER_CALL):
            chunk = whole.prompt_ids[start : start + _IDS_PER_CALL]
            request = selector_pb.PredictDifficultyRequest(run_id=run_id, prompt_ids=chunk)
            pages.append(_parallel(decode(results.Predictions, (yield Call("PredictDifficulty", request)))))
    return _joined(pages)


def push_rollouts(
    run_id: str,
    step: int,
    groups: Iterable[RolloutGroup],
    skip_refused: bool,
    request_id: str,
    same_host: SameHost,
) -> Operation[results.Pushed]:
    """PushRollouts; no groups need no call."""
    groups = listed(groups, "groups", "rollout groups")
    header = build(
        replay_pb.PushRolloutsRequest, run_id=run_id, step=step, request_id=request_id, skip_refused=skip_refused
    )
    if not groups:
        return results.Pushed()
    sent = rollout_stream(header, groups)
    size = sum(getattr(group, "nbytes", 0) + _ACCOMPANYING_BYTES for group in groups)
    with same_host.lent(size) as memory:
        if memory is not None:
            # Of the first attempt the service may still be reading the memory when there is a second one.
            response = yield Call("PushRollouts", rollout_stream_in(memory, header, groups), again=sent)
            memory.used = response.from_memory
            if memory.used or sent.begun:
                return decode(results.Pushed, response)
    return decode(results.Pushed, (yield Call("PushRollouts", sent)))


def sample_rollouts(
    run_id: str,
    step: int,
    count: int,
    wait: bool,
    order: str,
    min_age_steps: int,
    exclude_prompt_ids: Iterable[str],
    informative_only: bool,
    shard: Shard | None,
    request_id: str,
    same_host: SameHost,
) -> Operation[results.Sample]:
    """SampleRollouts; ``count=0``, which is what a selection asks for while the buffer is short, needs no call."""
    request = build(
        replay_pb.SampleRolloutsRequest,
        run_id=run_id,
        step=step,
        count=count,
        request_id=request_id,
        wait=wait,
        order=enum_number(replay_pb.SampleOrder.DESCRIPTOR, order, "order"),
        min_age_steps=min_age_steps,
        exclude_prompt_ids=id_list(exclude_prompt_ids, "exclude_prompt_ids"),
        informative_only=informative_only,
        shard=shard_message(shard),
    )
    if request.count == 0:
        return results.Sample()
    with same_host.lent(same_host.room_for_sample()) as memory:
        if memory is None:
            groups, last = decoded((yield Call("SampleRollouts", request)), None)
        else:
            lent = replay_pb.SampleRolloutsRequest(memory=memory.named())
            lent.MergeFrom(request)
            groups, last = decoded((yield Call("SampleRollouts", lent, again=request)), memory)
    end = decode(_SampleEnd, replay_pb.SampleRolloutsResponse() if last is None else last)
    sample = results.Sample(
        groups,
        shortfall=end.shortfall,
        shortfall_reason=end.shortfall_reason,
        eligible_groups=end.eligible_groups,
    )
    same_host.sampled(sum(group.nbytes + _ACCOMPANYING_BYTES for group in sample))
    return sample


def report_training(
    run_id: str,
    step: int,
    effective_sample_size: float | None,
    max_importance_weight: float | None,
    clip_fraction: float | None,
    updates: int | None,
    signals: Mapping[str, Mapping[str, float]] | None,
    request_id: str,
) -> Operation[bool]:
    """ReportTraining; True if this request had been applied before."""
    request = build(
        selector_pb.ReportTrainingRequest,
        run_id=run_id,
        step=step,
        request_id=request_id,
        effective_sample_size=effective_sample_size,
        max_importance_weight=max_importance_weight,
        clip_fraction=clip_fraction,
        updates=updates,
        signals=[
            signal_message(name, values)
            for name, values in mapping_of({} if signals is None else signals, "signals", "name -> values").items()
        ],
    )
    response = yield Call("ReportTraining", request)
    return bool(response.already_applied)


def explain(run_id: str, prompt_id: str, limit: int) -> Operation[results.Explanation]:
    """ExplainPrompt."""
    request = build(selector_pb.ExplainPromptRequest, run_id=run_id, prompt_id=prompt_id, limit=limit)
    return decode(results.Explanation, (yield Call("ExplainPrompt", request)))


def quality(run_id: str) -> Operation[results.Quality]:
    """GetSelectionQuality."""
    request = build(selector_pb.GetSelectionQualityRequest, run_id=run_id)
    return decode(results.Quality, (yield Call("GetSelectionQuality", request)))


def wait_ready() -> Operation[None]:
    """grpc.health.v1 Check of both services, until each is SERVING or the deadline passes."""
    for service in _SERVICES:
        while (yield Call(HEALTH, service, patient=True)) is not True:
            yield _POLL_S


def export_request(run_id: str, kind: str) -> selector_pb.ExportRunRequest:
    """ExportRun of ``"outcomes"``, ``"selections"`` or ``"prompts"``."""
    return build(
        selector_pb.ExportRunRequest, run_id=run_id, kind=enum_number(selector_pb.ExportKind.DESCRIPTOR, kind, "kind")
    )


def export_rows(response: selector_pb.ExportRunResponse) -> list[results.ExportRow]:
    """Rows of one message of the export."""
    response = received(response)
    try:
        return [
            *(decode(results.OutcomeRow, row) for row in response.outcomes),
            *(decode(results.SelectionRow, row) for row in response.selections),
            *(_prompt_row(row) for row in response.prompts),
        ]
    except ValueError as error:
        raise MalformedAnswer(f"a row of the export does not fit together: {error}") from error


@dataclass(frozen=True)
class _SampleEnd:
    """What only the last message of a sample says."""

    shortfall: int
    shortfall_reason: str | None
    eligible_groups: int


def _joined(pages: list[results.Predictions]) -> results.Predictions:
    def column(read: Callable[[results.Predictions], np.ndarray]) -> np.ndarray:
        return np.concatenate([read(page) for page in pages]) if pages else np.empty(0)

    return results.Predictions(
        prompt_ids=tuple(prompt_id for page in pages for prompt_id in page.prompt_ids),
        predicted_difficulties=column(lambda page: page.predicted_difficulties),
        standard_errors=column(lambda page: page.standard_errors),
        bases=tuple(basis for page in pages for basis in page.bases),
        own_weights=column(lambda page: page.own_weights),
        # Outcomes may arrive between two pages: claim only what all of them have seen.
        estimate_step=min((page.estimate_step for page in pages), default=-1),
    )


def _prompt_row(row: selector_pb.PromptRow) -> results.PromptRow:
    prompt = row.prompt
    return results.PromptRow(
        prompt_id=prompt.prompt_id,
        text=prompt.text,
        domain=prompt.domain,
        token_count=prompt.token_count,
        prior=(prompt.prior.pass_rate, prompt.prior.trials) if prompt.HasField("prior") else None,
        embedding=np.frombuffer(prompt.embedding, dtype="<f4").astype(np.float32) if prompt.embedding else None,
        status=short_name(selector_pb.PromptStatus.DESCRIPTOR, row.status),
    )


def _next_page(token: str, response: Any) -> str:
    following: str = response.next_page_token
    if following and following == token:
        raise ValueError("next_page_token: expected another one than the page's own")
    return following


def _parallel(columns: Columns) -> Columns:
    """The columns, which have one entry per prompt."""
    for name, column in vars(columns).items():
        if isinstance(column, (np.ndarray, tuple)) and len(column) != len(columns):
            raise ValueError(f"{name}: expected one per prompt ({len(columns)}), got {len(column)}")
    return columns
