"""Well-behaved trainers, many in one process: each takes steps of its run until told to stop, and keeps a journal.

Every fourth run is shared by two trainers, which take each their part of every batch and sample. A trainer that has a
run of its own goes back a few steps now and then, as after a crash, and forks and deletes runs on the side. Everything
it sends follows from run, step and attempt, so that what arrived can be compared with what was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clients import AsyncSelectorClient
from clients.retry import RetryPolicy
from tests.load.start import ready
from tests.load.tally import Tally
from tests.service.trainer import group_contents, group_of, outcomes_of

PROMPTS = 96
BATCH = 8
_WIDTH = 16
_CAPACITY = 32
_TIMEOUT_S = 60.0


@dataclass
class Journal:
    """What one trainer did and was acknowledged.

    Attributes:
        reported: step -> [attempt, prompt ids].
        selected: steps selected.
        wrong: what did not come back as it should have.
    """

    run_id: str
    reported: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    selected: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where trainer ``index`` of ``count`` works: its run, and its part of it."""

    index: int

    @property
    def run_id(self) -> str:
        return f"soak-{self.index - 1 if self.index % 8 == 1 else self.index:03d}"

    @property
    def shared(self) -> bool:
        return self.index % 8 in (0, 1)

    @property
    def shard(self) -> tuple[int, int] | None:
        return (self.index % 8, 2) if self.shared else None


def config_of(run_id: str) -> dict[str, Any]:
    """Configurations of several kinds."""
    number = int(run_id.rpartition("-")[2])
    return {
        "group_size": 4,
        "seed": number,
        "lease_steps": 4,
        "cool_down_steps": 2,
        "estimator": {"name": ("FUSED", "TRACKER", "FUSED", "ATTENTION")[number % 4]},
        "reference": {"mode": "NONE" if number % 4 == 1 else "IN_BATCH"},
        "replay": {"capacity_groups": _CAPACITY, "fresh_fraction": 0.5},
    }


def sent_outcomes(run_id: str, step: int, attempt: int, prompt_ids: Sequence[str]) -> dict[str, list[float]]:
    """What a trainer reports."""
    return outcomes_of(prompt_ids, step, f"{run_id}/{attempt}")


