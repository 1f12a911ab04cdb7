"""What the metrics endpoint shows, read back through the parsers of the Prometheus client."""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from selector.embedding.embedder import Embedder
from selector.embedding.metrics import EmbedderCollector
from selector.embedding.store import EmbeddingStore
from selector.metric_families import RunMetrics
from selector.metrics import Metrics
from selector.predictor.metrics import PredictorCollector
from selector.predictor.predictor import LocalPredictor
from tests.quality.runs import Group, Report, run_metrics, training_history

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
# Companions of a documented family that the text format writes as families of their own.
COMPANION = re.compile(r"_(created|gsum|gcount)$")

Sample = tuple[str, tuple[tuple[str, str], ...]]


def served(runs: Iterable[RunMetrics], max_runs: int = 100) -> Metrics:
    held = list(runs)
    return Metrics(CollectorRegistry(), lambda: held, max_runs)


def exposition(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def samples(metrics: Metrics) -> dict[Sample, float]:
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(exposition(metrics))
        for s in family.samples
    }


def of(name: str, **labels: str) -> Sample:
    return name, tuple(sorted(labels.items()))


def families(metrics: Metrics) -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name as exposed; histograms without ``le``."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(exposition(metrics)):
        name = family.name + ("_total" if family.type == "counter" else "")
        if name.startswith("selector_") and not COMPANION.search(name):
            assert name not in found
            found[name] = (family.type, {label for s in family.samples for label in s.labels} - {"le"})
    return found


@pytest.fixture
def busy(tmp_path: Path) -> Metrics:
    """A server on which every metric has a value."""
    metrics = served([run_metrics("a", training_history(1)), run_metrics("b", training_history(2))])
    metrics.registry.register(EmbedderCollector(Embedder(None, EmbeddingStore(tmp_path))))
    metrics.registry.register(PredictorCollector(LocalPredictor()))
    metrics.observe_rpc("SelectBatch", "OK", 0.02)
    with metrics.in_flight("SelectBatch"):
        pass
    return metrics


def test_values_are_those_of_the_run(busy: Metrics) -> None:
    run = run_metrics("a", training_history(1))
    shown = samples(busy)
    targeted, uniform = run.quality.arms[1], run.quality.arms[2]
    expected = {
        of("selector_groups_total", run="a", arm="targeted"): run.quality.totals.groups[1],
        of("selector_groups_total", run="a", arm="reference"): 64,
        of("selector_informative_ratio", run="a", arm="targeted"): targeted.informative_ratio,
        of("selector_informative_ratio", run="a", arm="uniform"): uniform.informative_ratio,
        of("selector_prediction_pearson", run="a"): run.quality.pearson,
        of("selector_population_success_ratio", run="a"): run.quality.population_success_rate,
        of("selector_prompts", run="a", status="ineligible"): 5,
        of("selector_shortfalls_total", run="a", reason="leased"): 5,
        of("selector_replay_evictions_total", run="b", reason="capacity"): 30,
        of("selector_replay_effective_sample_size_ratio", run="b"): 0.7,
        of("selector_reference_due", run="b"): 0,
        of("selector_runs"): 2,
        of("selector_runs_not_exported"): 0,
        of("selector_rpc_total", method="SelectBatch", code="OK"): 1,
    }
    assert {key: shown.get(key) for key in expected} == pytest.approx(expected)
    assert targeted.informative_ratio != uniform.informative_ratio


def test_distributions_are_cumulative_by_bound(busy: Metrics) -> None:
    shown = samples(busy)
    ages = {le: shown[of("selector_replay_age_steps_bucket", run="a", le=le)] for le in ("0.0", "1.0", "2.0", "4.0")}
    assert ages == {"0.0": 1, "1.0": 2, "2.0": 2, "4.0": 4}
    assert shown[of("selector_replay_age_steps_bucket", run="a", le="64.0")] == 4
    assert shown[of("selector_replay_age_steps_bucket", run="a", le="+Inf")] == 5
    groups = run_metrics("a", training_history(1)).quality.window_groups
    assert shown[of("selector_difficulty_bucket", run="a", le="1.0")] == groups


def test_names_types_and_labels_follow_the_conventions(busy: Metrics) -> None:
    allowed = {"run", "arm", "reason", "status", "method", "code", "result", "version", "python", "direction", "way"}
    for name, (kind, labels) in families(busy).items():
        assert re.fullmatch(r"selector_[a-z_]+", name)
        assert kind in {"counter", "gauge", "histogram"}
        assert name.endswith("_total") == (kind == "counter")
        assert labels <= allowed


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say(busy: Metrics) -> None:
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(busy), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_document_lists_exactly_what_is_exposed(busy: Metrics) -> None:
    documented = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `selector_"):
            name, kind, labels, meaning, remedy = cells
            assert meaning
            assert remedy
            documented[name.strip("`")] = (
                kind.replace("gauge histogram", "histogram"),
                set(re.findall(r"`(\w+)`", labels)),
            )
    assert documented == families(busy)


