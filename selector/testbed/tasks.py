"""Six string tasks with exactly one right answer, and a deliberately noisy demonstrator.

A prompt is a task, a level from 1 to 6 and a source string of 2 x level letters. The answer is a function of the
source, so a policy that samples without truncation has an exact success probability: that of the one answer.

Everything here is a pure function of the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

ALPHABET = "abcdefgh"
LEVELS = (1, 2, 3, 4, 5, 6)
MAX_LENGTH = 12


def _swap_pairs(source: str) -> str:
    return "".join(source[i + 1] + source[i] for i in range(0, len(source), 2))


def _successor(source: str) -> str:
    return "".join(ALPHABET[(ALPHABET.index(letter) + 1) % len(ALPHABET)] for letter in source)


@dataclass(frozen=True)
class Task:
    """A string function. ``noise_offset`` shifts how often the demonstrator gets a symbol of it wrong."""

    name: str
    solve: Callable[[str], str]
    noise_offset: float


TASKS: tuple[Task, ...] = (
    Task("reverse", lambda source: source[::-1], 0.065),
    Task("swap", _swap_pairs, 0.055),
    Task("rotate", lambda source: source[1:] + source[0], 0.065),
    Task("successor", _successor, 0.075),
    Task("sort", lambda source: "".join(sorted(source)), 0.035),
    Task("unique", lambda source: "".join(dict.fromkeys(source)), 0.025),
)
TASK_BY_NAME = {task.name: task for task in TASKS}


@dataclass(frozen=True)
class Prompt:
    """One question. ``text`` is what the service embeds, ``task`` its domain, ``answer`` the only right response."""

    task: str
    source: str

    @property
    def prompt_id(self) -> str:
        return f"{self.task}/{self.source}"

    @property
    def text(self) -> str:
        return f"{self.task}: {self.source}"

    @property
    def level(self) -> int:
        return len(self.source) // 2

    @property
    def answer(self) -> str:
        return TASK_BY_NAME[self.task].solve(self.source)


# Share of the prompts by task and level; the shares add up to 1.
Mixture = Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class PromptSets:
    """Training pool and held-out prompts: all different, both of the same mixture of tasks and levels."""

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]


def random_source(level: int, rng: np.random.Generator) -> str:
    """A string of ``2 * level`` letters, each drawn uniformly."""
    return "".join(ALPHABET[i] for i in rng.integers(len(ALPHABET), size=2 * level))


def make_prompt_sets(seed: int, training: int = 1024, held_out: int = 480) -> PromptSets:
    """Draws ``training + held_out`` different prompts, even over tasks and levels; the same arguments always give the
    same sets.

    Raises ValueError when there are not that many different shortest sources.
    """
    rng = np.random.default_rng(seed)
    cells = [(task.name, level) for task in TASKS for level in LEVELS]
    total = training + held_out
    # The shortest sources have two letters; cells are filled in turn.
    capacity = len(cells) * len(ALPHABET) ** 2
    if total > capacity:
        raise ValueError(f"training + held_out: expected at most {capacity}, got {total}")
    seen: set[Prompt] = set()
    prompts: list[Prompt] = []
    while len(prompts) < total:
        task, level = cells[len(prompts) % len(cells)]
        prompt = Prompt(task, random_source(level, rng))
        if prompt not in seen:
            seen.add(prompt)
            prompts.append(prompt)
    return PromptSets(training=tuple(prompts[held_out:]), held_out=tuple(prompts[:held_out]))


def mixed_prompt_sets(mixture: Mixture, seed: int, training: int = 1024, held_out: int = 480) -> PromptSets:
    """The same with other shares: as many prompts of a task and level as its share says, in a random order.

    Raises ValueError when there are not that many different sources of a task and level.
    """
    rng = np.random.default_rng(seed)
    total = training + held_out
    prompts: list[Prompt] = []
    for (task, level), count in _counts(mixture, total).items():
        if count > len(ALPHABET) ** (2 * level):
            raise ValueError(f"mixture: there are fewer than {count} sources of level {level} for {task}")
        cell: dict[Prompt, None] = {}
        while len(cell) < count:
            cell[Prompt(task, random_source(level, rng))] = None
        prompts += cell
    shuffled = [prompts[i] for i in rng.permutation(total)]
    return PromptSets(training=tuple(shuffled[held_out:]), held_out=tuple(shuffled[:held_out]))


def _counts(mixture: Mixture, total: int) -> dict[tuple[str, int], int]:
    """Shares as whole numbers that add up to ``total``, the largest remainders rounded up."""
    exact = {cell: share * total for cell, share in mixture.items()}
    counts = {cell: int(value) for cell, value in exact.items()}
    by_remainder = sorted(exact, key=lambda cell: counts[cell] - exact[cell])
    for cell in by_remainder[: total - sum(counts.values())]:
        counts[cell] += 1
    return counts


def copy_probability(task: str, level: int, noise: float = 1.0) -> float:
    """How often the demonstrator writes the source's symbol instead of the answer's, per position.

    ``noise`` scales it: at 0 the demonstrator makes no mistake.
    """
    return min(1.0, max(0.0, noise * (0.08 * (level - 1) - 0.04 + TASK_BY_NAME[task].noise_offset)))


def demonstrate(prompt: Prompt, rng: np.random.Generator, noise: float = 1.0) -> str:
    """A demonstration of the prompt: its answer, with symbols copied from the source at ``copy_probability``."""
    answer = prompt.answer
    copied = rng.random(len(answer)) < copy_probability(prompt.task, prompt.level, noise)
    return "".join(prompt.source[i] if copied[i] else symbol for i, symbol in enumerate(answer))
