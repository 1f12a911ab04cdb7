"""The calls that trainers make, as messages: their content follows from ids, steps and a salt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clients.config import run_config
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from tests.resume.operations import Operation
from tests.service.trainer import group_of, noise, outcomes_of

WIDTH = 5
_DOMAINS = ("algebra", "geometry", "")


def config_of(values: Mapping[str, Any]) -> run_pb2.RunConfig:
    return run_config(values)


def create(run_id: str, config: run_pb2.RunConfig) -> Operation:
    return Operation("CreateRun", (pb.CreateRunRequest(run_id=run_id, config=config),))


def delete(run_id: str) -> Operation:
    return Operation("DeleteRun", (pb.DeleteRunRequest(run_id=run_id),))


def fork(run_id: str, new_run_id: str, step: int, request_id: str = "") -> Operation:
    request = pb.ForkRunRequest(run_id=run_id, new_run_id=new_run_id, step=step, request_id=request_id)
    return Operation("ForkRun", (request,))


def rewind(run_id: str, step: int, request_id: str = "") -> Operation:
    return Operation("RewindRun", (pb.RewindRunRequest(run_id=run_id, step=step, request_id=request_id),))


def prompt(prompt_id: str, embedded: bool, salt: object = "", said: object = None) -> pb.Prompt:
    """A prompt whose content follows from its id and the salt; from ``said``, if given, all but text and embedding."""
    random = noise("prompt", prompt_id, salt)
    made = pb.Prompt(
        prompt_id=prompt_id,
        text=f"What is {int(random.integers(100))} times {int(random.integers(100))}?",
        domain=_DOMAINS[int(random.integers(len(_DOMAINS)))],
        token_count=int(random.integers(1, 40)),
    )
    if embedded:
        made.embedding = random.normal(size=WIDTH).astype("<f4").tobytes()
    if random.random() < 0.5:
        made.prior.CopyFrom(pb.Prior(pass_rate=float(random.random()), trials=8))
    if said is not None:
        other = prompt(prompt_id, False, ("said", said))
        made.domain, made.token_count = other.domain, other.token_count
        made.prior.CopyFrom(other.prior)
        if not other.HasField("prior"):
            made.ClearField("prior")
    return made


def register(
    run_id: str, prompts: Sequence[pb.Prompt], replace: bool = False, request_id: str = "", frames: int = 1
) -> Operation:
    first = pb.RegisterPromptsRequest(run_id=run_id, replace=replace, request_id=request_id)
    messages = [first, *(pb.RegisterPromptsRequest() for _ in range(frames - 1))]
    for i, message in enumerate(messages):
        message.prompts.extend(prompts[i::frames])
    return Operation("RegisterPrompts", tuple(messages))


def retire(run_id: str, prompt_ids: Iterable[str], request_id: str = "") -> Operation:
    request = pb.RetirePromptsRequest(run_id=run_id, prompt_ids=list(prompt_ids), request_id=request_id)
    return Operation("RetirePrompts", (request,))


def import_priors(
    run_id: str, prompt_ids: Iterable[str], step: int | None = None, salt: object = "", request_id: str = ""
) -> Operation:
    """Priors of these prompts; a quarter of them are taken away."""
    request = pb.ImportPriorsRequest(run_id=run_id, request_id=request_id, step=step)
    random = noise("priors", salt)
    for prompt_id in prompt_ids:
        trials = int(random.choice([0, 1, 4, 16]))
        request.priors.add(prompt_id=prompt_id, pass_rate=float(random.random()), trials=trials)
    return Operation("ImportPriors", (request,))


def select(run_id: str, step: int, size: int, reference: bool = False, **fields: Any) -> Operation:
    purpose = pb.PURPOSE_REFERENCE if reference else pb.PURPOSE_TRAIN
    request = pb.SelectBatchRequest(run_id=run_id, step=step, batch_size=size, purpose=purpose, **fields)
    return Operation("SelectBatch", (request,))


def report(
    run_id: str,
    step: int,
    prompt_ids: Sequence[str],
    reference: bool = False,
    salt: object = "",
    request_id: str = "",
    aborted: int = 0,
) -> Operation:
    """Outcomes of 1 to 5 rollouts a prompt; of the first ``aborted`` prompts no rollout has ended."""
    request = pb.ReportOutcomesRequest(
        run_id=run_id,
        step=step,
        purpose=pb.PURPOSE_REFERENCE if reference else pb.PURPOSE_TRAIN,
        request_id=request_id,
    )
    for i, prompt_id in enumerate(prompt_ids):
        size = 1 + int(noise("size", step, prompt_id, salt).integers(5))
        (outcomes,) = outcomes_of([prompt_id], step, str(salt), size).values()
        statuses = [pb.ROLLOUT_STATUS_ABORTED] * size if i < aborted else []
        request.outcomes.add(prompt_id=prompt_id, outcomes=outcomes, statuses=statuses)
    return Operation("ReportOutcomes", (request,))


def training(
    run_id: str, step: int, signals: Mapping[str, Sequence[str]], salt: object = "", request_id: str = ""
) -> Operation:
    """A training report; ``signals`` are names with the prompts that they are known of."""
    random = noise("training", step, salt)
    request = pb.ReportTrainingRequest(run_id=run_id, step=step, request_id=request_id)
    for name in ("effective_sample_size", "clip_fraction", "max_importance_weight"):
        if random.random() < 0.6:
            setattr(request, name, float(random.random()))
    for name, ids in signals.items():
        request.signals.add(name=name, prompt_ids=ids, values=random.normal(size=len(ids)).tolist())
    return Operation("ReportTraining", (request,))


def push(
    run_id: str,
    step: int,
    groups: Sequence[tuple[str, int, str]],
    salt: object = "",
    request_id: str = "",
    frames: int = 1,
) -> Operation:
    """Groups as (prompt, policy version, id or ""); about three of four are informative."""
    first = replay_pb.PushRolloutsRequest(run_id=run_id, step=step, request_id=request_id)
    messages = [first, *(replay_pb.PushRolloutsRequest() for _ in range(frames - 1))]
    made = [_group(prompt_id, version, group_id, salt) for prompt_id, version, group_id in groups]
    for i, message in enumerate(messages):
        message.groups.extend(made[i::frames])
    return Operation("PushRollouts", tuple(messages))


def _group(prompt_id: str, version: int, group_id: str, salt: object) -> replay_pb.RolloutGroup:
    random = noise("pushed", prompt_id, version, salt)
    size = int(random.integers(2, 6))
    outcomes = np.zeros(size) if random.random() < 0.25 else (np.arange(size) % 2).astype(float)
    changes = {"group_id": group_id} if group_id else {}
    message: replay_pb.RolloutGroup = group_of(prompt_id, version, outcomes.tolist(), str(salt), **changes).to_proto()
    return message


def sample(run_id: str, step: int, count: int, **fields: Any) -> Operation:
    request = replay_pb.SampleRolloutsRequest(run_id=run_id, step=step, count=count, **fields)
    return Operation("SampleRollouts", (request,))


def looks(run_id: str, explained: Iterable[str] = ()) -> list[Operation]:
    """Everything that a run shows of itself."""
    return [
        Operation("GetRun", (pb.GetRunRequest(run_id=run_id),)),
        Operation("PredictDifficulty", (pb.PredictDifficultyRequest(run_id=run_id),)),
        Operation("GetSelectionQuality", (pb.GetSelectionQualityRequest(run_id=run_id),)),
        Operation("ExportRun", (pb.ExportRunRequest(run_id=run_id, kind=pb.EXPORT_KIND_OUTCOMES),)),
        Operation("ExportRun", (pb.ExportRunRequest(run_id=run_id, kind=pb.EXPORT_KIND_SELECTIONS),)),
        *(Operation("ExplainPrompt", (pb.ExplainPromptRequest(run_id=run_id, prompt_id=p),)) for p in explained),
    ]
