"""What the encoder is doing, for the metrics endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from selector.embedding.embedder import Embedder


class EmbedderCollector(Collector):
    """Reads an embedder's figures when Prometheus scrapes."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def collect(self) -> Iterator[Metric]:
        """The figures as of now."""
        texts = CounterMetricFamily(
            "selector_encoder_texts_total", "Texts asked for: embedded, or known already.", labels=["result"]
        )
        texts.add_metric(["embedded"], self._embedder.embedded)
        texts.add_metric(["reused"], self._embedder.reused)
        yield texts
        yield CounterMetricFamily(
            "selector_encoder_seconds_total", "Seconds spent in the encoder.", value=self._embedder.seconds
        )
        yield GaugeMetricFamily(
            "selector_encoder_pending_texts",
            "Texts that registrations in progress still have to embed.",
            value=self._embedder.pending,
        )
