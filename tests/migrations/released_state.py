"""State directories as released schemas left them, and what the service answered from them.

    tests/migrations/released/<schema>/state.tar.xz    a state directory whose server was killed, WAL and all
    tests/migrations/released/<schema>/recorded.json   what is recorded in it: equal under every later version
    tests/migrations/released/<schema>/estimated.json  what estimators made of it

    python -m tests.migrations.released_state make SCHEMA        made once, by the code that first had the schema
    python -m tests.migrations.released_state estimate SCHEMA    after a deliberate change of the estimators

The fixture of a released schema is never made again: a later version would write its own schema, and what has to be
shown is that directories of users, written by the code of that time, open and answer alike. ``make`` refuses to replace
one, and to name a schema that the code does not write.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients import Selection, SelectorClient
from clients.rollout_group import RolloutGroup
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import group_of, noise, outcomes_of, prompts

RELEASED = Path(__file__).parent / "released"

Client = Callable[[str], SelectorClient]

_CONFIGS: dict[str, dict[str, Any]] = {
    "fused": {"seed": 7, "cool_down_steps": 2, "replay": {"capacity_groups": 10}, "max_prompt_tokens": 50},
    "attention": {"preset": "PAPER", "reference": {"size": 5, "every_steps": 2}, "replay": {"max_age_steps": 3}},
    "tracker": {
        "estimator": {"name": "TRACKER"},
        "reference": {"mode": "NONE"},
        "score": "UNIFORM",
        "on_nan": "DROP_ROLLOUT",
        "replay": {"informative_only": False, "newest_per_prompt": False, "max_uses": 2, "capacity_bytes": 2000},
        "sampling": {"temperature": 0.75, "log_prob_mode": "PROCESSED"},
    },
    "texts": {"seed": 3, "score": "INFORMATIVE", "outcome_range": [-1, 1], "clip_outcomes": True},
    "empty": {},
}
_STEPS, _POOL, _BATCH = 6, 16, 4
# Requests that are sent again to the upgraded service.
_REPORT_ID, _PUSH_ID, _DELETE_ID = "report-of-step-5", "push-of-step-5", "delete-once"


def fill(client: Client) -> None:
    """Runs with every kind of record, through the service."""
    for run_id in ("fused", "attention", "tracker", "texts"):
        _begin(client(run_id), run_id)
        for step in range(_STEPS):
            _step(client(run_id), run_id, step)
    client("empty").create_run({})
    fused = client("fused")
    fused.rewind(4)
    for step in (4, 5):
        _step(fused, "fused", step, salt="after the rewind")
    fused.register_prompts(["p001"], texts=["What is 3 squared?"], embeddings=[[1, 0, 2, 0]], replace=True)
    fused.retire_prompts(["p002", "p003"])
    fused.fork("branch", 3)
    _step(client("branch"), "branch", 3)
    # Open leases, late outcomes, and a second selection within the step.
    open_ids = fused.select_batch(6, _BATCH, fresh_only=True).prompt_ids
    fused.select_batch(6, 2, round=1, fresh_only=True)
    fused.report_outcomes(5, outcomes_of(open_ids[:1], 5))
    client("tracker").report_outcomes(
        6, {"p000": [1.0, float("nan"), 0.0], "p001": [0.0, 0.0]}, statuses={"p001": ["ABORTED", "ABORTED"]}
    )
    doomed = client("deleted")
    doomed.create_run({})
    doomed.register_prompts(["a", "b"], embeddings=[[1, 2, 3, 4], [4, 3, 2, 1]])
    doomed.report_outcomes(0, {"a": [1.0, 0.0]})
    doomed.push_rollouts(0, [group_of("a", 0)])
    doomed.delete_run(request_id=_DELETE_ID)


def recorded(client: Client) -> dict[str, Any]:
    """What the service answers from its records alone; asking changes nothing."""
    answers: dict[str, Any] = {"runs": [run.run_id for run in client("fused").list_runs()]}
    for run_id in answers["runs"]:
        answers[run_id] = _recorded_of(client(run_id), run_id)
    again = client("fused").report_outcomes(5, *_last_report(client("fused")), request_id=_REPORT_ID)
    pushed = client("fused").push_rollouts(5, _last_groups(client("fused")), request_id=_PUSH_ID)
    client("deleted").delete_run(request_id=_DELETE_ID)
    answers["repeated"] = {"report": vars(again), "push": {**vars(pushed), "refused": len(pushed.refused)}}
    return answers


def estimated(client: Client) -> dict[str, Any]:
    """Predictions, and the next selections of forks, which are made for it."""
    answers: dict[str, Any] = {}
    for run_id in ("attention", "branch", "fused", "texts", "tracker"):
        predictions = client(run_id).predict_difficulty()
        explained = client(run_id).explain("p004")
        client(run_id).fork(f"{run_id}.next", 5)
        fork = client(f"{run_id}.next")
        following = fork.select_batch(5, _BATCH)
        answers[run_id] = {
            "prompt_ids": list(predictions.prompt_ids),
            "difficulties": predictions.predicted_difficulties.tolist(),
            "standard_errors": predictions.standard_errors.tolist(),
            "bases": list(predictions.bases),
            "references": [[r.prompt_id, r.weight, r.difficulty] for r in explained.references],
            "next": _selection(following),
            "sample": _sample(fork.sample_rollouts(5, 3)),
        }
    return answers


def unpack(schema: str, into: Path) -> Path:
    """The released state directory, unpacked as ``into``."""
    with tarfile.open(RELEASED / schema / "state.tar.xz") as archive:
        archive.extractall(into, filter="data")
    return into


def _begin(client: SelectorClient, run_id: str) -> None:
    client.create_run(_CONFIGS[run_id])
    random = noise("pool", run_id)
    client.register_prompts(
        prompts(_POOL),
        texts=[f"What is {i} times {i * i}?" for i in range(_POOL)],
        embeddings=None if run_id == "texts" else random.normal(size=(_POOL, 4)),
        domains=[("algebra", "geometry", None)[i % 3] for i in range(_POOL)],
        priors=[(float(random.random()), 8) if i % 2 else None for i in range(_POOL)],
        token_counts=[60 if i == 9 else 10 + i for i in range(_POOL)],
    )


def _outcomes(run_id: str, ids: tuple[str, ...], step: int, salt: str) -> dict[str, list[float]]:
    # Beyond the range of that run, where they are clipped.
    scale = 1.5 if run_id == "texts" else 1.0
    return {p: [scale * value for value in values] for p, values in outcomes_of(ids, step, salt).items()}


def _step(client: SelectorClient, run_id: str, step: int, salt: str = "") -> None:
    if client.get_run().reference_due:
        drawn = client.select_batch(step, purpose="reference")
        client.report_outcomes(step, outcomes_of(drawn.prompt_ids, step), purpose="reference")
    chosen = client.select_batch(step, _BATCH)
    outcomes = _outcomes(run_id, chosen.prompt_ids, step, salt)
    last = run_id == "fused" and step == _STEPS - 1 and salt
    client.report_outcomes(step, outcomes, request_id=_REPORT_ID if last else None)
    groups = [_group(run_id, p, step, outcomes[p]) for p in chosen.prompt_ids]
    client.push_rollouts(step, groups, request_id=_PUSH_ID if last else None)
    client.sample_rollouts(step, 2)
    signals = {"entropy": {p: float(noise("signal", p, step).normal()) for p in chosen.prompt_ids}}
    client.report_training(
        step,
        effective_sample_size=0.5,
        max_importance_weight=2.0,
        clip_fraction=0.25,
        updates=step + 1,
        signals=signals,
    )


def _group(run_id: str, prompt_id: str, step: int, outcomes: list[float]) -> RolloutGroup:
    sampling = {"temperature": 0.75, "log_prob_mode": "PROCESSED"} if run_id == "tracker" else None
    columns = {"image": b"by reference"} if step % 2 else None
    bounded = [min(1.0, value) for value in outcomes]
    return group_of(prompt_id, step, bounded, sampling=sampling, columns=columns)


def _last_report(client: SelectorClient) -> tuple[dict[str, list[float]]]:
    return (_outcomes("fused", client.select_batch(5, _BATCH).prompt_ids, 5, "after the rewind"),)


def _last_groups(client: SelectorClient) -> list[RolloutGroup]:
    (outcomes,) = _last_report(client)
    return [_group("fused", prompt_id, 5, values) for prompt_id, values in outcomes.items()]


def _recorded_of(client: SelectorClient, run_id: str) -> dict[str, Any]:
    run = client.get_run()
    answers: dict[str, Any] = {
        "pool": vars(run.pool),
        "counts": [run.state, run.last_step, run.selections, run.outcome_groups, run.outcome_rollouts],
        "replay": [run.replay_groups, run.replay_bytes],
        "origin": [run.forked_from, run.forked_at_step, run.created_unix_seconds, run.encoder, run.embedding_width],
        "reference_due": run.reference_due,
        "window_groups": client.quality().window_groups,
        "outcomes": [
            [row.prompt_id, row.record.step, row.record.outcomes.tolist(), row.record.predicted_difficulty]
            for row in client.export("outcomes")
        ],
        "selections": [[row.prompt_id, *vars(row.record).values()] for row in client.export("selections")],
    }
    if run_id == "empty":
        return answers
    explained = client.explain("p004")
    steps = range(4 if run_id == "branch" else _STEPS)
    answers["explained"] = [explained.status, explained.domain, explained.text, len(explained.outcomes)]
    answers["repeated"] = [_selection(client.select_batch(step, _BATCH)) for step in steps]
    answers["samples"] = [_sample(client.sample_rollouts(step, 2)) for step in steps]
    return answers


def _selection(selection: Selection) -> dict[str, Any]:
    return {
        "prompt_ids": list(selection.prompt_ids),
        "arms": list(selection.arms),
        "difficulties": selection.predicted_difficulties.tolist(),
        "standard_errors": selection.standard_errors.tolist(),
        "probabilities": selection.probabilities.tolist(),
        "rollouts": selection.rollouts.tolist(),
        "rest": [selection.replay_groups, selection.shortfall, selection.shortfall_reason, selection.estimate_step],
    }


def _sample(sample: list[RolloutGroup]) -> list[Any]:
    return [
        [g.prompt_id, g.to_proto().SerializeToString(deterministic=True).hex(), g.age_steps, g.times_sampled]
        for g in sample
    ]


def _make(schema: str) -> None:
    target = RELEASED / schema
    if target.exists():
        raise SystemExit(f"{target} exists: fixtures of released schemas are never made again")
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / "state"
        service = ServiceProcess(state, f"--replay-map-bytes={2**24}", "--workers=2")
        clients = {run_id: service.client(run_id) for run_id in (*_CONFIGS, "branch", "deleted")}
        fill(clients.__getitem__)
        answers = recorded(clients.__getitem__)
        for client in clients.values():
            client.close()
        service.kill()
        found = sqlite3.connect(f"file:{state / 'state.db'}?mode=ro", uri=True)
        (written,) = found.execute("SELECT version_num FROM alembic_version").fetchone()
        found.close()
        if written != schema:
            raise SystemExit(f"this code writes schema {written}, not {schema}")
        target.mkdir(parents=True)
        with tarfile.open(target / "state.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(state.rglob("*")):
                if path.is_file() and path.name not in ("lock", "lock.mdb", "state.db-shm"):
                    archive.add(path, path.relative_to(state).as_posix(), filter=_anonymous)
    (target / "recorded.json").write_text(json.dumps(answers, default=list) + "\n")


def _estimate(schema: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        service = InProcessService(unpack(schema, Path(scratch) / "state"))
        answers = estimated(service.client)
        service.close()
    (RELEASED / schema / "estimated.json").write_text(json.dumps(answers) + "\n")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("make", "estimate"))
    parser.add_argument("schema")
    arguments = parser.parse_args()
    if arguments.action == "make":
        _make(arguments.schema)
    _estimate(arguments.schema)


if __name__ == "__main__":
    main()
