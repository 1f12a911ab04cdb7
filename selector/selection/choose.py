"""Choosing a batch: a pure function of (seed, step, state).

Who goes in, in this order, each prompt at most once:

    arm       from                                   by
    UNIFORM   all eligible prompts, cooling or not   equal chance; reference evidence and control arm at once
    REVIEW    those not selected for too long        longest first, at most review_fraction of the batch
    TARGETED  the rest that is not cooling down      largest score/temperature + Gumbel(prompt, step)
    REVIEW    those cooling down                     longest ago first, only where the batch would stay short

Adding Gumbel noise to log-weights and taking the largest is sampling without replacement with probability
proportional to the weights (Kool, van Hoof & Welling, arXiv 1903.06059). The reported probability of a TARGETED prompt
is its inclusion probability given the largest key left out, kappa: 1 - exp(-exp(score/T - kappa)) (same paper, s. 4.2);
inverse weighting with it is unbiased.

With DEDICATED references the paper draws mu batches at once, without replacement, shuffles and cuts them. The same is
done here one step at a time: the noise belongs to the window between two reference passes, the top (batches left) x F
of the prompts not yet taken in the window are found, and F of them are drawn at random. The reported probability is
then that of being in this batch of the window: the inclusion probability times the batch's share of what the window has
taken so far and may still take. It counts the pool that the window began with, in later batches too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.noise import gumbels, noise_key, uniforms
from selector.selection.scores import log_weights

TARGETED, UNIFORM, REVIEW = 1, 2, 3


@dataclass(frozen=True)
class Window:
    """The stretch between two dedicated reference passes; where one is overdue, the next begins without it.

    Attributes:
        start: its first step.
        batches_left: batches still to be drawn from it, this one included.
    """

    start: int
    batches_left: int


@dataclass(frozen=True)
class Candidates:
    """What can be chosen from: three (N,) columns of the pool.

    Attributes:
        eligible: active, not excluded, not leased, not yet chosen in this step.
        cooling: chosen too recently, but allowed where nothing else is left.
        last_selected: step of the latest training selection, -1 = never.
    """

    eligible: np.ndarray
    cooling: np.ndarray
    last_selected: np.ndarray


@dataclass(frozen=True)
class Choice:
    """Chosen prompts, as parallel columns in a random order.

    Attributes:
        prompt: (F,) int64 index into the pool.
        arm: (F,) uint8.
        probability: (F,) float64, see the module docstring.
    """

    prompt: np.ndarray
    arm: np.ndarray
    probability: np.ndarray


def top(keys: np.ndarray, count: int) -> np.ndarray:
    """Positions of the largest ``count`` keys, largest first, ties by position.

    Args:
        keys: (n,) float64.

    Returns:
        (min(count, n),) int64.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    if count >= len(keys):
        return np.argsort(-keys, kind="stable")
    threshold = np.partition(keys, len(keys) - count)[len(keys) - count]
    above = np.flatnonzero(keys > threshold)
    level = np.flatnonzero(keys == threshold)[: count - len(above)]
    chosen = np.concatenate([above, level])
    return chosen[np.lexsort((chosen, -keys[chosen]))]