class Trainer:
    """One trainer."""

    def __init__(self, address: str, index: int, tally: Tally) -> None:
        self._place = Place(index)
        self.journal = Journal(self._place.run_id)
        self._tally = tally
        # One attempt only: what fails is to be seen.
        self._client = self._made(address, self._place.run_id)
        self._address = address
        self._attempt = 0
        self._random = np.random.default_rng(index)

    def _made(self, address: str, run_id: str) -> AsyncSelectorClient:
        return AsyncSelectorClient(address, run_id, timeout_s=_TIMEOUT_S, retry=RetryPolicy(max_attempts=1))

    async def prepare(self) -> None:
        """The run and its prompts."""
        run_id = self._place.run_id
        await self._tally.count("CreateRun", self._client.create_run(config_of(run_id)))
        await self._tally.count("RegisterPrompts", self._registered())

    async def train(self, until: float) -> None:
        """Take steps until the clock says so."""
        step = 0
        while time.time() < until:
            await self._step(step)
            step += 1
            if step % 25 == 0 and not self._place.shared:
                step = await self._go_back(step)
        if not self._place.shared:
            await self._check_replay(step)
        await self._client.close()

    async def _registered(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(PROMPTS, _WIDTH)).astype(np.float32)
        await self._client.register_prompts([f"p{i:03d}" for i in range(PROMPTS)], embeddings=vectors)

    async def _step(self, step: int) -> None:
        count, client, shard = self._tally.count, self._client, self._place.shard
        chosen = await count("SelectBatch", client.select_batch(step, BATCH, shard=shard))
        self.journal.selected.append(step)
        outcomes = sent_outcomes(self._place.run_id, step, self._attempt, chosen.prompt_ids)
        if outcomes:
            await count("ReportOutcomes", client.report_outcomes(step, outcomes))
            self.journal.reported[step] = (self._attempt, list(chosen.prompt_ids))
            await count("PushRollouts", client.push_rollouts(step, self._groups(step, outcomes)))
        await count("SampleRollouts", client.sample_rollouts(step, 4, shard=shard))
        if step % 3 == 0 and not self._place.shared:
            await count("ReportTraining", client.report_training(step, effective_sample_size=0.5, clip_fraction=0.1))
        await self._look(step)

    async def _look(self, step: int) -> None:
        count, client = self._tally.count, self._client
        kind = self._random.integers(0, 24)
        if kind == 0:
            await count("GetRun", client.get_run())
        elif kind == 1:
            await count("PredictDifficulty", client.predict_difficulty())
        elif kind == 2:
            await count("ExplainPrompt", client.explain(f"p{self._random.integers(PROMPTS):03d}"))
        elif kind == 3:
            await count("GetSelectionQuality", client.quality())
        elif kind == 4:
            await count("ListRuns", client.list_runs())
        elif kind == 5:
            await count("ExportRun", _drained(client.export("outcomes")))
        elif kind == 6:
            await count("RegisterPrompts", self._registered())
        elif kind == 7 and not self._place.shared:
            await self._fork(step)

    async def _fork(self, step: int) -> None:
        name = f"fork-of-{self._place.run_id}"
        await self._tally.count("ForkRun", self._client.fork(name, step))
        fork = self._made(self._address, name)
        await self._tally.count("DeleteRun", fork.delete_run())
        await fork.close()

    async def _go_back(self, step: int) -> int:
        back = step - int(self._random.integers(1, 4))
        await self._tally.count("RewindRun", self._client.rewind(back))
        self._attempt += 1
        self.journal.reported = {at: sent for at, sent in self.journal.reported.items() if at < back}
        self.journal.selected = [at for at in self.journal.selected if at < back]
        return back

    def _groups(self, step: int, outcomes: dict[str, list[float]]) -> list[Any]:
        salt = f"{self._place.run_id}/{self._attempt}"
        return [group_of(prompt_id, step, found, salt) for prompt_id, found in outcomes.items()]

    async def _check_replay(self, step: int) -> None:
        """What comes back are groups of this run, byte for byte as they were pushed."""
        sample = await self._tally.count("SampleRollouts", self._client.sample_rollouts(step, _CAPACITY))
        for group in sample:
            version = group.policy_version
            attempt, _ = self.journal.reported.get(version, (None, None))
            outcomes = sent_outcomes(self._place.run_id, version, attempt or 0, [group.prompt_id])[group.prompt_id]
            sent = group_of(group.prompt_id, version, outcomes, f"{self._place.run_id}/{attempt}")
            message = sent.to_proto()
            message.group_id = group.group_id
            if attempt is None or message.SerializeToString(deterministic=True) != group_contents(group)[0]:
                self.journal.wrong.append(f"group {group.group_id} of {group.prompt_id}, step {version}")


async def _drained(rows: Any) -> int:
    return len([row async for row in rows])


async def _trained(trainer: Trainer, failure: BaseException | None, until: float) -> None:
    if failure is not None:
        raise failure
    await trainer.train(until)


async def _run(address: str, first: int, count: int) -> dict[str, Any]:
    tally = Tally()
    trainers = [Trainer(address, index, tally) for index in range(first, first + count)]
    # A trainer that fails ends, the others go on; what it did until then still has to be there.
    prepared = await asyncio.gather(*(trainer.prepare() for trainer in trainers), return_exceptions=True)
    until = await ready()
    ends = await asyncio.gather(
        *(_trained(trainer, failure, until) for trainer, failure in zip(trainers, prepared, strict=True)),
        return_exceptions=True,
    )
    journals = [
        {**trainer.journal.__dict__, "failed": "" if end is None else f"{type(end).__name__}: {end}"}
        for trainer, end in zip(trainers, ends, strict=True)
    ]
    return {"tally": tally.saved(), "journals": journals}


def main() -> None:
    """Print, as JSON, what the trainers of this process did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    chosen = parser.parse_args()
    logging.getLogger("selector.client").setLevel(logging.ERROR)
    result = asyncio.run(_run(chosen.address, chosen.first, chosen.count))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
