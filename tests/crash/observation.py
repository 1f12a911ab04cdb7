"""Everything that can be seen of a run through the service, in the terms of ``model.RunModel.expected``.

A replay buffer cannot be looked at without changing it, so it is looked at in a fork that is deleted afterwards.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.crash.model import RunModel, first_difference
from tests.crash.service import Mismatch, Refused, Service

SCRATCH = ".scratch"
_FUTURE = 2**40
_TRAINING = ("effective_sample_size", "max_importance_weight", "clip_fraction")


class Failed(Mismatch):
    """A call that must succeed was answered with an error."""

    def __init__(self, method: str, refused: Refused) -> None:
        super().__init__(f"{method} failed: {refused.reason}: {refused.message}")
        self.refused = refused


def ask(service: Service, method: str, request: Message) -> Any:
    """A call that must succeed."""
    answer = service.call(method, request)
    if isinstance(answer, Refused):
        raise Failed(method, answer)
    return answer


def listed(service: Service) -> set[str]:
    """Ids of all runs."""
    found: set[str] = set()
    token = ""
    while True:
        page = ask(service, "ListRuns", pb.ListRunsRequest(page_size=7, page_token=token))
        found |= {run.run_id for run in page.runs}
        token = page.next_page_token
        if not token:
            return found


def observe(service: Service, run_id: str, probe_step: int) -> dict[str, Any]:
    """A run as it is."""
    scratch = f"{run_id}{SCRATCH}"
    found = recorded(service, run_id)
    ask(service, "ForkRun", pb.ForkRunRequest(run_id=run_id, new_run_id=scratch, step=_FUTURE))
    everything = replay_pb.SampleRolloutsRequest(
        run_id=scratch, step=probe_step, count=10**6, order=replay_pb.SAMPLE_ORDER_NEWEST
    )
    forked = recorded(service, scratch)
    forked["counts"] |= {name: found["counts"][name] for name in ("forked_from", "forked_at")}
    difference = first_difference(found, forked)
    if difference:
        raise Mismatch(f"the fork of {run_id} is not what it was forked from: {difference}")
    found["replay"] = sampled_rows(ask(service, "SampleRollouts", everything))
    ask(service, "DeleteRun", pb.DeleteRunRequest(run_id=scratch))
    return found


def check_rewound_fork(service: Service, model: RunModel, fork_step: int, rewind_step: int, probe_step: int) -> None:
    """Fork a run, rewind the fork, and compare it with the model's: groups that left must come back as they were."""
    scratch = f"{model.run_id}{SCRATCH}"
    ask(service, "ForkRun", pb.ForkRunRequest(run_id=model.run_id, new_run_id=scratch, step=fork_step))
    expected = model.fork(scratch, fork_step)
    answer = ask(service, "RewindRun", pb.RewindRunRequest(run_id=scratch, step=rewind_step))
    counts = expected.rewind(rewind_step)
    found = (
        answer.dropped_selections,
        answer.dropped_reports,
        answer.dropped_replay_groups,
        answer.restored_replay_groups,
    )
    difference = first_difference(counts, found) or first_difference(
        expected.expected(probe_step), observe(service, scratch, probe_step)
    )
    if difference:
        raise Mismatch(f"{model.run_id} forked before {fork_step} and rewound to {rewind_step}: {difference}")
    ask(service, "DeleteRun", pb.DeleteRunRequest(run_id=scratch))


def sampled_rows(frames: list[Any]) -> list[tuple[bytes, int, int]]:
    """(payload, age, times sampled) of a sample's groups."""
    return [(s.group.SerializeToString(), s.age_steps, s.times_sampled) for frame in frames for s in frame.groups]


def recorded(service: Service, run_id: str) -> dict[str, Any]:
    """What can be seen of a run without changing anything, which is all but what its replay buffer holds."""
    run = ask(service, "GetRun", pb.GetRunRequest(run_id=run_id)).run
    pool = run.pool
    names = ("registered", "active", "retired", "ineligible", "selected", "never_selected", "leased")
    counts: dict[str, Any] = {name: getattr(pool, name) for name in (*names, "registered_after_start", "replaced")}
    counts |= {
        name: getattr(run, name)
        for name in ("last_step", "selections", "outcome_groups", "outcome_rollouts", "replay_groups", "replay_bytes")
    }
    counts |= {"forked_from": run.forked_from, "forked_at": run.forked_at_step}
    quality = ask(service, "GetSelectionQuality", pb.GetSelectionQualityRequest(run_id=run_id))
    return {
        "counts": counts,
        "pool": list(ask(service, "PredictDifficulty", pb.PredictDifficultyRequest(run_id=run_id)).prompt_ids),
        "selections": [
            (r.step, r.purpose, r.round, row.prompt_id, r.arm, r.probability, r.predicted_difficulty, r.standard_error)
            for row, r in _exported(service, run_id, pb.EXPORT_KIND_SELECTIONS)
        ],
        "outcomes": [
            (
                row.prompt_id,
                r.step,
                r.purpose,
                tuple(r.outcomes),
                r.arm,
                r.predicted_difficulty if r.HasField("predicted_difficulty") else None,
            )
            for row, r in _exported(service, run_id, pb.EXPORT_KIND_OUTCOMES)
        ],
        "training": {name: getattr(quality, name) for name in _TRAINING if quality.HasField(name)},
    }


def _exported(service: Service, run_id: str, kind: int) -> list[tuple[Any, Any]]:
    frames = ask(service, "ExportRun", pb.ExportRunRequest(run_id=run_id, kind=kind))  # type: ignore[arg-type]
    return [(row, row.record) for frame in frames for row in [*frame.outcomes, *frame.selections]]
