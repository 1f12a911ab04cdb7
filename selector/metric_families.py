"""What every run shows to Prometheus: the figures, and the table of metrics that are made of them.

``FAMILIES`` is the table; ``docs/metrics.md`` explains each of them. A figure that is None is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from selector.quality import ArmQuality, Distribution, Quality, UninformativeGroups

AGE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64)
TIMES_SAMPLED_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class ReplayMetrics:
    """The replay buffer of a run; counts of events since the run began.

    Attributes:
        tombstone_bytes: of groups that left the buffer and are kept for RewindRun.
        ages: age in steps of the groups held, by ``AGE_BOUNDS``.
        times_sampled: of the groups held, by ``TIMES_SAMPLED_BOUNDS``.
        evictions: groups that left, by reason.
        refusals: groups refused, by reason.
    """

    groups: int
    bytes: int
    tombstone_bytes: int
    ages: Distribution
    times_sampled: Distribution
    pushed_groups: int
    sampled_groups: int
    evictions: Mapping[str, int]
    refusals: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """Everything a run exposes; counts of events since the run began.

    Attributes:
        last_active: Unix time in seconds of the latest call for the run; decides which runs are exported.
        last_step: largest step seen, -1 = none.
        coverage: share of active prompts selected at least once; None without active prompts.
        max_steps_since_selected: over active prompts.
        starved_prompts: active, and not selected for more than ``max_unselected_steps``.
        embedded_prompts: prompts with an embedding.
        twin_prompts: prompts that are a twin of one registered before them.
        estimate_age_steps: last step - step of the newest outcome in the estimate.
        shortfalls: prompts missing from selections, by reason.
        skipped_rollouts: ABORTED or UNSCORABLE.
        late_reports: groups reported for a step older than the latest selection's; they count all the same.
        largest_domain_share: of the fresh prompts of the latest training selection.
        replay_allowed: part of the configured share of replay that the guard leaves.
        effective_sample_size: share, as last reported by the trainer; so are the next two.
    """

    run_id: str
    last_active: float
    last_step: int
    quality: Quality
    active_prompts: int
    retired_prompts: int
    ineligible_prompts: int
    coverage: float | None
    max_steps_since_selected: int
    starved_prompts: int
    open_leases: int
    estimate_age_steps: int
    reference_due: bool
    degraded_selections: int
    dropped_rollouts: int
    clipped_outcomes: int
    skipped_rollouts: int
    late_reports: int
    replay: ReplayMetrics
    shortfalls: Mapping[str, int]
    embedded_prompts: int = 0
    twin_prompts: int = 0
    largest_domain_share: float | None = None
    replay_allowed: float = 1.0
    effective_sample_size: float | None = None
    max_importance_weight: float | None = None
    clip_fraction: float | None = None


_Samples = Iterable[tuple[tuple[str, ...], float | None]]


@dataclass(frozen=True)
class Family:
    """One metric of a run.

    Attributes:
        name: as exposed, with ``_total`` for counters.
        labels: beside ``run``.
        read: label values and value of every sample.
    """

    type: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[RunMetrics], _Samples]


@dataclass(frozen=True)
class DistributionFamily:
    """One distribution of a run, over what is held at the moment; exposed as a gauge histogram."""

    name: str
    help: str
    read: Callable[[RunMetrics], Distribution]


def _gauge(name: str, text: str, read: Callable[[RunMetrics], float | None]) -> Family:
    return Family(GaugeMetricFamily, name, text, (), lambda run: [((), read(run))])


def _counter(name: str, text: str, read: Callable[[RunMetrics], int]) -> Family:
    return Family(CounterMetricFamily, name, text, (), lambda run: [((), read(run))])


def _by_reason(name: str, text: str, read: Callable[[RunMetrics], Mapping[str, int]]) -> Family:
    def samples(run: RunMetrics) -> _Samples:
        return [((reason,), count) for reason, count in sorted(read(run).items())]

    return Family(CounterMetricFamily, name, text, ("reason",), samples)


def _by_arm(name: str, text: str, read: Callable[[ArmQuality], float | None]) -> Family:
    def samples(run: RunMetrics) -> _Samples:
        return [((arm.label,), read(arm)) for arm in run.quality.arms]

    return Family(GaugeMetricFamily, name, text, ("arm",), samples)


def _total_by_arm(name: str, text: str, read: Callable[[Quality], Sequence[int]]) -> Family:
    def samples(run: RunMetrics) -> _Samples:
        counts = read(run.quality)
        return [((arm.label,), count) for arm, count in zip(run.quality.arms, counts, strict=True)]

    return Family(CounterMetricFamily, name, text, ("arm",), samples)


def _reasons(groups: UninformativeGroups) -> list[tuple[str, int]]:
    return [("constant_zero", groups.zero), ("constant_one", groups.one), ("constant_between", groups.between)]


def _window_uninformative(run: RunMetrics) -> _Samples:
    return [((arm.label, why), count) for arm in run.quality.arms for why, count in _reasons(arm.uninformative)]


def _total_uninformative(run: RunMetrics) -> _Samples:
    return [((why,), count) for why, count in _reasons(run.quality.totals.uninformative)]


def _prompts(run: RunMetrics) -> _Samples:
    counts = {"active": run.active_prompts, "retired": run.retired_prompts, "ineligible": run.ineligible_prompts}
    return [((status,), count) for status, count in counts.items()]


FAMILIES: tuple[Family | DistributionFamily, ...] = (
    # Groups reported
    _total_by_arm("selector_groups_total", "Groups reported.", lambda q: q.totals.groups),
    _total_by_arm(
        "selector_informative_groups_total", "Groups whose outcomes differ.", lambda q: q.totals.informative_groups
    ),
    Family(
        GaugeMetricFamily,
        "selector_uninformative_groups",
        "Groups since the run began whose outcomes were all the same.",
        ("reason",),
        _total_uninformative,
    ),
    _gauge(
        "selector_informative_per_generated_ratio",
        "Informative training groups per group generated since the run began, reference passes included.",
        lambda r: r.quality.totals.informative_per_generated,
    ),
    _counter("selector_rollouts_total", "Rollouts that counted.", lambda r: r.quality.totals.rollouts),
    _counter("selector_skipped_rollouts_total", "Aborted or unscorable rollouts.", lambda r: r.skipped_rollouts),
    _counter("selector_dropped_rollouts_total", "Rollouts with an outcome of NaN.", lambda r: r.dropped_rollouts),
    _counter("selector_clipped_outcomes_total", "Outcomes beyond outcome_range.", lambda r: r.clipped_outcomes),
    _counter("selector_late_groups_total", "Groups reported for an earlier step.", lambda r: r.late_reports),
    # The sliding window, by arm
    _by_arm("selector_window_groups", "Groups in the window.", lambda a: a.groups),
    _by_arm("selector_window_informative_groups", "Informative groups in the window.", lambda a: a.informative_groups),
    Family(
        GaugeMetricFamily,
        "selector_window_uninformative_groups",
        "Groups in the window whose outcomes were all the same.",
        ("arm", "reason"),
        _window_uninformative,
    ),
    _by_arm("selector_informative_ratio", "Informative share of the window.", lambda a: a.informative_ratio),
    _by_arm("selector_in_band_ratio", "Share of difficulty in [0.125, 0.875].", lambda a: a.in_band_share),
    _by_arm("selector_difficulty_mean", "Mean measured difficulty.", lambda a: a.mean_difficulty),
    _by_arm("selector_predicted_difficulty_mean", "Mean predicted difficulty.", lambda a: a.mean_predicted_difficulty),
    _by_arm("selector_absolute_error_mean", "Mean error of predicted difficulty.", lambda a: a.mean_absolute_error),
    # The sliding window as a whole
    DistributionFamily("selector_difficulty", "Measured difficulty.", lambda r: r.quality.difficulties),
    DistributionFamily(
        "selector_predicted_difficulty", "Predicted difficulty.", lambda r: r.quality.predicted_difficulties
    ),
    _gauge("selector_prediction_groups", "Groups that had a prediction.", lambda r: r.quality.predicted_groups),
    _gauge("selector_prediction_pearson", "Correlation with the measured.", lambda r: r.quality.pearson),
    _gauge("selector_prediction_absolute_error", "Mean error.", lambda r: r.quality.mean_absolute_error),
    _gauge(
        "selector_prediction_absolute_error_of_mean",
        "Mean error of always predicting the mean.",
        lambda r: r.quality.mean_absolute_error_of_mean,
    ),
    _gauge("selector_prediction_brier", "Mean squared error per group.", lambda r: r.quality.brier),
    _gauge(
        "selector_prediction_calibration_slope",
        "Slope of measured on predicted difficulty.",
        lambda r: r.quality.calibration_slope,
    ),
    _gauge(
        "selector_prediction_calibration_error",
        "Expected calibration error over ten bins.",
        lambda r: r.quality.expected_calibration_error,
    ),
    _gauge(
        "selector_population_success_ratio",
        "Mean outcome of uniform draws, free of selection bias.",
        lambda r: r.quality.population_success_rate,
    ),
    _gauge(
        "selector_population_success_standard_error",
        "Standard error of the population success rate.",
        lambda r: r.quality.population_standard_error,
    ),
    # Pool and selection
    Family(GaugeMetricFamily, "selector_prompts", "Prompts by status.", ("status",), _prompts),
    _gauge("selector_embedded_prompts", "Prompts with an embedding.", lambda r: r.embedded_prompts),
    _gauge("selector_twin_prompts", "Prompts that are a twin of one registered before.", lambda r: r.twin_prompts),
    _gauge("selector_pool_coverage_ratio", "Share of active prompts ever selected.", lambda r: r.coverage),
    _gauge("selector_steps_since_selected_max", "Over the active prompts.", lambda r: r.max_steps_since_selected),
    _gauge("selector_starved_prompts", "Active and not selected for too long.", lambda r: r.starved_prompts),
    _gauge("selector_open_leases", "Prompts selected and not yet reported.", lambda r: r.open_leases),
    _gauge("selector_last_step", "Largest step seen, -1 before the first.", lambda r: r.last_step),
    _gauge("selector_run_last_active_timestamp_seconds", "Latest call for the run.", lambda r: r.last_active),
    _gauge("selector_estimate_age_steps", "Steps since the newest outcome.", lambda r: r.estimate_age_steps),
    _gauge("selector_reference_due", "1 while a reference pass is due.", lambda r: r.reference_due),
    _counter(
        "selector_degraded_selections_total", "Selections from an older estimate.", lambda r: r.degraded_selections
    ),
    _by_reason("selector_shortfalls_total", "Prompts missing from selections.", lambda r: r.shortfalls),
    _gauge("selector_largest_domain_ratio", "Of the latest selection.", lambda r: r.largest_domain_share),
    # Replay
    _gauge("selector_replay_groups", "Groups held.", lambda r: r.replay.groups),
    _gauge("selector_replay_bytes", "Bytes of the groups held.", lambda r: r.replay.bytes),
    _gauge("selector_replay_tombstone_bytes", "Bytes kept for RewindRun.", lambda r: r.replay.tombstone_bytes),
    DistributionFamily("selector_replay_age_steps", "Age of the groups held.", lambda r: r.replay.ages),
    DistributionFamily(
        "selector_replay_times_sampled", "Times the groups held were sampled.", lambda r: r.replay.times_sampled
    ),
    _counter("selector_replay_pushed_groups_total", "Groups stored.", lambda r: r.replay.pushed_groups),
    _counter("selector_replay_sampled_groups_total", "Groups returned.", lambda r: r.replay.sampled_groups),
    _by_reason("selector_replay_evictions_total", "Groups that left the buffer.", lambda r: r.replay.evictions),
    _by_reason("selector_replay_refusals_total", "Groups refused.", lambda r: r.replay.refusals),
    _gauge(
        "selector_replay_allowed_ratio",
        "Part of the configured share that min_effective_sample_size leaves.",
        lambda r: r.replay_allowed,
    ),
    _gauge(
        "selector_replay_effective_sample_size_ratio",
        "Of the replayed rows, as last reported.",
        lambda r: r.effective_sample_size,
    ),
    _gauge(
        "selector_replay_importance_weight_max",
        "Of the replayed rows, as last reported.",
        lambda r: r.max_importance_weight,
    ),
    _gauge("selector_training_clip_ratio", "Share of tokens clipped, as last reported.", lambda r: r.clip_fraction),
)
