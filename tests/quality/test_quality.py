"""The quality window against plain loops over Python floats, and the situations its rules come from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.quality import ARMS, Distribution, Quality, QualityWindow
from tests.quality.runs import REVIEW, TARGETED, UNIFORM, UNSPECIFIED, Group, Report, fold, folded, training_history

OUTCOMES = st.sampled_from([0.0, 1.0, 0.0, 1.0, 0.5, 0.25, 1 / 3, 0.1])
GROUPS = st.builds(
    Group,
    outcomes=st.lists(OUTCOMES, min_size=0, max_size=9),
    arm=st.sampled_from([UNSPECIFIED, TARGETED, UNIFORM, REVIEW]),
    predicted=st.one_of(st.just(math.nan), st.integers(0, 40).map(lambda i: i / 40)),
)
REPORTS = st.lists(
    st.builds(
        Report,
        step=st.integers(0, 3),
        groups=st.dictionaries(st.integers(0, 7), GROUPS, max_size=8),
        reference=st.booleans(),
    ),
    max_size=8,
)


def loops(reports: list[Report], capacity: int) -> dict[str, Any]:
    """All figures, one group at a time."""
    window: list[dict[str, Any]] = []
    totals: list[dict[str, Any]] = []
    for report in reports:
        held = {(g["prompt"], g["step"], g["reference"]): g for g in window}
        for prompt, group in report.groups.items():
            if not group.outcomes:
                continue
            known = held.get((prompt, report.step, report.reference))
            if known is not None:
                known["outcomes"] += list(group.outcomes)
                continue
            label = "reference" if report.reference else ARMS[group.arm]
            new = {"prompt": prompt, "step": report.step, "reference": report.reference, "label": label}
            new |= {"predicted": group.predicted, "outcomes": list(group.outcomes)}
            window.append(new)
            totals.append(new)
        window = window[-capacity:]
    return {"window": figures(window), "totals": totals}


def figures(groups: list[dict[str, Any]]) -> dict[str, float | None]:
    measured = [1 - math.fsum(g["outcomes"]) / len(g["outcomes"]) for g in groups]
    pairs = [(g["predicted"], m) for g, m in zip(groups, measured, strict=True) if not math.isnan(g["predicted"])]
    rates = [1 - m for g, m in zip(groups, measured, strict=True) if g["label"] in ("uniform", "reference")]
    mean_p, mean_m = (mean([pair[i] for pair in pairs]) for i in (0, 1))
    slope = pearson = None
    if mean_p is not None and mean_m is not None and len(pairs) >= 3:
        of_p = math.fsum((p - mean_p) ** 2 for p, _ in pairs)
        of_m = math.fsum((m - mean_m) ** 2 for _, m in pairs)
        both = math.fsum((p - mean_p) * (m - mean_m) for p, m in pairs)
        slope = both / of_p if of_p > 1e-12 else None
        pearson = both / math.sqrt(of_p * of_m) if of_p > 1e-12 and of_m > 1e-12 else None
    by_bin: dict[int, list[float]] = {}
    for p, m in pairs:
        by_bin.setdefault(min(int(p * 10 + 1e-9), 9), []).append(p - m)
    rate = mean(rates)
    spread = None
    if rate is not None and len(rates) > 1:
        spread = math.sqrt(math.fsum((r - rate) ** 2 for r in rates) / (len(rates) - 1) / len(rates))
    return {
        "window_groups": len(groups),
        "predicted_groups": len(pairs),
        "pearson": pearson,
        "mean_absolute_error": mean([abs(p - m) for p, m in pairs]),
        "mean_absolute_error_of_mean": None if mean_m is None else mean([abs(mean_m - m) for _, m in pairs]),
        "brier": mean([(p - m) ** 2 for p, m in pairs]),
        "calibration_slope": slope,
        "expected_calibration_error": math.fsum(abs(math.fsum(gaps)) for gaps in by_bin.values()) / len(pairs)
        if pairs
        else None,
        "in_band_share": mean([float(0.125 - 1e-9 <= m <= 0.875 + 1e-9) for m in measured]),
        "population_groups": len(rates),
        "population_success_rate": rate,
        "population_standard_error": spread,
    } | arm_figures(groups)


def arm_figures(groups: list[dict[str, Any]]) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for label in ARMS:
        own = [g for g in groups if g["label"] == label]
        measured = [1 - math.fsum(g["outcomes"]) / len(g["outcomes"]) for g in own]
        predicted = [(g["predicted"], m) for g, m in zip(own, measured, strict=True) if not math.isnan(g["predicted"])]
        result |= {f"{label}.{kind}": sum(kind_of(g) == kind for g in own) for kind in KINDS}
        result |= {
            f"{label}.groups": len(own),
            f"{label}.informative_ratio": mean([float(kind_of(g) == "informative") for g in own]),
            f"{label}.mean_predicted_difficulty": mean([p for p, _ in predicted]),
            f"{label}.mean_difficulty": mean(measured),
            f"{label}.mean_absolute_error": mean([abs(p - m) for p, m in predicted]),
            f"{label}.in_band_share": mean([float(0.125 - 1e-9 <= m <= 0.875 + 1e-9) for m in measured]),
        }
    return result


KINDS = ("informative", "zero", "one", "between")


def kind_of(group: dict[str, Any]) -> str:
    low, high = min(group["outcomes"]), max(group["outcomes"])
    if high - low > 1e-6:
        return "informative"
    return "zero" if high == 0 else "one" if low == 1 else "between"


def mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def flat(quality: Quality) -> dict[str, float | None]:
    names = [f.name for f in dataclasses.fields(Quality)]
    result = {name: getattr(quality, name) for name in names if not name.endswith("difficulties")}
    del result["arms"], result["totals"]
    for arm in quality.arms:
        result |= {f"{arm.label}.{kind}": getattr(arm.uninformative, kind) for kind in KINDS[1:]}
        result[f"{arm.label}.informative"] = arm.informative_groups
        for name in ("groups", "informative_ratio", "mean_difficulty", "in_band_share"):
            result[f"{arm.label}.{name}"] = getattr(arm, name)
        for name in ("mean_predicted_difficulty", "mean_absolute_error"):
            result[f"{arm.label}.{name}"] = getattr(arm, name)
    return result


def numbers(value: object) -> Iterator[float]:
    """Every number anywhere in a summary."""
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from numbers(getattr(value, f.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from numbers(part)
    elif value is not None and not isinstance(value, str):
        assert isinstance(value, (int, float))
        yield value


@settings(deadline=None)
@given(REPORTS, st.integers(1, 20))
def test_summary_agrees_with_plain_loops(reports: list[Report], capacity: int) -> None:
    summary = folded(reports, capacity).summary()
    expected = loops(reports, capacity)
    assert flat(summary) == {
        name: value if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)
        for name, value in expected["window"].items()
    }
    totals = expected["totals"]
    assert summary.totals.groups == tuple(sum(g["label"] == label for g in totals) for label in ARMS)
    assert summary.totals.informative_groups == tuple(
        sum(g["label"] == label and kind_of(g) == "informative" for g in totals) for label in ARMS
    )
    for kind in KINDS[1:]:
        assert getattr(summary.totals.uninformative, kind) == sum(kind_of(g) == kind for g in totals)
    assert summary.totals.rollouts == sum(len(g["outcomes"]) for g in totals)
    assert summary.totals.generated_groups == len(totals)
    trained = [g for g in totals if not g["reference"] and kind_of(g) == "informative"]
    assert summary.totals.informative_per_generated == (len(trained) / len(totals) if totals else None)


@settings(deadline=None, max_examples=30)
@given(REPORTS, st.integers(1, 20))
def test_folding_the_same_reports_again_gives_the_same_bits(reports: list[Report], capacity: int) -> None:
    first, second = folded(reports, capacity), folded(reports, capacity)
    assert first == second
    assert first.summary() == second.summary()
    assert all(math.isfinite(number) for number in numbers(first.summary()))


def test_bits_survive_a_real_history_and_a_copy_goes_its_own_way() -> None:
    history = training_history(seed=1, steps=40)
    window = folded(history[:20], capacity_groups=500)
    before = window.summary()
    branch = window.copy()
    for report in history[20:]:
        fold(branch, report)
    assert window == folded(history[:20], capacity_groups=500)
    assert window.summary() == before
    assert branch == folded(history, capacity_groups=500)
    assert branch.summary() == folded(history, capacity_groups=500).summary() != before


def test_the_oldest_groups_leave_and_totals_stay() -> None:
    history = [Report(step, {step % 7: Group([0.1, 0.3, step / 53], UNIFORM, step / 60)}) for step in range(53)]
    full = folded(history, capacity_groups=10).summary()
    newest = folded(history[-10:], capacity_groups=10).summary()
    assert dataclasses.replace(full, totals=newest.totals) == newest
    assert full.window_groups == 10
    assert full.totals.generated_groups == 53


def test_a_report_larger_than_the_window_keeps_its_last_groups() -> None:
    report = Report(0, {q: Group([0.0, 1.0] if q >= 90 else [0.0]) for q in range(100)})
    summary = folded([report], capacity_groups=10).summary()
    assert summary.window_groups == summary.arms[TARGETED].informative_groups == 10
    assert summary.totals.generated_groups == 100
    assert summary.totals.uninformative.zero == 90


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [([0.0] * 8, "zero"), ([1.0] * 5, "one"), ([0.5] * 4, "between"), ([0.0], "zero"), ([0.3], "between")],
)
def test_equal_outcomes_are_uninformative_by_reason(outcomes: list[float], reason: str) -> None:
    arm = folded([Report(3, {1: Group(outcomes)})]).summary().arms[TARGETED]
    assert (arm.groups, arm.informative_groups, arm.informative_ratio) == (1, 0, 0.0)
    assert getattr(arm.uninformative, reason) == 1
    assert arm.mean_difficulty == pytest.approx(1 - outcomes[0])


def test_informative_means_differing_by_more_than_a_millionth() -> None:
    report = Report(0, {0: Group([0.4, 0.4 + 2e-6]), 1: Group([0.4, 0.4 + 5e-7]), 2: Group([0.0, 5e-7])})
    arm = folded([report]).summary().arms[TARGETED]
    assert arm.informative_groups == 1
    assert (arm.uninformative.between, arm.uninformative.zero) == (1, 1)


def test_a_group_completed_later_is_judged_as_a_whole() -> None:
    first = Report(2, {5: Group([0.0] * 4, UNIFORM, predicted=0.9)})
    rest = Report(2, {5: Group([1.0] * 4, TARGETED, predicted=0.1)})
    summary = folded([first, rest]).summary()
    arm = summary.arms[UNIFORM]
    assert (arm.groups, arm.informative_groups, arm.mean_difficulty) == (1, 1, 0.5)
    # The second prediction had seen half of the outcome.
    assert arm.mean_predicted_difficulty == 0.9
    assert summary.arms[TARGETED].groups == 0
    assert summary.totals.rollouts == 8
    assert sum(dataclasses.astuple(summary.totals.uninformative)) == 0


def test_a_prediction_that_came_after_the_first_outcomes_is_none() -> None:
    summary = folded([Report(2, {5: Group([0.0])}), Report(2, {5: Group([1.0], predicted=0.5)})]).summary()
    assert summary.predicted_groups == 0
    assert summary.mean_absolute_error is None


def test_a_reference_pass_is_its_own_group() -> None:
    """Merging it into the targeted group would take the prompts selection likes out of the uniform sample."""
    training = Report(1, {0: Group([1.0, 1.0], TARGETED)})
    reference = Report(1, {0: Group([0.0, 1.0]), 1: Group([0.0, 0.0])}, reference=True)
    for order in ([training, reference], [reference, training]):
        summary = folded(order).summary()
        assert (summary.arms[TARGETED].groups, summary.arms[4].groups) == (1, 2)
        assert summary.arms[4].reference
        assert summary.population_success_rate == 0.25
        assert summary.totals.informative_per_generated == 0.0


def test_population_success_rate_is_free_of_selection_bias() -> None:
    """The estimate is centred on the truth and its standard error is honest, however easy the targeted prompts are."""
    rng = np.random.Generator(np.random.Philox(7))
    rates = rng.beta(0.5, 1.0, size=5000)
    easiest = {int(q): Group([1.0] * 8, TARGETED) for q in np.argsort(-rates)[:40]}
    deviations = []
    for _ in range(200):
        drawn = rng.choice(5000, 60, replace=False)
        uniform = {int(q): Group(rng.binomial(1, rates[q], 4).astype(float).tolist(), UNIFORM) for q in drawn}
        reports = [Report(0, easiest), Report(1, uniform)]
        summary = folded(reports).summary()
        assert summary.population_success_rate is not None
        assert summary.population_standard_error is not None
        deviations.append((summary.population_success_rate - rates.mean()) / summary.population_standard_error)
    # Mean of 200 standard deviates has deviation 0.07; their standard deviation has 0.05.
    assert abs(np.mean(deviations)) < 0.28
    assert abs(np.std(deviations) - 1) < 0.2


@pytest.mark.parametrize(("spread", "slope"), [(1.0, 1.0), (2.0, 0.5), (0.5, 2.0)])
def test_calibration_slope_tells_how_far_predictions_are_spread(spread: float, slope: float) -> None:
    rng = np.random.Generator(np.random.Philox(11))
    difficulty = rng.uniform(0.3, 0.7, size=4000)
    predicted = 0.5 + spread * (difficulty - 0.5)
    outcomes = rng.binomial(1, 1 - difficulty[:, None], size=(4000, 8)).astype(float)
    groups = {q: Group(outcomes[q].tolist(), predicted=float(predicted[q])) for q in range(4000)}
    summary = folded([Report(0, groups)]).summary()
    # Standard error of the slope: 0.18 / (spread * 0.115 * sqrt(4000)) = 0.025 / spread; four of them.
    assert summary.calibration_slope == pytest.approx(slope, abs=0.1 / spread)
    assert summary.mean_absolute_error is not None
    if spread == 1.0:
        assert summary.expected_calibration_error is not None
        assert summary.expected_calibration_error < 0.02
        # Nothing is left but the sampling noise of eight rollouts.
        assert summary.brier == pytest.approx(np.mean(difficulty * (1 - difficulty)) / 8, rel=0.1)


def test_an_unvisited_run_has_no_figures_and_no_nan() -> None:
    summary = QualityWindow().summary()
    fold_nothing = folded([Report(0), Report(1, {3: Group([])}, reference=True)])
    assert fold_nothing.summary() == summary
    assert summary.totals.informative_per_generated is None
    assert set(flat(summary).values()) == {0, None}


def test_equal_difficulties_have_no_correlation_but_a_flat_slope() -> None:
    report = Report(0, {q: Group([0.1, 0.1, 0.1], predicted=q / 9) for q in range(10)})
    summary = folded([report]).summary()
    assert summary.pearson is None
    assert summary.calibration_slope == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 3, 50])
def test_no_variation_has_no_correlation(groups: int) -> None:
    """A mean of equal floats need not equal them, so the variance is only almost zero."""
    report = Report(0, {q: Group([0.1, 0.1, 0.1], predicted=0.7) for q in range(groups)})
    summary = folded([report]).summary()
    assert (summary.pearson, summary.calibration_slope) == (None, None)
    assert summary.mean_absolute_error == pytest.approx(0.2)
    assert summary.mean_absolute_error_of_mean == pytest.approx(0.0, abs=1e-12)


def test_a_prediction_beyond_the_unit_interval_or_not_finite_does_no_harm() -> None:
    report = Report(0, {q: Group([0.0, 1.0], predicted=p) for q, p in enumerate([math.inf, -math.inf, 1.0 + 1e-12])})
    summary = folded([report]).summary()
    assert summary.predicted_groups == 1
    assert summary.predicted_difficulties.counts[8] == 1
    assert all(math.isfinite(number) for number in numbers(summary))


def test_difficulties_of_groups_of_eight_fall_on_their_own_bounds() -> None:
    report = Report(0, {k: Group([0.0] * k + [1.0] * (8 - k)) for k in range(9)})
    summary = folded([report]).summary()
    assert summary.difficulties.counts == (1,) * 9 + (0,)
    assert summary.in_band_share == pytest.approx(7 / 9)
    rounded = folded([Report(0, {0: Group([0.9] * 4 + [0.6] * 4)})]).summary()
    assert rounded.difficulties.counts[2] == 1, "1 - (4 * 0.9 + 4 * 0.6) / 8 is 0.25 up to rounding"


@settings(deadline=None)
@given(st.lists(st.integers(0, 200)))
def test_distribution_counts_every_value_once(values: list[int]) -> None:
    bounds = (0, 1, 2, 4, 64)
    distribution = Distribution.of(np.array(values, dtype=np.int64), bounds)
    lower = -1
    for bound, count in zip(bounds, distribution.counts, strict=False):
        assert count == sum(lower < v <= bound for v in values)
        lower = bound
    assert distribution.counts[-1] == sum(v > 64 for v in values)
    assert distribution.total == sum(values)


def test_capacity_must_hold_a_group() -> None:
    with pytest.raises(ValueError, match="capacity_groups"):
        QualityWindow(0)
