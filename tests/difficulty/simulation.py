"""A made-up GRPO history with known success rates: what the estimators are judged on.

Each prompt's logit is the sum of a part told by its features, a part of its own, a random walk of its own and the
policy's common progress. Half of the pool is never selected. The others are selected by a noisy view of the truth, so
that every estimator sees the same history; an eighth of each batch is drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, logit

from selector.difficulty.estimate import Estimate, Estimator, OutcomeBatch, PoolFeatures


def features_of(size: int, *, version: int = 1, **columns: object) -> PoolFeatures:
    """Features of ``size`` prompts about which nothing is known but what is given."""
    given: dict[str, object] = {
        "embeddings": None,
        "surface": np.full((size, 9), np.nan, np.float32),
        "prior_rate": np.full(size, np.nan),
        "prior_trials": np.zeros(size),
        "domain": np.full(size, -1, np.int32),
        "signals": {},
    }
    return PoolFeatures(version=version, **(given | columns))  # type: ignore[arg-type]


def batch_of(step: int, prompts: object, successes: object, trials: object = 8.0, **columns: object) -> OutcomeBatch:
    """A report; ``trials`` may be one number for all, population defaults to none and uniform to True."""
    prompt = np.asarray(prompts, np.int32)
    given: dict[str, object] = {
        "reference": False,
        "uniform": np.ones(len(prompt), bool),
        "population": np.full(len(prompt), np.nan),
    }
    return OutcomeBatch(
        step=step,
        prompt=prompt,
        trials=np.broadcast_to(np.asarray(trials, np.float64), prompt.shape).copy(),
        successes=np.asarray(successes, np.float64),
        **(given | columns),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class World:
    """One history: what is known of the prompts, and per step the true rates and the report."""

    features: PoolFeatures
    selectable: np.ndarray
    rates: list[np.ndarray]
    batches: list[OutcomeBatch]


def simulate(
    seed: int,
    *,
    size: int = 500,
    steps: int = 60,
    per_step: int = 48,
    group_size: int = 8,
    drift: float = 0.03,
    walk: float = 0.06,
    told: float = 1.0,
    untold: float = 1.2,
    start: float = -1.5,
) -> World:
    """A history of ``steps`` reports of ``per_step`` groups."""
    rng = np.random.default_rng(seed)
    surface = rng.normal(size=(size, 9)).astype(np.float32)
    own = untold * rng.normal(size=size)
    prior = logit(np.clip(rng.beta(3, 3, size), 0.02, 0.98))
    current = start + told * (surface[:, 0] + 0.5 * surface[:, 3]) + own + told * prior
    prior_rate = rng.binomial(16, expit(prior + 0.5 * own)) / 16.0
    selectable = np.arange(size) < size // 2
    pool = np.flatnonzero(selectable)
    uniform = per_step // 8
    rates, batches = [], []
    for step in range(steps):
        rate = expit(current)
        drawn = rng.choice(pool, uniform, replace=False)
        view = np.abs(expit(current[pool] + 0.7 * rng.normal(size=len(pool))) - 0.5)
        targeted = [p for p in pool[np.argsort(view)] if p not in set(drawn)][: per_step - uniform]
        prompt = np.concatenate([drawn, targeted]).astype(np.int32)
        rates.append(rate)
        batches.append(
            batch_of(
                step,
                prompt,
                rng.binomial(group_size, rate[prompt]),
                group_size,
                uniform=np.arange(per_step) < uniform,
            )
        )
        current = current + drift + walk * rng.normal(size=size)
    features = features_of(size, surface=surface, prior_rate=prior_rate, prior_trials=np.full(size, 16.0))
    return World(features, selectable, rates, batches)


@dataclass
class Record:
    """Predictions of outcomes before they were seen, and of the never selected prompts' true rates."""

    predicted: list[np.ndarray] = field(default_factory=list)
    population: list[np.ndarray] = field(default_factory=list)
    successes: list[np.ndarray] = field(default_factory=list)
    trials: list[np.ndarray] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    last: Estimate | None = None

    def loss(self, predicted: np.ndarray) -> float:
        return log_loss(predicted, np.concatenate(self.successes), np.concatenate(self.trials))


def log_loss(rate: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> float:
    """Log loss per trial."""
    return float(-(successes * np.log(rate) + (trials - successes) * np.log1p(-rate)).sum() / trials.sum())


def follow(
    estimator: Estimator, world: World, *, burn_in: int = 15, watch: Callable[[Estimate], None] | None = None
) -> Record:
    """Predict and fold the whole history, recording from ``burn_in`` on."""
    record = Record()
    for step, (rate, batch) in enumerate(zip(world.rates, world.batches, strict=True)):
        estimate = estimator.estimate(world.features, step)
        if watch is not None:
            watch(estimate)
        if step >= burn_in:
            record.predicted.append(1.0 - estimate.difficulty[batch.prompt])
            record.population.append(estimate.population[batch.prompt])
            record.successes.append(batch.successes)
            record.trials.append(batch.trials)
            cold = ~world.selectable
            record.cold.append(log_loss(1.0 - estimate.difficulty[cold], rate[cold], np.ones(int(cold.sum()))))
        estimator.observe(
            OutcomeBatch(
                step=batch.step,
                reference=batch.reference,
                prompt=batch.prompt,
                trials=batch.trials,
                successes=batch.successes,
                uniform=batch.uniform,
                population=estimate.population[batch.prompt],
            )
        )
        record.last = estimate
    return record
