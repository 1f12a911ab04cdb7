"""The metrics endpoint: what every run and the server itself show to Prometheus.

Run metrics are read from a provider when Prometheus scrapes, so that nothing has to be kept in step with the runs.
Label ``run`` is bounded: beyond ``max_runs`` the least recently active runs are left out and counted. No label ever
holds a prompt id. A value that is None or not finite is absent.

Counters never fall. A run's own totals may (RewindRun takes reports back); the exported counter then stands still and
grows again with the total. Figures of the sliding window, and what completing a group can lower, are gauges.

The run metrics are those of ``selector.metric_families``; ``docs/metrics.md`` explains each of them.
"""

from __future__ import annotations

import heapq
import math
import platform
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
from selector.metric_families import FAMILIES, DistributionFamily, Family, RunMetrics

RPC_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

OTHER_METHOD = "other"


class RunCollector(Collector):
    """Reads the runs when scraped."""

    def __init__(
        self,
        provider: Callable[[], Iterable[RunMetrics]],
        max_runs: int,
        run_ids: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._provider = provider
        self._run_ids = run_ids
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
            there = {run.run_id for run in runs}.union(() if self._run_ids is None else self._run_ids())
            for gone in self._counters.keys() - there:
                del self._counters[gone]
        yield from metrics
        yield from self._counts(len(there), len(there) - len(exported))

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
        run_ids: Callable[[], Collection[str]] | None = None,
        build: Mapping[str, str] | None = None,
    ) -> None:
        """Register everything with a registry.

        Args:
            provider: the runs as of now; called at every scrape, from the thread that serves it.
            max_runs: how many runs are exported.
            methods: names of the RPCs served; calls of any other name, which strangers choose, count as "other". None
                trusts every name.
            run_ids: of all runs there are; None = those that the provider gives.
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
        self._carried = Counter(
            "selector_replay_carried_groups_total",
            "Groups pushed and sampled, by the way they took.",
            ["direction", "way"],
            registry=registry,
        )
        for direction in ("push", "sample"):
            for way in ("memory", "connection"):
                self._carried.labels(direction, way)
        for method in sorted(self._methods or ()):
            # A rate needs the zero before the first call.
            self._rpcs.labels(method, "OK")
        registry.register(RunCollector(provider, max_runs, run_ids))
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

    def carried(self, direction: str, by_memory: bool, groups: int) -> None:
        """Count groups that came or went, whatever became of them.

        Args:
            direction: ``push`` or ``sample``.
            by_memory: through the caller's memory; False = over the connection.
        """
        self._carried.labels(direction, "memory" if by_memory else "connection").inc(groups)

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
