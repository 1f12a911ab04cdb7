"""Whether selection is any good, over a sliding window of reported groups and since the run began.

A pure fold of reports in order of acknowledgement: folding the same reports again gives the same summary bit for bit.

- A group is (prompt, step, reference pass or not). Several reports of one group add up; the first of them fixes its arm
  and its prediction, because a later prediction has already seen part of the outcome. A prompt that is rolled out both
  for training and in a reference pass of one step makes two groups: merging them would take targeted prompts out of the
  uniform sample.
- The window holds the newest groups by order of first report. A group that left the window and is reported again counts
  as a new one.
- Totals are never windowed. Completing a group can turn an uninformative group into an informative one, never back.
- Groups, not rollouts, carry equal weight in every figure. A figure that is undefined is None; nothing is ever NaN.

Difficulty is 1 - mean outcome. A group is informative if its outcomes differ by more than 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

TOLERANCE = 1e-6
BAND = (0.125, 0.875)
DIFFICULTY_BOUNDS = tuple(i / 8 for i in range(9))
CALIBRATION_BINS = 10
# Two points always lie on a line, so a correlation or slope of fewer than three groups says nothing.
MIN_GROUPS = 3

# One entry per value of proto Arm, then the reference passes.
ARMS = ("unspecified", "targeted", "uniform", "review", "reference")
_UNIFORM, _REFERENCE = 2, 4

# Predicted difficulties or sums of outcomes such as 0.1 + 0.2 land beside a bound rather than on it.
_ROUNDING = 1e-9

_GROUP = np.dtype(
    [
        ("step", np.int64),
        ("prompt", np.int32),
        ("entry", np.uint8),
        ("predicted", np.float64),
        ("trials", np.float64),
        ("successes", np.float64),
        ("minimum", np.float64),
        ("maximum", np.float64),
    ]
)


@dataclass(frozen=True)
class Distribution:
    """Counts of values by upper bound.

    Attributes:
        bounds: upper bounds, inclusive and ascending.
        counts: one per bound, of the values above the bound before it; then one of the values beyond the last bound.
        total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, values: np.ndarray, bounds: Sequence[float]) -> Distribution:
        """Count values (M,), all finite."""
        at = np.searchsorted(np.asarray(bounds, dtype=np.float64), values - _ROUNDING, side="left")
        counts = np.bincount(at, minlength=len(bounds) + 1)
        return cls(tuple(float(b) for b in bounds), tuple(counts.tolist()), float(np.sum(values, dtype=np.float64)))


@dataclass(frozen=True)
class UninformativeGroups:
    """Uninformative groups by what all of their outcomes were: 0, 1, or one value in between."""

    zero: int
    one: int
    between: int


@dataclass(frozen=True)
class ArmQuality:
    """Groups of one arm within the window; means are None where there is nothing to average.

    Attributes:
        label: one of ``ARMS``.
        arm: as proto Arm; reference passes are uniform draws.
        reference: whether these are the groups of reference passes.
        mean_absolute_error: of the predicted difficulty, over the groups that had a prediction.
        in_band_share: share of the groups with measured difficulty in [0.125, 0.875].
    """

    label: str
    arm: int
    reference: bool
    groups: int
    informative_groups: int
    uninformative: UninformativeGroups
    informative_ratio: float | None
    mean_predicted_difficulty: float | None
    mean_difficulty: float | None
    mean_absolute_error: float | None
    in_band_share: float | None


@dataclass(frozen=True)
class Totals:
    """Since the run began.

    Attributes:
        groups: by arm, in the order of ``ARMS``.
        informative_groups: likewise.
        rollouts: that counted, reference passes included.
    """

    groups: tuple[int, ...]
    informative_groups: tuple[int, ...]
    uninformative: UninformativeGroups
    rollouts: int

    @property
    def generated_groups(self) -> int:
        """All groups, reference passes included."""
        return sum(self.groups)

    @property
    def informative_per_generated(self) -> float | None:
        """Informative groups for training per group generated: reference passes cost rollouts and train nothing."""
        return sum(self.informative_groups[:_REFERENCE]) / self.generated_groups if self.generated_groups else None