def test_the_queries_of_the_document_name_exposed_metrics(busy: Metrics) -> None:
    queries = re.findall(r"```promql\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(queries) >= 5
    shown = {name for name, _ in samples(busy)}
    for query in queries:
        named = set(re.findall(r"selector_\w+", query))
        assert named
        assert named <= shown


def test_what_is_unknown_is_absent_and_nothing_is_nan() -> None:
    unknown = ("coverage", "largest_domain_share", "effective_sample_size", "max_importance_weight", "clip_fraction")
    metrics = served(
        [
            run_metrics("new", (), **dict.fromkeys(unknown)),
            run_metrics("odd", training_history(1), effective_sample_size=math.nan, max_importance_weight=math.inf),
        ]
    )
    shown = samples(metrics)
    assert not [key for key, value in shown.items() if key[0].startswith("selector_") and not math.isfinite(value)]
    new = {name for name, labels in shown if ("run", "new") in labels}
    odd = {name for name, labels in shown if ("run", "odd") in labels}
    assert {name for name in odd - new if "prediction" in name} == {
        "selector_prediction_pearson",
        "selector_prediction_absolute_error",
        "selector_prediction_absolute_error_of_mean",
        "selector_prediction_brier",
        "selector_prediction_calibration_slope",
        "selector_prediction_calibration_error",
    }
    assert not {"selector_pool_coverage_ratio", "selector_training_clip_ratio"} & new
    assert not {"selector_replay_effective_sample_size_ratio", "selector_replay_importance_weight_max"} & (new | odd)
    assert shown[of("selector_window_groups", run="new", arm="targeted")] == 0


def test_prompts_never_become_labels() -> None:
    reports = [Report(0, {q: Group([0.0, 1.0]) for q in range(900)})]
    assert len(exposition(served([run_metrics("a", reports)]))) == pytest.approx(
        len(exposition(served([run_metrics("a", [Report(0, {0: Group([0.0, 1.0])})])]))), rel=0.02
    )


def test_only_the_most_recently_active_runs_are_exported() -> None:
    runs = [run_metrics(f"run-{i}", last_active=1000.0 + i % 4) for i in range(10)]
    metrics = served(runs, max_runs=3)
    shown = samples(metrics)
    assert {dict(labels)["run"] for _, labels in shown if "run" in dict(labels)} == {"run-3", "run-7", "run-2"}
    assert (shown[of("selector_runs")], shown[of("selector_runs_not_exported")]) == (10, 7)


def test_a_rewind_never_makes_a_counter_fall() -> None:
    def state(dropped: int) -> list[RunMetrics]:
        return [run_metrics("a", dropped_rollouts=dropped)]

    held: list[RunMetrics] = []
    metrics = Metrics(CollectorRegistry(), lambda: held)
    exported = []
    for dropped in (10, 25, 5, 5, 12, 40):
        held[:] = state(dropped)
        exported.append(samples(metrics)[of("selector_dropped_rollouts_total", run="a")])
    assert exported == [10, 25, 25, 25, 32, 60]
    held.clear()
    samples(metrics)
    held[:] = state(2)
    assert samples(metrics)[of("selector_dropped_rollouts_total", run="a")] == 2, "a deleted run's counters are gone"


def test_methods_that_are_not_served_share_one_label() -> None:
    """Anyone can call /any/Method: names must not grow without bound."""
    metrics = Metrics(CollectorRegistry(), lambda: [], methods=["SelectBatch", "GetRun"])
    for i in range(50):
        metrics.observe_rpc(f"Stranger{i}", "UNIMPLEMENTED", 0.001)
        with metrics.in_flight(f"Stranger{i}"):
            pass
    metrics.observe_rpc("GetRun", "NOT_FOUND", 0.001)
    counts = {labels: value for (name, labels), value in samples(metrics).items() if name == "selector_rpc_total"}
    assert counts == {
        (("code", "OK"), ("method", "GetRun")): 0,
        (("code", "OK"), ("method", "SelectBatch")): 0,
        (("code", "NOT_FOUND"), ("method", "GetRun")): 1,
        (("code", "UNIMPLEMENTED"), ("method", "other")): 50,
    }


def test_rpcs_from_many_threads_are_all_counted() -> None:
    metrics = served([])
    with ThreadPoolExecutor(8) as threads:
        for _ in range(1000):
            threads.submit(metrics.observe_rpc, "SelectBatch", "OK", 0.004)
    shown = samples(metrics)
    assert shown[of("selector_rpc_total", method="SelectBatch", code="OK")] == 1000
    assert shown[of("selector_rpc_seconds_bucket", method="SelectBatch", le="0.0025")] == 0
    assert shown[of("selector_rpc_seconds_bucket", method="SelectBatch", le="0.005")] == 1000


def test_in_flight_counts_also_calls_that_fail() -> None:
    metrics = served([])
    key = of("selector_rpc_in_flight", method="SelectBatch")
    with pytest.raises(KeyError), metrics.in_flight("SelectBatch"):
        assert samples(metrics)[key] == 1
        raise KeyError
    assert samples(metrics)[key] == 0


def test_build_info_and_the_process_are_shown() -> None:
    metrics = Metrics(CollectorRegistry(), lambda: [], build={"schema": "3"})
    shown = samples(metrics)
    (info,) = [dict(labels) for name, labels in shown if name == "selector_build_info"]
    assert info["schema"] == "3"
    assert {"version", "python"} < info.keys()
    assert shown[of("process_resident_memory_bytes")] > 1e6


def test_one_registry_takes_one_server() -> None:
    metrics = served([])
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(metrics.registry, lambda: [])


def fetch(port: int, accept: str) -> tuple[str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode(), response.headers["Content-Type"]


def test_http_serves_both_formats_until_closed(busy: Metrics) -> None:
    server = busy.start_http("127.0.0.1", 0)
    try:
        assert server.port > 0
        plain, plain_type = fetch(server.port, "text/plain")
        strict, strict_type = fetch(server.port, OPENMETRICS)
    finally:
        server.close()
    assert plain_type.startswith("text/plain")
    assert strict_type.startswith("application/openmetrics-text")
    assert "selector_replay_age_steps_bucket" in plain
    types = {family.name: family.type for family in parse_openmetrics(strict)}
    assert types["selector_replay_age_steps"] == "gaugehistogram"
    assert types["selector_groups"] == "counter"
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", server.port))


def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            served([]).start_http("127.0.0.1", listener.getsockname()[1])


def test_max_runs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_runs"):
        served([], max_runs=0)
