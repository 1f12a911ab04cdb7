"""The base policy: a fresh network trained on the noisy demonstrator, cached on disk by its settings.

The demonstrator errs more on harder prompts, so the base policy's success probability spans the whole range and is
about 0.25 on average.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from selector.testbed.policy import Policy, PolicyConfig, pad_prompts, pad_responses, response_mask
from selector.testbed.tasks import LEVELS, TASKS, Prompt, copy_probability, demonstrate, random_source

FORMAT = 1


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of the base policy.

    ``batch`` demonstrations per update; the rate falls linearly after warm-up; ``noise`` scales the demonstrator's
    mistakes.
    """

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    seed: int = 0
    updates: int = 340
    batch: int = 128
    learning_rate: float = 4e-3
    warm_up: int = 50
    noise: float = 1.0

    def digest(self) -> str:
        """Changes with every setting, and with the demonstrator's noise."""
        noise = {task.name: [copy_probability(task.name, level, self.noise) for level in LEVELS] for task in TASKS}
        content = json.dumps([FORMAT, asdict(self), noise], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def load_or_pretrain(
    config: PretrainConfig, cache_dir: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> Policy:
    """The base policy of ``config``, from ``cache_dir`` when it is there; ``progress`` gets (updates done, in all)."""
    path = cache_dir / f"base-{config.digest()}.pt"
    if path.exists():
        policy = Policy(config.policy)
        policy.load_state_dict(torch.load(path, weights_only=True))
        progress(config.updates, config.updates)
        return policy
    policy = pretrain(config, progress)
    cache_dir.mkdir(parents=True, exist_ok=True)
    # Another process may be writing the same file.
    partial = path.with_suffix(f".{os.getpid()}.partial")
    torch.save(policy.state_dict(), partial)
    partial.replace(path)
    return policy


def pretrain(config: PretrainConfig, progress: Callable[[int, int], None] = lambda done, total: None) -> Policy:
    """A fresh policy trained with cross-entropy on demonstrations of random prompts."""
    rng = np.random.default_rng(config.seed)
    policy = Policy(config.policy)
    policy.initialise(torch.Generator().manual_seed(config.seed))
    optimiser = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))

    def rate(update: int) -> float:
        return min((update + 1) / config.warm_up, max(0.02, 1 - update / config.updates))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    for update in range(config.updates):
        prompts = [
            Prompt(TASKS[task].name, random_source(int(level), rng))
            for task, level in zip(
                rng.integers(len(TASKS), size=config.batch), rng.choice(LEVELS, size=config.batch), strict=True
            )
        ]
        responses = pad_responses([demonstrate(prompt, rng, config.noise) for prompt in prompts])[:, None, :]
        loss = -policy.log_probs(pad_prompts(prompts), responses).sum() / response_mask(responses).sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        progress(update + 1, config.updates)
    return policy
