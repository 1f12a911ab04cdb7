"""What comes of picking prompts by a prediction: measured on the questions that were no references.

- In band: of the ``count`` questions whose predicted difficulty is nearest to the target, the share with a measured
  difficulty in [0.125, 0.875].
- Informative: of the groups of a batch chosen by the service's own ``choose_train`` under its default configuration,
  UNIFORM arm included, the share whose outcomes would differ. For a question with s successes in n >= G trials that
  chance is ``1 - (C(s, G) + C(n - s, G)) / C(n, G)``, free of bias; with fewer trials it is that of a group of n. The
  mean over ``BATCHES`` batches of different noise.

Neither can be measured with a single trial: questions with one are left out, and both are None where they are the most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.evaluation.figures import Measured
from selector.noise import noise_key, uniforms
from selector.open_selections import NEVER
from selector.quality import BAND
from selector.selection.choose import choose_train
from selector.selection.part import Candidates, top

BATCHES = 8
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Picks:
    """Shares in [0, 1]; None = cannot be measured."""

    in_band: float | None
    informative: float | None


def picks(
    config: RunConfig, estimate: Estimate, unseen: np.ndarray, measured: Measured, count: int, draw: int
) -> Picks:
    """Both shares.

    Args:
        config: of the run; group_size and target_difficulty count.
        estimate: of all N questions.
        unseen: (M,) questions to pick from.
        measured: of all N questions.
        count: prompts to pick, fewer than M.
        draw: number of the draw; its noise is its own.
    """
    several = measured.trials >= 2
    if several[unseen].mean() < 0.5:
        return Picks(None, None)
    difficulty = 1.0 - measured.rate
    in_band = (difficulty >= BAND[0] - _ROUNDING) & (difficulty <= BAND[1] + _ROUNDING)
    ties = uniforms(noise_key(config.seed, "nearest", draw), 0, len(several))[unseen] * 1e-9
    nearest = unseen[top(-np.abs(estimate.difficulty[unseen] - config.target_difficulty) - ties, count)]
    informative = informative_chance(measured, config.group_size)
    eligible = np.zeros(len(several), dtype=bool)
    eligible[unseen] = True
    none = Candidates(eligible, np.zeros(len(several), dtype=bool), np.full(len(several), NEVER))
    shares = []
    for batch in range(BATCHES):
        noise = replace(config, seed=config.seed + 1_000_003 * (draw + 1))
        chosen = choose_train(noise, estimate, none, count, batch, 0, None).prompt
        shares.append(_mean(informative[chosen], several[chosen]))
    known = [share for share in shares if share is not None]
    return Picks(_mean(in_band[nearest].astype(np.float64), several[nearest]), float(np.mean(known)) if known else None)


def informative_chance(measured: Measured, group_size: int) -> np.ndarray:
    """(N,) chance that a group of min(``group_size``, trials) of the trials has differing outcomes."""
    trials = np.round(measured.trials)
    successes = np.clip(np.round(measured.successes), 0, trials)
    size = np.minimum(trials, group_size)
    alike = _all_from(successes, trials, size) + _all_from(trials - successes, trials, size)
    return np.clip(1.0 - alike, 0.0, 1.0)


def _all_from(part: np.ndarray, trials: np.ndarray, size: np.ndarray) -> np.ndarray:
    """C(part, size) / C(trials, size)."""
    enough = part >= size
    held = np.where(enough, part, trials)
    chance = np.exp(gammaln(held + 1) - gammaln(held - size + 1) - gammaln(trials + 1) + gammaln(trials - size + 1))
    return np.where(enough, chance, 0.0)


def _mean(values: np.ndarray, known: np.ndarray) -> float | None:
    return float(values[known].mean()) if known.any() else None
