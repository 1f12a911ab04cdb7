"""Whether one long run takes ever more memory: ``python -m bench.performance.long_run [--steps N] [--json OUT]``.

One training of ``--steps`` steps through the real service, over gRPC: select ``--batch`` of ``--prompts`` prompts with
embeddings, report what was rolled out, sample what is replayed, push the fresh groups. The buffer fills up within a
few steps, so that groups leave it all the time, and groups that have left leave the disk once they are older than a
rewind reaches. Success rates rise as the run goes on. Nothing waits: the service is under full load throughout.

Every ``--every`` steps the operating system is asked what the service and its predictor hold. Figures of memory compare
medians of the first and last quarter after the warm-up, the first fifth of the steps: 1 = no growth. Memory is what a
process holds of its own and shares with the other; pages of mapped files, which the system takes back when it needs
them, are told apart. The log of selections and outcomes grows with the steps by design: all of it is kept.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.performance.figures import Figure, at_least, options, parsed, show
from bench.performance.process import Process, scratch, service
from clients import RolloutGroup, SelectorClient
from selector.cli.table import table

_GROUP_SIZE = 8
_WIDTH = 384
_TOKENS = 64
_PATIENCE_S = 600.0
# Of the steps: buffers fill, the first snapshots are made, all prompts have been tried once.
_WARM_UP = 0.2
_SAMPLING = {"temperature": 1.0, "log_prob_mode": "PROCESSED"}


@dataclass(frozen=True)
class Sample:
    """The service after so many steps; bytes, and CPU seconds of the steps since the sample before.

    Attributes:
        server, predictor: private and shared memory.
        server_mapped: resident pages of files that the server maps.
        database: ``state.db`` with its log.
        replay: the file of replay groups.
        others: all other files: embeddings, snapshots, the reserve.
        groups, group_bytes: that can be sampled, and their payload.
    """

    steps: int
    server: int
    server_mapped: int
    predictor: int
    server_cpu_s: float
    predictor_cpu_s: float
    database: int
    replay: int
    others: int
    groups: int
    group_bytes: int


class Training:
    """The trainer of one run."""

    def __init__(self, client: SelectorClient, prompts: int, components: int, batch: int) -> None:
        self._client = client
        self._batch = batch
        self._random = np.random.default_rng(0)
        self._place = {f"prompt-{i}": i for i in range(prompts)}
        self._logit = self._random.normal(-1.5, 1.5, prompts)
        estimator = {"embedding_components": components}
        # A full buffer, as steps go by.
        replay = {"max_age_steps": 0}
        client.create_run({"group_size": _GROUP_SIZE, "sampling": _SAMPLING, "estimator": estimator, "replay": replay})
        embeddings = self._random.normal(size=(prompts, _WIDTH)).astype(np.float32)
        texts = [f"What is {i} plus {i % 97}, taken {i % 13} times?" for i in range(prompts)]
        client.register_prompts(list(self._place), texts, embeddings)

    def step(self, step: int, progress: float) -> None:
        """One step; ``progress`` is how many logits better the policy is than at the start."""
        chosen = self._client.select_batch(step, self._batch)
        fresh = [self._rolled_out(prompt_id, step, progress) for prompt_id in chosen.prompt_ids]
        self._client.report_outcomes(step, {group.prompt_id: group.outcomes for group in fresh})
        self._client.sample_rollouts(step, chosen.replay_groups)
        self._client.push_rollouts(step, fresh)

    def _rolled_out(self, prompt_id: str, step: int, progress: float) -> RolloutGroup:
        rate = 1.0 / (1.0 + np.exp(-self._logit[self._place[prompt_id]] - progress))
        outcomes = (self._random.random(_GROUP_SIZE) < rate).astype(float)
        return RolloutGroup.from_arrays(
            prompt_id=prompt_id,
            policy_version=step,
            prompt_token_ids=np.arange(_TOKENS, dtype=np.int32),
            response_token_ids=list(self._random.integers(0, 1000, (_GROUP_SIZE, _TOKENS), dtype=np.int32)),
            behavior_log_probs=list(-self._random.random((_GROUP_SIZE, _TOKENS), dtype=np.float32)),
            rewards=outcomes,
            outcomes=outcomes,
            sampling=_SAMPLING,
        )


def trained(
    state: Path, prompts: int, components: int, batch: int, steps: int, every: int
) -> tuple[list[Sample], int, Sample]:
    """Samples of a run, one before the first step; the memory of a service without runs; and one after a restart."""
    found: list[Sample] = []
    with service(state) as served, SelectorClient(served.target, "long", timeout_s=_PATIENCE_S) as client:
        empty = _held(served)
        training = Training(client, prompts, components, batch)
        cpu = (served.cpu_s(), 0.0)
        for done in range(steps + 1):
            if done % every == 0:
                # What was asked for is there: the processes are at rest.
                client.predict_difficulty(["prompt-0"])
                found.append(_sample(done, served, client, state, cpu))
                # Hours of a run that is cut short are not lost.
                print(found[-1], file=sys.stderr, flush=True)
                cpu = (cpu[0] + found[-1].server_cpu_s, cpu[1] + found[-1].predictor_cpu_s)
            if done < steps:
                training.step(done, 3.0 * done / steps)
    with service(state) as served, SelectorClient(served.target, "long", timeout_s=_PATIENCE_S) as client:
        client.predict_difficulty(["prompt-0"])
        return found, empty, _sample(steps, served, client, state, (0.0, 0.0))


def _held(process: Process) -> int:
    """Private and shared bytes."""
    return process.memory() - process.mapped()


def _sample(steps: int, server: Process, client: SelectorClient, state: Path, before: tuple[float, float]) -> Sample:
    # The predictor is the only process that the service starts.
    (predictor,) = server.children()
    run = client.get_run()
    files = {path: path.stat().st_size for path in state.rglob("*") if path.is_file()}
    database = sum(size for path, size in files.items() if path.name.startswith("state.db"))
    replay = (state / "replay" / "data.mdb").stat().st_blocks * 512
    everything = sum(path.stat().st_blocks * 512 for path in files if path.exists())
    return Sample(
        steps=steps,
        server=_held(server),
        server_mapped=server.mapped(),
        predictor=_held(predictor),
        server_cpu_s=server.cpu_s() - before[0],
        predictor_cpu_s=predictor.cpu_s() - before[1],
        database=database,
        replay=replay,
        others=everything - database - replay,
        groups=run.replay_groups,
        group_bytes=run.replay_bytes,
    )


def figures(samples: list[Sample], empty: int, again: Sample, prompts: int) -> list[Figure]:
    """What grew, and what it takes."""
    steps, every = samples[-1].steps, samples[1].steps
    warm = [each for each in samples[1:] if each.steps > _WARM_UP * steps] or samples[-1:]
    quarter = max(len(warm) // 4, 1)

    def grown(name: str, unit: str, scale: float, **detail: Any) -> Figure:
        values = np.array([getattr(each, name) for each in warm]) * scale
        first, last = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
        slope = float(np.polyfit([each.steps for each in warm], values, 1)[0]) * 1000 if len(warm) > 1 else 0.0
        series = [[each.steps, getattr(each, name) * scale] for each in samples]
        return Figure(
            f"{name.removesuffix('_s').replace('_', ' ')} over {steps:,} steps",
            first,
            last,
            first / last,
            unit,
            "after the warm-up",
            detail={"slope per 1,000 steps": slope, "largest": float(values.max()), "series": series, **detail},
        )

    mib = 2.0**-20
    last = warm[-1]
    a_group = last.group_bytes / max(last.groups, 1)
    return [
        grown("server", "MiB", mib, empty=empty * mib, again=again.server * mib),
        grown("predictor", "MiB", mib, again=again.predictor * mib),
        grown("server_mapped", "MiB", mib),
        grown("server_cpu_s", "CPU ms / step", 1000.0 / every),
        grown("predictor_cpu_s", "CPU ms / step", 1000.0 / every),
        grown("replay", "MiB", mib),
        grown("others", "MiB", mib),
        Figure(
            f"memory a prompt, {prompts:,} prompts",
            None,
            (last.server - empty) / prompts,
            None,
            "bytes",
            detail={"predictor": last.predictor / prompts},
        ),
        Figure(
            "file of replay groups, of a group that can be sampled",
            None,
            last.replay / max(last.groups, 1),
            None,
            "bytes",
            detail={"payload": a_group, "groups": last.groups},
        ),
        Figure(
            "database of a step",
            None,
            (last.database - samples[0].database) / steps,
            None,
            "bytes",
            detail={"series": [[each.steps, each.database * mib] for each in samples]},
        ),
    ]


def _table(samples: list[Sample]) -> str:
    sizes = ("server", "server_mapped", "predictor", "database", "replay", "others")
    header = ("steps", *(name.replace("_", " ") for name in sizes), "CPU ms / step", "of the predictor")
    every = samples[1].steps
    return table(
        header,
        [
            (
                each.steps,
                *(round(getattr(each, name) / 2**20, 1) for name in sizes),
                round(each.server_cpu_s / every * 1000, 1),
                round(each.predictor_cpu_s / every * 1000, 1),
            )
            for each in samples
        ],
    )


def main() -> None:
    """Train, print and write."""
    parser = options("long_run", __doc__)
    parser.add_argument("--prompts", type=at_least(1), default=20_000)
    parser.add_argument(
        "--components",
        type=at_least(1),
        default=128,
        help="of the embeddings in FUSED; with fewer a step is far cheaper",
    )
    parser.add_argument("--batch", type=at_least(1), default=64)
    parser.add_argument("--steps", type=at_least(1), default=10_000)
    parser.add_argument("--every", type=at_least(1), default=500, help="steps between two looks")
    arguments = parsed(parser, prompts=1000, batch=16, steps=20, every=5)
    if arguments.prompts < arguments.batch:
        parser.error(f"--prompts: expected at least --batch, {arguments.batch}; got {arguments.prompts}")
    began = time.perf_counter()
    with scratch() as state:
        chosen = (arguments.prompts, arguments.components, arguments.batch, arguments.steps, arguments.every)
        samples, empty, again = trained(state, *chosen)
    found = figures(samples, empty, again, arguments.prompts)
    print(f"MiB, as the steps went by ({time.perf_counter() - began:,.0f} s)\n{_table(samples)}\n")
    show(found, arguments.json)


if __name__ == "__main__":
    main()
