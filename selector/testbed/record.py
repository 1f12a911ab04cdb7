"""What one arm with one seed produced, and the figures drawn from several of them.

Accuracy is smoothed over three evaluations everywhere: one alone is a noisy point on a noisy plateau. An arm *reaches*
uniform's final accuracy at the first evaluation at which the mean of that and the two before is at least the mean of
uniform's last three, with the same seed. Uniform itself is held to the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHING = 3


@dataclass(frozen=True)
class Evaluation:
    """Exact held-out accuracy after ``step`` steps, and what it had cost until then.

    ``trained_rollouts`` went into minibatches, each time that they did: replayed ones count, dropped ones do not.
    """

    step: int
    rollouts: int
    cpu_seconds: float
    accuracy: float
    trained_rollouts: int


@dataclass(frozen=True, eq=False)
class ArmRun:
    """One arm, one seed.

    Attributes:
        rollouts: all that were generated, references included.
        generated_groups, informative_groups: groups generated, references included; of these, groups that were trained
            on and whose outcomes differ.
        cpu_seconds: of the trainer's process for selecting, generating and updating; the service's own and what is
            only measured for this record are left out.
        predicted, true: (n,) difficulty of every prompt chosen for training, as predicted and as it was.
        pool_correlation: mean over several steps of the correlation over the whole pool; None for the oracle.
        coverage: share of the pool that was rolled out at least once, references included.
        effective_sample_size: by step with replayed rows, over the tokens of these rows.
    """

    arm: str
    seed: int
    steps: int
    rollouts: int
    generated_groups: int
    informative_groups: int
    cpu_seconds: float
    evaluations: tuple[Evaluation, ...]
    predicted: np.ndarray
    true: np.ndarray
    pool_correlation: float | None
    coverage: float
    effective_sample_size: tuple[float, ...]
    max_importance_weight: float | None
    degraded_selections: int

    @property
    def informative_share(self) -> float:
        """Groups with a gradient per group generated, references included."""
        return self.informative_groups / self.generated_groups

    @property
    def final_accuracy(self) -> float:
        """Mean of the last three evaluations."""
        return float(np.mean([e.accuracy for e in self.evaluations[-SMOOTHING:]]))

    @property
    def selected_correlation(self) -> float | None:
        """Correlation of predicted with true difficulty over the prompts chosen."""
        return correlation(self.predicted, self.true)

    def reached_at(self, accuracy: float) -> Evaluation | None:
        """Where the smoothed accuracy first reached ``accuracy``; None if it never did."""
        values = [e.accuracy for e in self.evaluations]
        for last in range(SMOOTHING - 1, len(values)):
            if np.mean(values[last - SMOOTHING + 1 : last + 1]) >= accuracy:
                return self.evaluations[last]
        return None


def correlation(predicted: np.ndarray, true: np.ndarray) -> float | None:
    """Pearson's r; None where either does not vary."""
    if len(predicted) < 2 or np.ptp(predicted) < 1e-9 or np.ptp(true) < 1e-9:
        return None
    return float(np.corrcoef(predicted, true)[0, 1])


@dataclass(frozen=True)
class Reached:
    """Rollouts to uniform's final accuracy, of one arm over all seeds.

    ``rollouts`` and ``ratios`` hold the seeds that got there; a ratio is to uniform's rollouts with the same seed.
    """

    seeds: int
    rollouts: tuple[int, ...]
    ratios: tuple[float, ...]


def reached(runs: Sequence[ArmRun], controls: Sequence[ArmRun]) -> Reached:
    """How soon the runs of one arm reached the accuracy of the control of the same seed."""
    control_of = {control.seed: control for control in controls}
    rollouts, ratios = [], []
    for run in runs:
        control = control_of[run.seed]
        target = control.final_accuracy
        there, control_there = run.reached_at(target), control.reached_at(target)
        if there is not None and control_there is not None:
            rollouts.append(there.rollouts)
            ratios.append(there.rollouts / control_there.rollouts)
    return Reached(len(runs), tuple(rollouts), tuple(ratios))


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Mean of those that are there."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None
