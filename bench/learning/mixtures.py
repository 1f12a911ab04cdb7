"""What is practised on and what training begins from: three mixtures of tasks, each with two base policies.

    hard      most prompts are out of reach: half of the pool succeeds less than once in fifty
    easy      most prompts are solved: seven in ten succeed about 9 times in 10, the others 1 to 6 times in 10
    domains   two tasks mostly solved, two middling, two mostly out of reach

Pools hold 1,024 prompts, 480 of the same mixture are held out. The two base policies of a mixture differ in
initialisation, demonstrations, and how long or how well they were taught.
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
_MIDDLING = {"a": PretrainConfig(seed=0, updates=500, noise=0.5), "b": PretrainConfig(seed=1, updates=700, noise=0.5)}
_SURE = {"a": PretrainConfig(seed=0, updates=900, noise=0.15), "b": PretrainConfig(seed=1, updates=1100, noise=0.1)}

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "hard": Setting(_by_level({2: 0.05, 3: 0.15, 4: 0.3, 5: 0.3, 6: 0.2}), _NOISY),
        "easy": Setting(_by_level({2: 0.7, 5: 0.15, 6: 0.15}), _SURE),
        "domains": Setting(
            _together(
                _by_level({2: 1.0}, ("reverse", "sort")),
                {("swap", 4): 0.5, ("unique", 2): 0.5},
                _by_level({6: 1.0}, ("rotate", "successor")),
            ),
            _MIDDLING,
        ),
    }
)
