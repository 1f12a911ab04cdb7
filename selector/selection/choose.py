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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.noise import noise_key, uniforms, uniforms_at
from selector.selection.part import Candidates, Part, PoolPart, Ranked, merged, top

TARGETED, UNIFORM, REVIEW = 1, 2, 3

# Uniform draws look at none.
_NO_ESTIMATE = Estimate(-1, *(np.zeros(0),) * 5)


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


def choose_train(
    config: RunConfig,
    estimate: Estimate,
    candidates: Candidates,
    count: int,
    step: int,
    round_: int,
    window: Window | None,
) -> Choice:
    """Choose prompts to roll out for training from a pool in memory.

    Args:
        estimate: of the whole pool.
        count: prompts wanted (F); fewer come back only when fewer are eligible.
        window: set with DEDICATED references.
    """
    return choose_from(config, [PoolPart(config, estimate, candidates)], count, step, round_, window)


def choose_from(
    config: RunConfig, parts: Sequence[Part], count: int, step: int, round_: int, window: Window | None
) -> Choice:
    """The same from the parts of a pool, in order of the pool: the same prompts however it is cut.

    Every stage has each part find its best, merges them, and tells all parts who was taken.
    """
    seed = config.seed
    taken: list[Choice] = []

    def take(prompt: np.ndarray, arm: int, probability: np.ndarray) -> None:
        if not len(prompt):
            return
        taken.append(Choice(prompt, np.full(len(prompt), arm, dtype=np.uint8), probability))
        for part in parts:
            part.take(prompt)

    def left() -> int:
        return count - sum(len(each.prompt) for each in taken)

    rounding = uniforms(noise_key(seed, "rounding", step, round_), 0, 2)
    if config.score == "UNIFORM" and config.cool_down_steps == 0:
        wanted = count
    else:
        wanted = int(config.reference.uniform_share * count + rounding[0])
    drawn, chance = _uniform(parts, noise_key(seed, "uniform", step, round_), wanted)
    take(drawn, UNIFORM, chance)

    review = noise_key(seed, "review", step, round_)
    if config.max_unselected_steps > 0:
        limit = min(left(), int(config.review_fraction * count + rounding[1]))
        oldest = merged([part.due(review, step, limit) for part in parts], limit).prompt
        take(oldest, REVIEW, np.ones(len(oldest)))

    take(*_targeted(config, parts, left(), step, round_, window))

    if left() > 0 and not config.strict_cool_down:
        oldest = merged([part.cooled(review, left()) for part in parts], left()).prompt
        take(oldest, REVIEW, np.ones(len(oldest)))

    return _shuffled(taken, noise_key(seed, "order", step, round_))


def choose_reference(config: RunConfig, eligible: np.ndarray, count: int, step: int, round_: int) -> Choice:
    """Choose reference prompts uniformly, without replacement."""
    nobody = np.zeros(len(eligible), dtype=bool)
    part = PoolPart(config, _NO_ESTIMATE, Candidates(eligible, nobody, nobody))
    prompt, chance = _uniform([part], noise_key(config.seed, "reference", step, round_), count)
    return Choice(prompt, np.full(len(prompt), UNIFORM, dtype=np.uint8), chance)


def _uniform(parts: Sequence[Part], key: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    found = [part.uniform(key, count) for part in parts]
    among = sum(size for _, size in found)
    chosen = merged([ranked for ranked, _ in found], count).prompt
    return chosen, np.full(len(chosen), len(chosen) / max(among, 1))


def _targeted(
    config: RunConfig, parts: Sequence[Part], count: int, step: int, round_: int, window: Window | None
) -> tuple[np.ndarray, int, np.ndarray]:
    thompson = noise_key(config.seed, "thompson", step, round_)
    purpose: tuple[str | int, ...] = ("select", step, round_) if window is None else ("window", window.start)
    key = noise_key(config.seed, *purpose)
    pool_count = max(count, 0) if window is None else max(count, 0) * window.batches_left
    # One more: the largest key that is left out.
    ranked = merged([part.targeted(key, thompson, pool_count + 1) for part in parts], pool_count + 1)
    inside, probability = ranked.prompt[:pool_count], _inclusion(ranked, pool_count)
    if window is not None:
        reach = len(inside) + sum(part.selected_since(window.start) for part in parts)
        if len(inside) > count:
            kept = top(uniforms_at(noise_key(config.seed, "cut", step, round_), inside), count)
            inside, probability = inside[kept], probability[kept]
        probability = probability * (len(inside) / max(reach, 1))
    return inside, TARGETED, probability


def _inclusion(ranked: Ranked, count: int) -> np.ndarray:
    """(n,) probability of each of the best ``count``, given the largest key left out."""
    if len(ranked.prompt) <= count or ranked.weight is None:
        return np.ones(min(len(ranked.prompt), count))
    kappa = ranked.keys[0][count]
    return np.asarray(-np.expm1(-np.exp(np.minimum(ranked.weight[:count] - kappa, 700.0))))


def _shuffled(taken: Sequence[Choice], key: np.ndarray) -> Choice:
    if not taken:
        return Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8), np.zeros(0))
    prompt = np.concatenate([each.prompt for each in taken])
    order = top(uniforms_at(key, prompt), len(prompt))
    return Choice(
        prompt[order],
        np.concatenate([each.arm for each in taken])[order],
        np.concatenate([each.probability for each in taken])[order],
    )
