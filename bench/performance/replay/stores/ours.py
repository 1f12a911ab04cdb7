"""The service: a process, on a real port, durable, with the Python client.

Groups that left the buffer are kept for a rewind of a few steps only, so that a benchmark of a few rounds sees what a
training sees after its first hundred steps: a file whose space is used again.

The client shares memory with the service, as it does on one host by itself; with the option ``wire`` everything goes
over the connection, as between hosts. The option ``ADDRESS PLACE CALLERS`` is for one of several callers of a service
that another worker has started; they share out the groups of a step.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import REWIND_STEPS, Settings
from clients import RolloutGroup, SelectorClient
from selector import __version__

_SERVING = re.compile(r"serving grpc=(\S+)")
_RUN = "replay"
_TIMEOUT_S = 120.0
# Option.
WIRE = "wire"


class Ours:
    """See the module docstring."""

    def __init__(self, settings: Settings) -> None:
        self._process = _service(settings.folder) if settings.option in ("", WIRE) else None
        if self._process is None:
            address, place, callers = settings.option.split()
            self._place, self._callers = int(place), int(callers)
        else:
            self._place, self._callers = 0, 1
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            found = _SERVING.search(line)
            if found is None:
                raise RuntimeError(f"the service did not start: {line!r}")
            address = found[1]
        self.name = f"curriculum-selector {__version__} at {address}"
        self._client = SelectorClient(address, _RUN, timeout_s=_TIMEOUT_S, same_host=settings.option != WIRE)
        # A step's prompts come again once its groups have left, as in a trainer's second epoch.
        count = settings.stored + self._callers * settings.groups
        self._prompts = [f"prompt-{number}" for number in range(count)]
        if self._process is not None:
            self._client.create_run({"replay": {"capacity_groups": settings.stored, "max_age_steps": 0}})
            embeddings = np.random.default_rng(1).standard_normal((len(self._prompts), 8)).astype(np.float32)
            self._client.register_prompts(self._prompts, embeddings=embeddings)

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[int, list[RolloutGroup]]:
        first = (step * self._callers + self._place) * len(groups)
        prepared = []
        for number, group in enumerate(groups):
            prompt_id = self._prompts[(first + number) % len(self._prompts)]
            prepared.append(
                RolloutGroup(
                    prompt_id=prompt_id,
                    group_id="",
                    policy_version=step,
                    lengths=group.lengths,
                    rewards=group.rewards,
                    outcomes=group.rewards,
                    prompt_token_ids=group.prompt,
                    response_token_ids=group.tokens,
                    behavior_log_probs=group.log_probs,
                    loss_mask=group.mask,
                )
            )
        return step, prepared

    def push(self, prepared: tuple[int, list[RolloutGroup]]) -> None:
        step, groups = prepared
        pushed = self._client.push_rollouts(step, groups)
        if pushed.stored != len(groups):
            raise RuntimeError(f"expected {len(groups)} groups to be stored; got {pushed}")

    def sample(self, step: int, count: int) -> Any:
        return self._client.sample_rollouts(step, count)

    def arrays(self, sampled: Any) -> list[Arrays]:
        return [
            Arrays(
                group.lengths,
                group.rewards,
                group.prompt_token_ids,
                group.response_token_ids,
                group.behavior_log_probs,
                group.loss_mask,
            )
            for group in sampled
        ]

    def close(self) -> None:
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


def open_store(settings: Settings) -> Ours:
    """The service with a run, or a client of one that is there."""
    return Ours(settings)


def _service(folder: Path) -> subprocess.Popen[str]:
    listen = ["--listen=127.0.0.1:0", "--metrics-listen=", "--encoder=none", f"--state-dir={folder / 'state'}"]
    rewind = f"--rewind-window-steps={REWIND_STEPS}"
    command = [sys.executable, "-m", "selector", "serve", *listen, rewind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
