"""The metrics endpoint: what every run and the server itself show to Prometheus.

Run metrics are read from a provider when Prometheus scrapes, so that nothing has to be kept in step with the runs.
Label ``run`` is bounded: beyond ``max_runs`` the least recently active runs are left out and counted. No label ever
holds a prompt id. A value that is None or not finite is absent.

Counters never fall. A run's own totals may (RewindRun takes reports back); the exported counter then stands still and
grows again with the total. Figures of the sliding window, and what completing a group can lower, are gauges.

``FAMILIES`` is the table of run metrics; ``docs/metrics.md`` explains each of them.
"""

from __future__ import annotations

import heapq
import math
import platform
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from selector import __version__
from selector.quality import ArmQuality, Distribution, Quality, UninformativeGroups

AGE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64)
TIMES_SAMPLED_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64)
RPC_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

OTHER_METHOD = "other"


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
        encoded_texts: texts the service embedded itself.
        estimate_age_steps: last step - step of the newest outcome in the estimate.
        shortfalls: prompts missing from selections, by reason.
        skipped_rollouts: ABORTED or UNSCORABLE.
        late_reports: groups reported for a step older than the latest selection's; they count all the same.
        largest_domain_share: of the fresh prompts of the latest training selection.
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
    encoded_texts: int = 0
    largest_domain_share: float | None = None
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
    _counter("selector_encoded_texts_total", "Texts the service embedded itself.", lambda r: r.encoded_texts),
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


class RunCollector(Collector):
    """Reads the runs when scraped."""

    def __init__(self, provider: Callable[[], Iterable[RunMetrics]], max_runs: int) -> None:
        self._provider = provider
        self._max_runs = max_runs
        self._lock = threading.Lock()
        # Per run and sample: the total as last read and the counter as last exported.
        self._counters: dict[str, dict[tuple[str, tuple[str, ...]], tuple[float, float]]] = {}

    def describe(self) -> Iterator[Metric]:
        """The families without samples, so that a registry can refuse a second collector."""
        yield from (self._read(family, []) for family in FAMILIES)
        yield from self._counts(0, 0)

    def collect(self) -> Iterator[Metric]:
        """All families, for the most recently active runs."""
        runs = list(self._provider())
        exported = heapq.nsmallest(self._max_runs, runs, key=lambda run: (-run.last_active, run.run_id))
        with self._lock:
            metrics: list[Metric] = [self._read(family, exported) for family in FAMILIES]
            for gone in self._counters.keys() - {run.run_id for run in runs}:
                del self._counters[gone]
        yield from metrics
        yield from self._counts(len(runs), len(runs) - len(exported))

    def _counts(self, runs: int, left_out: int) -> Iterator[Metric]:
        yield GaugeMetricFamily("selector_runs", "Runs on this server.", value=runs)
        yield GaugeMetricFamily("selector_runs_not_exported", "Runs beyond the limit on label run.", value=left_out)

    def _read(self, family: Family | DistributionFamily, runs: Sequence[RunMetrics]) -> Metric:
        if isinstance(family, DistributionFamily):
            return _histogram(family, runs)
        metric = family.type(family.name, family.help, labels=["run", *family.labels])
        for run in runs:
            for labels, value in family.read(run):
                if value is None or not math.isfinite(value):
                    continue
                if family.type is CounterMetricFamily:
                    value = self._counted(run.run_id, family.name, labels, value)
                metric.add_metric([run.run_id, *labels], float(value))
        return metric

    def _counted(self, run_id: str, name: str, labels: tuple[str, ...], total: float) -> float:
        counters = self._counters.setdefault(run_id, {})
        before, exported = counters.get((name, labels), (0.0, 0.0))
        exported += max(0.0, total - before)
        counters[name, labels] = total, exported
        return exported


class MetricsServer:
    """A running metrics endpoint."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.host = str(server.server_address[0])
        self.port = server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Metrics:
    """All metrics of one server process."""

    def __init__(
        self,
        registry: CollectorRegistry,
        provider: Callable[[], Iterable[RunMetrics]],
        max_runs: int = 100,
        *,
        methods: Collection[str] | None = None,
        build: Mapping[str, str] | None = None,
    ) -> None:
        """Register everything with a registry.

        Args:
            provider: the runs as of now; called at every scrape, from the thread that serves it.
            max_runs: how many runs are exported.
            methods: names of the RPCs served; calls of any other name, which strangers choose, count as "other". None
                trusts every name.
            build: further labels of ``selector_build_info``.
        """
        if max_runs < 1:
            raise ValueError(f"max_runs must be at least 1, got {max_runs}")
        self.registry = registry
        self._methods = None if methods is None else frozenset(methods)
        self._rpcs = Counter("selector_rpc_total", "RPCs answered.", ["method", "code"], registry=registry)
        self._seconds = Histogram(
            "selector_rpc_seconds", "Time to answer.", ["method"], buckets=RPC_SECONDS_BOUNDS, registry=registry
        )
        self._in_flight = Gauge("selector_rpc_in_flight", "RPCs being answered.", ["method"], registry=registry)
        for method in sorted(self._methods or ()):
            # A rate needs the zero before the first call.
            self._rpcs.labels(method, "OK")
        registry.register(RunCollector(provider, max_runs))
        info = {"version": __version__, "python": platform.python_version(), **(build or {})}
        Info("selector_build", "Versions of the server.", registry=registry).info(info)
        if registry is not REGISTRY:
            for process_collector in (ProcessCollector, PlatformCollector, GCCollector):
                process_collector(registry=registry)

    def observe_rpc(self, method: str, code: str, seconds: float) -> None:
        """Count an RPC that was answered.

        Args:
            method: its name, such as ``SelectBatch``.
            code: name of its gRPC status, such as ``OK``.
            seconds: it took.
        """
        method = self._known(method)
        self._rpcs.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    def in_flight(self, method: str) -> AbstractContextManager[None]:
        """Count an RPC as being answered for as long as the context lasts."""
        return self._in_flight.labels(self._known(method)).track_inprogress()

    def start_http(self, host: str, port: int) -> MetricsServer:
        """Serve ``/metrics`` in a thread of its own.

        Args:
            port: 0 = any free one.

        Raises:
            OSError: the address cannot be bound.
        """
        return MetricsServer(*start_http_server(port, host, self.registry))

    def _known(self, method: str) -> str:
        return method if self._methods is None or method in self._methods else OTHER_METHOD


def _histogram(family: DistributionFamily, runs: Sequence[RunMetrics]) -> GaugeHistogramMetricFamily:
    metric = GaugeHistogramMetricFamily(family.name, family.help, labels=["run"])
    for run in runs:
        distribution = family.read(run)
        bounds = [*(str(float(bound)) for bound in distribution.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(distribution.counts)), strict=True))
        metric.add_metric([run.run_id], buckets, distribution.total)
    return metric
