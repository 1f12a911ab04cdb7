"""Listings and scrapes of many runs: bounded work, shared by everybody who asks at the same time."""

from __future__ import annotations

import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from selector.run import Run
from selector.service import selector_servicer, server
from tests.service.open_calls import until
from tests.service.running import InProcessService
from tests.service.trainer import scraped


def _lines(service: InProcessService, beginning: str) -> list[str]:
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=30) as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith(beginning)]


def test_a_scrape_computes_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = InProcessService(tmp_path / "state", metrics_listen="127.0.0.1:0", metrics_max_runs=5)
    computed: list[str] = []
    compute = server.run_metrics

    def counted(run: Run, last_active: float) -> Any:
        computed.append(run.row.run_id)
        return compute(run, last_active)

    monkeypatch.setattr("selector.service.server.run_metrics", counted)
    for i in range(20):
        service.client(f"run-{i:02d}").create_run()
    assert _lines(service, "selector_runs") == ["selector_runs 20.0", "selector_runs_not_exported 15.0"]
    assert sorted(computed) == [f"run-{i:02d}" for i in range(15, 20)]
    service.client("run-03").get_run()
    assert scraped(service.metrics_address, "run-03")
    assert not scraped(service.metrics_address, "run-15")
    service.close()


def test_whoever_asks_at_the_same_time_looks_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is busy gets one listing to make, however many callers ask, and it sees what they wrote before."""
    service = InProcessService(tmp_path / "state")
    clients = [service.client(f"run-{i}") for i in range(3)]
    for client in clients:
        client.create_run()
    made: Counter[str] = Counter()
    entered, released = threading.Event(), threading.Event()
    retire, make = Run.retire, selector_servicer.run_message

    def slow(run: Run, *arguments: Any) -> Any:
        entered.set()
        assert released.wait(60)
        return retire(run, *arguments)

    def counted(run: Run) -> Any:
        made[run.row.run_id] += 1
        return make(run)

    busy = clients[0]
    busy.register_prompts(["a", "b"])
    monkeypatch.setattr(Run, "retire", slow)
    monkeypatch.setattr("selector.service.selector_servicer.run_message", counted)
    with ThreadPoolExecutor(9) as executor:
        retiring = executor.submit(busy.retire_prompts, ["a"])
        assert entered.wait(60)
        listings = [executor.submit(clients[1].list_runs, timeout_s=50) for _ in range(8)]
        until(lambda: made["run-1"] >= 1 and service.server._calls.places[""] == 8)
        released.set()
        retiring.result()
        for listing in listings:
            assert {run.run_id: run.pool.retired for run in listing.result()}["run-0"] == 1
    assert made["run-0"] == 1
    assert {run.run_id: run.pool.retired for run in clients[1].list_runs()}["run-0"] == 1
    assert made["run-0"] == 2
    until(lambda: not service.server._lanes._looks)
    service.close()
