"""Shared types of difficulty estimation: what an estimator is given, and what it answers.

A prompt's *success rate* is the expected outcome of one rollout of the current policy, in [0, 1]; its *difficulty*
is one minus that (arXiv 2506.05316, section 3). A *visit* is one (prompt, step) pair: several reports about the same
prompt at the same step add up to one visit. Reports may arrive late and out of step order.

An estimator's state is a pure fold of the batches it observed, in order: folding the same batches again gives
bit-identical estimates. All arrays are read-only by convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

UNIFORM_STANDARD_ERROR = 12.0**-0.5
"""Standard deviation of the uniform distribution on [0, 1]: what is known about a rate before anything is known."""

_SMALLEST_RATE = 1e-9
_SMALLEST_CONCENTRATION = 1e-3
_LARGEST_CONCENTRATION = 1e9


class Basis(IntEnum):
    """What a prediction rests on most; the numbers are those of the protocol."""

    OWN = 1
    POPULATION = 2
    PRIOR = 3
    NONE = 4


@dataclass(frozen=True)
class PoolFeatures:
    """Columns of the pool, N prompts in order of registration.

    Attributes:
        version: changes whenever any column changes; the key of derived caches.
        embeddings: (N, w) float32, a row of zeros for a prompt without embedding; None when the run has none.
        surface: (N, 9) float32, see ``surface_features``; a row of NaN for a prompt without text.
        prior_rate: (N,) float64, success rate under another model, NaN = none.
        prior_trials: (N,) float64, number of trials behind ``prior_rate``, 0 = none.
        domain: (N,) int32 code of the prompt's domain, -1 = none.
        signals: name -> (N,) float64 fresh features of the current policy, NaN = none.
        first_twin: (N,) int64 index of the first prompt of each prompt's twin group, its own if it has no twin; None
            when no prompt has one.
    """

    version: int
    embeddings: np.ndarray | None
    surface: np.ndarray
    prior_rate: np.ndarray
    prior_trials: np.ndarray
    domain: np.ndarray
    signals: Mapping[str, np.ndarray]
    first_twin: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Number of prompts, N."""
        return len(self.prior_rate)


@dataclass(frozen=True)
class OutcomeBatch:
    """One acknowledged report of M groups, folded in order of acknowledgement.

    Attributes:
        step: step whose policy made the rollouts.
        reference: whether the report belongs to a dedicated reference pass.
        prompt: (M,) int32 index into the pool, unique within the batch.
        trials: (M,) float64 rollouts that counted, > 0.
        successes: (M,) float64 sum of outcomes in [0, 1]; may be fractional.
        uniform: (M,) bool, drawn without regard to difficulty (UNIFORM arm or reference pass).
        population: (M,) float64 ``Estimate.population`` as it was before the outcome was seen; NaN = none then.
    """

    step: int
    reference: bool
    prompt: np.ndarray
    trials: np.ndarray
    successes: np.ndarray
    uniform: np.ndarray
    population: np.ndarray

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Estimate:
    """One version of the whole pool's difficulties.

    Attributes:
        step: largest step among the outcomes seen, -1 = none.
        difficulty: (N,) float64 in (0, 1), one minus the expected outcome.
        standard_error: (N,) float64 > 0, of the prompt's true difficulty.
        own_weight: (N,) float64 in [0, 1], share that rests on the prompt's own outcomes.
        basis: (N,) uint8, values of ``Basis``.
        population: (N,) float64 in (0, 1), success rate predicted without the prompt's own outcomes.
    """

    step: int
    difficulty: np.ndarray
    standard_error: np.ndarray
    own_weight: np.ndarray
    basis: np.ndarray
    population: np.ndarray

    def of(self, rows: np.ndarray | slice) -> Estimate:
        """Of these prompts alone."""
        return Estimate(
            self.step,
            self.difficulty[rows],
            self.standard_error[rows],
            self.own_weight[rows],
            self.basis[rows],
            self.population[rows],
        )

    def beta(self) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (a, b), each (N,), of the Beta distribution of the success rate with this mean and variance.

        The concentration ``a + b = mean (1 - mean) / variance - 1`` is clamped to [1e-3, 1e9]: a standard error too
        large for any Beta of that mean gives the widest one, so that a and b are always positive and finite and their
        mean is always right.
        """
        rate = np.clip(1.0 - self.difficulty, _SMALLEST_RATE, 1.0 - _SMALLEST_RATE)
        variance = np.maximum(self.standard_error**2, 1e-18)
        concentration = np.clip(rate * (1.0 - rate) / variance - 1.0, _SMALLEST_CONCENTRATION, _LARGEST_CONCENTRATION)
        return concentration * rate, concentration * (1.0 - rate)


class Estimator(Protocol):
    """Predicts the difficulty of every prompt from the outcomes seen so far."""

    def observe(self, batch: OutcomeBatch) -> None:
        """Fold one report. Deterministic; besides ``forget`` the only thing that changes state.

        Prompt indices may lie beyond every index and pool size seen so far.
        """
        ...

    def forget(self, prompts: np.ndarray) -> None:
        """Drop the own evidence of these prompt indices, whose content was replaced."""
        ...

    def estimate(self, features: PoolFeatures, step: int) -> Estimate:
        """Difficulties as of ``step``: a pure function of the folded state, ``features`` and ``step``."""
        ...

    def references(self, features: PoolFeatures, step: int, prompt: int, limit: int) -> list[tuple[int, float, float]]:
        """The prompt's strongest references as (prompt index, weight, measured difficulty); [] if there are none."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The folded state in the terms of ``selector.state_codec``."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state that an estimator of the same configuration gave: what follows is bit-identical.

        Raises:
            KeyError, TypeError, ValueError: it is not such a state.
        """
        ...

    def copy(self) -> Estimator:
        """An independent copy, so that ``estimate`` can run in another thread while ``observe`` goes on here."""
        ...