@dataclass(frozen=True)
class Quality:
    """Figures over the window, and totals since the run began.

    Predicted difficulty p is compared with measured difficulty m over the ``predicted_groups`` groups that had a
    prediction before their outcome was seen.

    Attributes:
        arms: one entry per name in ``ARMS``, in that order, also where an arm has no groups.
        pearson: correlation of p and m; None with fewer than three groups or without variation.
        mean_absolute_error: of p.
        mean_absolute_error_of_mean: of always predicting the mean of m over the same groups.
        brier: mean of (p - m)^2 per group, against the measured rate rather than each rollout, so that it is 0 for a
            perfect prediction plus the sampling noise of m.
        calibration_slope: least-squares slope of m on p. 1 = calibrated, below 1 = predictions too spread out; sampling
            noise of m does not attenuate it. None as for ``pearson``.
        expected_calibration_error: over ten bins of equal width in p, the mean over groups of |mean p - mean m| of the
            group's bin. Sampling noise alone makes it positive when groups are few.
        in_band_share: share of all groups with m in [0.125, 0.875].
        population_success_rate: mean outcome of the UNIFORM arm and the reference passes: free of selection bias. Where
            rollouts of a uniform group are added depending on its first outcomes, it is drawn a little away from 1/2.
        population_standard_error: of that mean, over groups; None with fewer than two.
    """

    window_groups: int
    predicted_groups: int
    arms: tuple[ArmQuality, ...]
    pearson: float | None
    mean_absolute_error: float | None
    mean_absolute_error_of_mean: float | None
    brier: float | None
    calibration_slope: float | None
    expected_calibration_error: float | None
    in_band_share: float | None
    population_groups: int
    population_success_rate: float | None
    population_standard_error: float | None
    predicted_difficulties: Distribution
    difficulties: Distribution
    totals: Totals


