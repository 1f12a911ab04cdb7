"""What the predictor is doing, for the metrics endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from selector.predictor.predictor import Predictor


class PredictorCollector(Collector):
    """Reads a predictor's figures when Prometheus scrapes."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def collect(self) -> Iterator[Metric]:
        """The figures as of now."""
        yield CounterMetricFamily(
            "selector_predictor_starts_total",
            "Starts of the process that computes estimates, the first one included.",
            value=self._predictor.starts,
        )