def choose_train(
    config: RunConfig,
    estimate: Estimate,
    candidates: Candidates,
    count: int,
    step: int,
    round_: int,
    window: Window | None,
) -> Choice:
    """Choose prompts to roll out for training.

    Args:
        estimate: of the whole pool.
        count: prompts wanted (F); fewer come back only when fewer are eligible.
        window: set with DEDICATED references.
    """
    size = len(candidates.eligible)
    free = candidates.eligible.copy()
    parts: list[Choice] = []

    def take(prompt: np.ndarray, arm: int, probability: np.ndarray) -> None:
        free[prompt] = False
        parts.append(Choice(prompt, np.full(len(prompt), arm, dtype=np.uint8), probability))

    def left() -> int:
        return count - sum(len(part.prompt) for part in parts)

    rounding = uniforms(noise_key(config.seed, "rounding", step, round_), 0, 2)
    if config.score == "UNIFORM" and config.cool_down_steps == 0:
        wanted = count
    else:
        wanted = int(config.reference.uniform_share * count + rounding[0])
    allowed = free & ~candidates.cooling if config.strict_cool_down else free
    drawn, chance = _draw_uniform(allowed, wanted, noise_key(config.seed, "uniform", step, round_))
    take(drawn, UNIFORM, chance)

    if config.max_unselected_steps > 0:
        age = step - candidates.last_selected
        due = np.flatnonzero(free & ~candidates.cooling & (age > config.max_unselected_steps))
        limit = min(left(), int(config.review_fraction * count + rounding[1]))
        oldest = due[_oldest_first(candidates.last_selected[due], due, step, round_, config.seed)][:limit]
        take(oldest, REVIEW, np.ones(len(oldest)))

    among = np.flatnonzero(free & ~candidates.cooling)
    taken = 0 if window is None else int((candidates.last_selected >= window.start).sum())
    take(*_targeted(config, estimate, among, left(), step, round_, window, taken, size))

    if left() > 0 and not config.strict_cool_down:
        rest = np.flatnonzero(free & candidates.cooling)
        oldest = rest[_oldest_first(candidates.last_selected[rest], rest, step, round_, config.seed)][: left()]
        take(oldest, REVIEW, np.ones(len(oldest)))

    return _shuffled(parts, noise_key(config.seed, "order", step, round_), size)


def choose_reference(config: RunConfig, eligible: np.ndarray, count: int, step: int, round_: int) -> Choice:
    """Choose reference prompts uniformly, without replacement."""
    prompt, chance = _draw_uniform(eligible, count, noise_key(config.seed, "reference", step, round_))
    return Choice(prompt, np.full(len(prompt), UNIFORM, dtype=np.uint8), chance)


def _draw_uniform(allowed: np.ndarray, count: int, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    among = np.flatnonzero(allowed)
    if count <= 0 or not len(among):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    chosen = among[top(uniforms(key, 0, len(allowed))[among], count)]
    return chosen, np.full(len(chosen), len(chosen) / len(among))


def _targeted(
    config: RunConfig,
    estimate: Estimate,
    among: np.ndarray,
    count: int,
    step: int,
    round_: int,
    window: Window | None,
    taken: int,
    size: int,
) -> tuple[np.ndarray, int, np.ndarray]:
    """``taken``: prompts chosen since the window began."""
    draws = None
    if config.score_evaluation == "THOMPSON":
        draws = uniforms(noise_key(config.seed, "thompson", step, round_), 0, size)
    weights = log_weights(config, estimate, draws)[among]
    purpose: tuple[str | int, ...] = ("select", step, round_) if window is None else ("window", window.start)
    keys = weights + gumbels(noise_key(config.seed, *purpose), 0, size)[among]

    pool_count = count if window is None else count * window.batches_left
    ranked = top(keys, min(pool_count, len(among)) + 1)
    inside, outside = ranked[:pool_count], ranked[pool_count:]
    if len(outside):
        kappa = keys[outside[0]]
        probability = -np.expm1(-np.exp(np.minimum(weights[inside] - kappa, 700.0)))
    else:
        probability = np.ones(len(inside))
    reach = taken + len(inside)
    if len(inside) > count:
        cut = uniforms(noise_key(config.seed, "cut", step, round_), 0, size)[among[inside]]
        kept = top(cut, count)
        inside, probability = inside[kept], probability[kept]
    if window is not None and reach:
        probability = probability * (len(inside) / reach)
    return among[inside], TARGETED, probability


def _oldest_first(last_selected: np.ndarray, prompt: np.ndarray, step: int, round_: int, seed: int) -> np.ndarray:
    """Order of prompts by how long ago they were selected; noise settles ties, so that no id is favoured."""
    if not len(prompt):
        return np.zeros(0, dtype=np.int64)
    noise = uniforms(noise_key(seed, "review", step, round_), 0, int(prompt.max()) + 1)[prompt]
    return np.lexsort((noise, last_selected))


def _shuffled(parts: list[Choice], key: np.ndarray, size: int) -> Choice:
    prompt = np.concatenate([part.prompt for part in parts])
    order = top(uniforms(key, 0, size)[prompt], len(prompt)) if len(prompt) else np.zeros(0, dtype=np.int64)
    return Choice(
        prompt[order],
        np.concatenate([part.arm for part in parts])[order],
        np.concatenate([part.probability for part in parts])[order],
    )