class QualityWindow:
    """The newest reported groups of a run."""

    def __init__(self, capacity_groups: int = 4096) -> None:
        if capacity_groups < 1:
            raise ValueError(f"capacity_groups must be at least 1, got {capacity_groups}")
        self.capacity_groups = capacity_groups
        # Group number i since the run began lies at i % capacity_groups.
        self._groups = np.zeros(capacity_groups, dtype=_GROUP)
        self._count = 0
        self._total_groups = np.zeros(len(ARMS), dtype=np.int64)
        self._total_informative = np.zeros(len(ARMS), dtype=np.int64)
        # By kind: informative, then as in UninformativeGroups.
        self._total_kinds = np.zeros(4, dtype=np.int64)
        self._total_rollouts = 0
        self._summary: Quality | None = None

    def observe(
        self,
        step: int,
        reference: bool,
        prompt: np.ndarray,
        arm: np.ndarray,
        predicted: np.ndarray,
        trials: np.ndarray,
        successes: np.ndarray,
        minimum: np.ndarray,
        maximum: np.ndarray,
    ) -> None:
        """Fold one report.

        Args:
            step: whose policy made the rollouts.
            reference: whether this is a reference pass; ``arm`` is then ignored.
            prompt: (M,) int32, unique within the report.
            arm: (M,) uint8 as proto Arm.
            predicted: (M,) difficulty predicted before the outcome was seen; NaN = none.
            trials: (M,) rollouts that counted; groups without any are skipped.
            successes: (M,) sum of their outcomes, each in [0, 1].
            minimum: (M,) smallest outcome.
            maximum: (M,) largest outcome.
        """
        report = np.empty(len(prompt), dtype=_GROUP)
        report["step"], report["prompt"] = step, prompt
        report["entry"] = _REFERENCE if reference else arm
        report["predicted"], report["trials"], report["successes"] = predicted, trials, successes
        report["minimum"], report["maximum"] = minimum, maximum
        report = report[report["trials"] > 0]
        self._total_rollouts += int(np.rint(np.sum(report["trials"])))
        at = self._find(step, reference, report["prompt"])
        self._merge(at[at >= 0], report[at >= 0])
        self._append(report[at < 0])
        self._summary = None

    def summary(self) -> Quality:
        """All figures; computed once per state."""
        if self._summary is None:
            self._summary = _quality(self._window(), self._totals())
        return self._summary

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        return {
            "groups": self._groups[: self._count].tobytes(),
            "count": self._count,
            "total_groups": self._total_groups,
            "total_informative": self._total_informative,
            "total_kinds": self._total_kinds,
            "total_rollouts": self._total_rollouts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``, for a window of the same capacity."""
        held = np.frombuffer(state["groups"], dtype=_GROUP)
        if len(held) != min(state["count"], self.capacity_groups):
            raise ValueError(f"expected the newest of {state['count']} groups; got {len(held)}")
        self._groups[: len(held)] = held
        self._count = state["count"]
        self._total_groups = state["total_groups"].copy()
        self._total_informative = state["total_informative"].copy()
        self._total_kinds = state["total_kinds"].copy()
        self._total_rollouts = state["total_rollouts"]
        self._summary = None

    def copy(self) -> QualityWindow:
        """An independent copy."""
        other = QualityWindow(self.capacity_groups)
        other._groups = self._groups.copy()
        other._count = self._count
        other._total_groups = self._total_groups.copy()
        other._total_informative = self._total_informative.copy()
        other._total_kinds = self._total_kinds.copy()
        other._total_rollouts = self._total_rollouts
        other._summary = self._summary
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QualityWindow):
            return NotImplemented
        return (
            self.capacity_groups == other.capacity_groups
            and self._totals() == other._totals()
            and self._window().tobytes() == other._window().tobytes()
        )

    # It changes with every report.
    __hash__ = None  # type: ignore[assignment]

    def _window(self) -> np.ndarray:
        """The groups, oldest first."""
        if self._count <= self.capacity_groups:
            return self._groups[: self._count]
        return np.roll(self._groups, -(self._count % self.capacity_groups))

    def _find(self, step: int, reference: bool, prompt: np.ndarray) -> np.ndarray:
        """Where the window holds the groups of these prompts (M,), -1 = nowhere."""
        held = self._groups[: min(self._count, self.capacity_groups)]
        candidates = np.flatnonzero((held["step"] == step) & ((held["entry"] == _REFERENCE) == reference))
        if not len(candidates):
            return np.full(len(prompt), -1, dtype=np.int64)
        candidates = candidates[np.argsort(held["prompt"][candidates])]
        nearest = candidates[np.minimum(np.searchsorted(held["prompt"][candidates], prompt), len(candidates) - 1)]
        return np.where(held["prompt"][nearest] == prompt, nearest, -1)

    def _merge(self, at: np.ndarray, report: np.ndarray) -> None:
        if not len(at):
            return
        groups = self._groups[at]
        before = _kinds(groups)
        groups["trials"] += report["trials"]
        groups["successes"] += report["successes"]
        groups["minimum"] = np.minimum(groups["minimum"], report["minimum"])
        groups["maximum"] = np.maximum(groups["maximum"], report["maximum"])
        after = _kinds(groups)
        self._groups[at] = groups
        self._total_kinds += np.bincount(after, minlength=4) - np.bincount(before, minlength=4)
        gained = groups["entry"][(before > 0) & (after == 0)]
        self._total_informative += np.bincount(gained, minlength=len(ARMS))

    def _append(self, report: np.ndarray) -> None:
        kinds = _kinds(report)
        self._total_groups += np.bincount(report["entry"], minlength=len(ARMS))
        self._total_informative += np.bincount(report["entry"][kinds == 0], minlength=len(ARMS))
        self._total_kinds += np.bincount(kinds, minlength=4)
        self._count += len(report)
        kept = report[-self.capacity_groups :]
        self._groups[np.arange(self._count - len(kept), self._count) % self.capacity_groups] = kept

    def _totals(self) -> Totals:
        return Totals(
            tuple(self._total_groups.tolist()),
            tuple(self._total_informative.tolist()),
            UninformativeGroups(*self._total_kinds[1:].tolist()),
            self._total_rollouts,
        )


def _kinds(groups: np.ndarray) -> np.ndarray:
    """(M,) 0 informative, then one more than the position in UninformativeGroups."""
    informative = groups["maximum"] - groups["minimum"] > TOLERANCE
    constant = np.select([groups["maximum"] <= TOLERANCE, groups["minimum"] >= 1 - TOLERANCE], [1, 2], default=3)
    return np.where(informative, 0, constant)


@dataclass(frozen=True)
class _Pairs:
    """Predicted and measured difficulty (n,) of the groups that had a prediction."""

    predicted: np.ndarray
    measured: np.ndarray

    @cached_property
    def moments(self) -> tuple[float, float, float] | None:
        """Variance of predicted, of measured, and their covariance; None with too few groups or no variation in p."""
        if len(self.predicted) < MIN_GROUPS or np.ptp(self.predicted) <= _ROUNDING:
            return None
        p = self.predicted - np.mean(self.predicted)
        m = self.measured - np.mean(self.measured)
        # Sums of products, not BLAS: its result may depend on how memory is aligned.
        return float(np.mean(p * p)), float(np.mean(m * m)), float(np.mean(p * m))

    def pearson(self) -> float | None:
        if self.moments is None or np.ptp(self.measured) <= _ROUNDING:
            return None
        of_p, of_m, covariance = self.moments
        return min(1.0, max(-1.0, covariance / (np.sqrt(of_p) * np.sqrt(of_m)).item()))

    def slope(self) -> float | None:
        return None if self.moments is None else self.moments[2] / self.moments[0]

    def calibration_error(self) -> float | None:
        if not len(self.predicted):
            return None
        bins = np.minimum((self.predicted * CALIBRATION_BINS + _ROUNDING).astype(np.int64), CALIBRATION_BINS - 1)
        # |mean p - mean m| of a bin times its number of groups is |sum of p - m| over the bin.
        gaps = np.bincount(bins, weights=self.predicted - self.measured, minlength=CALIBRATION_BINS)
        return float(np.sum(np.abs(gaps)) / len(bins))


def _quality(groups: np.ndarray, totals: Totals) -> Quality:
    measured = _measured(groups)
    known = np.isfinite(groups["predicted"])
    pairs = _Pairs(np.clip(groups["predicted"][known], 0.0, 1.0), measured[known])
    error = pairs.predicted - pairs.measured
    uniform = 1.0 - measured[(groups["entry"] == _UNIFORM) | (groups["entry"] == _REFERENCE)]
    return Quality(
        window_groups=len(groups),
        predicted_groups=len(error),
        arms=tuple(_arm_quality(groups, entry) for entry in range(len(ARMS))),
        pearson=pairs.pearson(),
        mean_absolute_error=_mean(np.abs(error)),
        mean_absolute_error_of_mean=_mean(np.abs(pairs.measured - pairs.measured.mean())) if len(error) else None,
        brier=_mean(error * error),
        calibration_slope=pairs.slope(),
        expected_calibration_error=pairs.calibration_error(),
        in_band_share=_mean(_in_band(measured)),
        population_groups=len(uniform),
        population_success_rate=_mean(uniform),
        population_standard_error=float(uniform.std(ddof=1) / np.sqrt(len(uniform))) if len(uniform) > 1 else None,
        predicted_difficulties=Distribution.of(pairs.predicted, DIFFICULTY_BOUNDS),
        difficulties=Distribution.of(measured, DIFFICULTY_BOUNDS),
        totals=totals,
    )


def _arm_quality(groups: np.ndarray, entry: int) -> ArmQuality:
    groups = groups[groups["entry"] == entry]
    measured = _measured(groups)
    known = np.isfinite(groups["predicted"])
    predicted = np.clip(groups["predicted"][known], 0.0, 1.0)
    informative, *constant = np.bincount(_kinds(groups), minlength=4).tolist()
    return ArmQuality(
        label=ARMS[entry],
        arm=_UNIFORM if entry == _REFERENCE else entry,
        reference=entry == _REFERENCE,
        groups=len(groups),
        informative_groups=informative,
        uninformative=UninformativeGroups(*constant),
        informative_ratio=informative / len(groups) if len(groups) else None,
        mean_predicted_difficulty=_mean(predicted),
        mean_difficulty=_mean(measured),
        mean_absolute_error=_mean(np.abs(predicted - measured[known])),
        in_band_share=_mean(_in_band(measured)),
    )


def _measured(groups: np.ndarray) -> np.ndarray:
    return np.clip(1.0 - groups["successes"] / groups["trials"], 0.0, 1.0)


def _in_band(measured: np.ndarray) -> np.ndarray:
    return (measured >= BAND[0] - _ROUNDING) & (measured <= BAND[1] + _ROUNDING)


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
