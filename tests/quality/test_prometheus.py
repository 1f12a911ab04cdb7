"""A real Prometheus scrapes the endpoint, and PromQL gives the figures of the runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from selector.metric_families import RunMetrics
from selector.metrics import Metrics, MetricsServer
from tests.quality.prometheus_server import StartPrometheus
from tests.quality.runs import fold, folded, run_metrics, training_history

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


class Training:
    """Two runs that move on by a report, and one RPC, every tenth of a second."""

    def __init__(self) -> None:
        self._histories = {"a": training_history(1, steps=200), "b": training_history(2, steps=200)}
        self._windows = {run_id: folded(history[:30]) for run_id, history in self._histories.items()}
        self._reports = 30
        self._lock = threading.Lock()
        self.metrics = Metrics(CollectorRegistry(), self.runs, methods=["SelectBatch"])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def runs(self) -> list[RunMetrics]:
        with self._lock:
            return [run_metrics(run_id, quality=window.summary()) for run_id, window in self._windows.items()]

    def start(self) -> MetricsServer:
        self._thread.start()
        return self.metrics.start_http("127.0.0.1", 0)

    def finish(self) -> None:
        """All reports at once."""
        self.stop()
        while self._reports < len(self._histories["a"]):
            self._advance()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _train(self) -> None:
        while not self._over.wait(0.1):
            self._advance()
            self.metrics.observe_rpc("SelectBatch", "OK", 0.02)

    def _advance(self) -> None:
        with self._lock:
            for run_id, history in self._histories.items():
                for report in history[self._reports : self._reports + 1]:
                    fold(self._windows[run_id], report)
            self._reports += 1


@pytest.fixture
def training() -> Iterator[tuple[Training, int]]:
    made = Training()
    server = made.start()
    yield made, server.port
    made.stop()
    server.close()


def test_promql_answers_with_the_figures_of_the_runs(
    prometheus: StartPrometheus, training: tuple[Training, int]
) -> None:
    made, port = training
    server = prometheus([f"127.0.0.1:{port}"])
    made.finish()
    settled = server.wait_for('selector_groups_total{run="a",arm="targeted"} == 24 * 200')
    assert len(settled) == 1

    ratios = {
        (labels["run"], labels["arm"]): value
        for labels, value in server.query('selector_informative_ratio{arm=~"targeted|uniform"}')
    }
    expected = {(run.run_id, arm.label): arm.informative_ratio for run in made.runs() for arm in run.quality.arms[1:3]}
    assert ratios == pytest.approx(expected)
    assert all(ratios[run, "targeted"] > ratios[run, "uniform"] for run in "ab")

    (groups,) = [value for _, value in server.query('selector_difficulty_bucket{run="a",le="+Inf"}')]
    assert groups == made.runs()[0].quality.window_groups


def test_rates_count_calls_and_groups(prometheus: StartPrometheus, training: tuple[Training, int]) -> None:
    _, port = training
    server = prometheus([f"127.0.0.1:{port}"])
    # At most one call in a tenth of a second; extrapolation to the window's edges adds a little.
    ((_, calls),) = server.wait_for('sum(rate(selector_rpc_total{method="SelectBatch",code="OK"}[5s])) > 2')
    assert calls < 13
    ((_, median),) = server.wait_for("histogram_quantile(0.5, sum by (le) (rate(selector_rpc_seconds_bucket[5s]))) > 0")
    assert 0.01 < median < 0.025


def test_a_rewind_is_no_burst_of_groups(prometheus: StartPrometheus) -> None:
    """Prometheus takes a counter that falls for one that began again at zero."""
    history = training_history(1, steps=40)
    long, short = run_metrics("a", history), run_metrics("a", history[: len(history) // 2])
    held = [long]
    metrics = Metrics(CollectorRegistry(), lambda: held)
    endpoint = metrics.start_http("127.0.0.1", 0)
    try:
        server = prometheus([f"127.0.0.1:{endpoint.port}"])
        server.wait_for("selector_last_step == 39")
        held[:] = [short]
        server.wait_for("selector_last_step < 25")
        ((_, grown),) = server.wait_for('increase(selector_groups_total{arm="targeted"}[1m])')
        assert grown == 0
    finally:
        endpoint.close()


def test_the_queries_of_the_document_are_valid(prometheus: StartPrometheus, training: tuple[Training, int]) -> None:
    """With shorter ranges, so that they have an answer after seconds instead of hours."""
    _, port = training
    server = prometheus([f"127.0.0.1:{port}"])
    server.wait_for("count_over_time(up[10s]) > 5")
    queries = re.findall(r"```promql\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    answers = {}
    for query in queries:
        soon = re.sub(r"offset 1h", "offset 2s", re.sub(r"\[\d+m\]", "[5s]", query))
        answers[query] = server.query(soon)
    silent = [query for query, answer in answers.items() if not answer]
    assert len(silent) == 2, "nothing fails and no reference pass is due"
    assert all('code!="OK"' in query or "reference_due" in query for query in silent)
    gain = {(labels["run"], labels["arm"]): value for labels, value in answers[queries[0]]}
    assert gain["a", "targeted"] > gain["a", "uniform"]
