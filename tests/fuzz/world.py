"""The state that fuzzing works on: runs of every kind with prompts, selections, outcomes and replay groups.

It is made once, through the service, and copied for every batch of inputs, so that what an input meets depends on the
batch's seed and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.fuzz.values import Known
from tests.service.bad_input import SAMPLING, Stubs, embedding, group, push
from tests.service.running import InProcessService

PROMPTS = tuple(f"p{i}" for i in range(8))
STEPS = 3
WIDTH = 4

CONFIGS: dict[str, dict[str, Any]] = {
    "filled": {
        "group_size": 2,
        "outcome_range": [-1.0, 1.0],
        "sampling": SAMPLING,
        "replay": {"capacity_bytes": 4096},
        "lease_steps": 2,
    },
    "plain": {"group_size": 2, "seed": 7, "score_evaluation": 2, "replay": {"max_uses": 2, "max_age_steps": 3}},
    "paper": {"preset": 2, "group_size": 2, "reference": {"size": 4}},
    "tracker": {"estimator": {"name": 3}, "reference": {"mode": 3}, "clip_outcomes": True, "on_nan": 2, "score": 2},
    "strict": {
        "strict_cool_down": True,
        "cool_down_steps": 1,
        "max_unselected_steps": 1,
        "max_prompt_tokens": 100,
        "replay": {"informative_only": False, "newest_per_prompt": False, "capacity_groups": 3},
    },
}
RUNS = tuple(CONFIGS)

KNOWN = Known(
    {
        "run_id": RUNS,
        "new_run_id": ("fork-1", "fork-2", "plain"),
        "prompt_id": (*PROMPTS, "new-1", "new-2"),
        "prompt_ids": PROMPTS,
        "exclude_prompt_ids": PROMPTS,
        "step": tuple(range(6)),
        "policy_version": (0, 1, 2, 3),
        "round": (0, 1, 2),
        "batch_size": (1, 2, 4, 8),
        "count": (1, 2, 4),
        "request_id": ("", "", "r-1", "r-2", "select-0", "report-0", "push-0"),
        "page_token": ("", "cnVucyBmaWxsZWQ=", "cG9vbCAz"),
        "group_id": ("", "p0@2", "g-1"),
        "dtype": ("bytes", "int32", "float32", "bfloat16", "bool"),
        "name": ("entropy", "signal", "column"),
        "statuses": (0, 1, 2, 3, 4),
        "outcomes": (0.0, 1.0, 0.5),
        "rewards": (0.0, 1.0),
        "lengths": (1, 2),
        "shape": (1, 2, 3),
    }
)


def write_template(directory: Path) -> None:
    """A state directory with the runs of ``CONFIGS``."""
    service = InProcessService(directory)
    stubs = Stubs(service.address)
    try:
        for run_id, config in CONFIGS.items():
            _fill(stubs, run_id, config)
    finally:
        stubs.close()
        service.close()


def _fill(stubs: Stubs, run_id: str, config: dict[str, Any]) -> None:
    stubs.call("CreateRun", pb.CreateRunRequest(run_id=run_id, config=config))
    prompts = [
        pb.Prompt(
            prompt_id=name,
            text=f"what is {i} + {i}?" if run_id != "tracker" else "",
            embedding=embedding(i, WIDTH) if run_id in ("filled", "paper") else b"",
            domain=f"d{i % 2}",
            token_count=i,
            prior=pb.Prior(pass_rate=0.5, trials=4) if i % 3 == 0 else None,
        )
        for i, name in enumerate(PROMPTS)
    ]
    stubs.call("RegisterPrompts", pb.RegisterPromptsRequest(run_id=run_id, prompts=prompts, request_id="register-1"))
    for step in range(STEPS):
        if run_id == "paper":
            drawn = pb.SelectBatchRequest(run_id=run_id, step=step, purpose=pb.PURPOSE_REFERENCE)
            _report(stubs, run_id, step, stubs.call("SelectBatch", drawn).prompt_ids, pb.PURPOSE_REFERENCE)
        select = pb.SelectBatchRequest(
            run_id=run_id, step=step, batch_size=3, fresh_only=True, request_id=f"select-{step}"
        )
        batch = stubs.call("SelectBatch", select)
        # The last selection stays in flight.
        if step < STEPS - 1:
            _report(stubs, run_id, step, batch.prompt_ids, pb.PURPOSE_TRAIN)
        signal = pb.Signal(name="entropy", prompt_ids=batch.prompt_ids, values=[0.5] * len(batch.prompt_ids))
        training = pb.ReportTrainingRequest(run_id=run_id, step=step, clip_fraction=0.1, signals=[signal])
        stubs.call("ReportTraining", training)
        groups = [group(prompt_id=p, policy_version=step) for p in PROMPTS[step : step + 3]]
        stubs.call("PushRollouts", push(*groups, run_id=run_id, step=step, request_id=f"push-{step}"))
    stubs.call("SampleRollouts", replay_pb.SampleRolloutsRequest(run_id=run_id, step=STEPS - 1, count=2))
    stubs.call("RetirePrompts", pb.RetirePromptsRequest(run_id=run_id, prompt_ids=["p7"]))


def _report(stubs: Stubs, run_id: str, step: int, prompt_ids: Sequence[str], purpose: Any) -> None:
    outcomes = [pb.PromptOutcomes(prompt_id=p, outcomes=[0.0, 1.0]) for p in prompt_ids]
    request_id = f"report-{step}-{purpose}" if purpose == pb.PURPOSE_REFERENCE else f"report-{step}"
    report = pb.ReportOutcomesRequest(
        run_id=run_id, step=step, purpose=purpose, request_id=request_id, outcomes=outcomes
    )
    stubs.call("ReportOutcomes", report)


def sound_requests(run_id: str, step: int) -> dict[str, list[Message]]:
    """Requests that the service answers, by RPC: messages of a client stream, otherwise one."""
    column = replay_pb.Column(name="experts", dtype="int32", shape=[3], data=b"\0" * 12, lengths=[2, 1])
    rollouts = group(
        prompt_id="p2", policy_version=min(step, 3), statuses=[1, 2], columns=[column], loss_mask=b"\1\0\1"
    )
    prompt = pb.Prompt(
        prompt_id="new-1", text="new?", domain="d0", token_count=3, prior={"pass_rate": 0.5, "trials": 2}
    )
    outcomes = [
        pb.PromptOutcomes(
            prompt_id="p1", outcomes=[0, 1], statuses=["ROLLOUT_STATUS_COMPLETED", "ROLLOUT_STATUS_ABORTED"]
        ),
        pb.PromptOutcomes(prompt_id="p3", outcomes=[0.5]),
    ]
    signal = pb.Signal(name="entropy", prompt_ids=["p0", "p1"], values=[0.5, 2.0])
    part = pb.Shard(index=0, count=2)
    head: dict[str, Any] = {"run_id": run_id, "step": step}
    return {
        "CreateRun": [pb.CreateRunRequest(run_id=run_id, config=CONFIGS.get(run_id, {}), request_id="c-1")],
        "GetRun": [pb.GetRunRequest(run_id=run_id)],
        "ListRuns": [pb.ListRunsRequest(page_size=2)],
        "DeleteRun": [pb.DeleteRunRequest(run_id="fork-1", request_id="d-1")],
        "ForkRun": [pb.ForkRunRequest(run_id=run_id, new_run_id="fork-1", step=step)],
        "RewindRun": [pb.RewindRunRequest(**head)],
        "RegisterPrompts": [
            pb.RegisterPromptsRequest(run_id=run_id, prompts=[prompt], replace=True),
            pb.RegisterPromptsRequest(prompts=[pb.Prompt(prompt_id="new-2", text="another?")]),
        ],
        "RetirePrompts": [pb.RetirePromptsRequest(run_id=run_id, prompt_ids=["p6", "p7"])],
        "ImportPriors": [
            pb.ImportPriorsRequest(
                **head,
                priors=[pb.ImportedPrior(prompt_id="p1", pass_rate=0.5, trials=8), pb.ImportedPrior(prompt_id="p2")],
            )
        ],
        "SelectBatch": [
            pb.SelectBatchRequest(**head, round=step % 2, batch_size=4, exclude_prompt_ids=["p5"], shard=part)
        ],
        "ReportOutcomes": [pb.ReportOutcomesRequest(**head, outcomes=outcomes)],
        "PredictDifficulty": [pb.PredictDifficultyRequest(run_id=run_id, page_size=3)],
        "ExplainPrompt": [pb.ExplainPromptRequest(run_id=run_id, prompt_id="p1", limit=3)],
        "ReportTraining": [
            pb.ReportTrainingRequest(
                **head, effective_sample_size=0.5, max_importance_weight=2.0, updates=1, signals=[signal]
            )
        ],
        "GetSelectionQuality": [pb.GetSelectionQualityRequest(run_id=run_id)],
        "ExportRun": [pb.ExportRunRequest(run_id=run_id, kind=pb.EXPORT_KIND_OUTCOMES)],
        "PushRollouts": [
            replay_pb.PushRolloutsRequest(**head, skip_refused=step % 2 == 0, groups=[rollouts]),
            replay_pb.PushRolloutsRequest(groups=[group(prompt_id="p4", policy_version=min(step, 3))]),
        ],
        "SampleRollouts": [
            replay_pb.SampleRolloutsRequest(**head, count=2, exclude_prompt_ids=["p5"], min_age_steps=0, shard=part)
        ],
    }
