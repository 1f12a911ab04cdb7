"""What is practised on and what training begins from: three mixtures of tasks, each with two base policies.

    hard      most prompts are out of reach: half of the pool succeeds less than once in fifty
    easy      most prompts are solved: the demonstrator seldom errs, and half of the pool or more succeeds 7 times in 8
    domains   two of the tasks nearly solved, two middling, two mostly out of reach

Pools hold 1,024 prompts, 480 of the same mixture are held out. The two base policies of a mixture differ in
initialisation, demonstrations, and how long and how well they were taught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from selector.testbed.pretrain import PretrainConfig
from selector.testbed.tasks import TASKS, Mixture, PromptSets, mixed_prompt_sets

POOL_SEED = 0
_ALL = tuple(task.name for task in TASKS)


@dataclass(frozen=True)
class Setting:
    """A mixture of tasks and its base policies by name."""

    mixture: Mixture
    bases: Mapping[str, PretrainConfig]

    def prompts(self) -> PromptSets:
        """The pool and the held-out prompts."""
        return mixed_prompt_sets(self.mixture, POOL_SEED)


def _by_level(shares: Mapping[int, float], tasks: tuple[str, ...] = _ALL) -> Mixture:
    return {(task, level): share / len(tasks) for task in tasks for level, share in shares.items()}


def _together(*parts: Mixture) -> Mixture:
    """Equal shares of all parts."""
    return {cell: share / len(parts) for part in parts for cell, share in part.items()}


_NOISY = {"a": PretrainConfig(seed=0, updates=340), "b": PretrainConfig(seed=1, updates=260)}
_SURE = {"a": PretrainConfig(seed=0, updates=700, noise=0.25), "b": PretrainConfig(seed=1, updates=900, noise=0.15)}

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "hard": Setting(_by_level({2: 0.05, 3: 0.15, 4: 0.3, 5: 0.3, 6: 0.2}), _NOISY),
        "easy": Setting(_by_level({1: 0.2, 2: 0.35, 3: 0.3, 4: 0.15}), _SURE),
        "domains": Setting(
            _together(
                _by_level({1: 0.2, 2: 0.8}, ("reverse", "swap")),
                _by_level({3: 0.6, 4: 0.4}, ("rotate", "successor")),
                _by_level({3: 0.5, 4: 0.5}, ("sort", "unique")),
            ),
            _NOISY,
        ),
    }
)
