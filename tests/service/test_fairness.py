"""Runs that take long leave the others their threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from selector.difficulty.fused.estimator import FusedEstimator
from selector.service import selector_servicer
from tests.service.open_calls import calls_of, until
from tests.service.running import InProcessService

WORKERS = 3
SLOW = 12


def test_slow_estimates_of_many_runs_keep_no_other_run_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More runs than there are threads wait for estimates that never come; all other calls of all runs go on."""
    service = InProcessService(tmp_path / "state", workers=WORKERS)
    begun, released = threading.Semaphore(0), threading.Event()
    estimate = FusedEstimator.estimate

    def slow(estimator: FusedEstimator, *arguments: Any) -> Any:
        begun.release()
        assert released.wait(120)
        return estimate(estimator, *arguments)

    clients = [service.client(f"slow-{i}", timeout_s=120.0) for i in range(SLOW)]
    quick = service.client("quick", timeout_s=60.0)
    for client in (*clients, quick):
        client.create_run({"cool_down_steps": 0})
        client.register_prompts([f"p{i}" for i in range(8)])
    quick.select_batch(0, 2)
    quick.predict_difficulty()
    monkeypatch.setattr(FusedEstimator, "estimate", slow)
    with ThreadPoolExecutor(2 * SLOW) as threads:
        selections: list[Any] = [threads.submit(client.select_batch, 0, 2) for client in clients]
        looks: list[Any] = [threads.submit(client.explain, "p0") for client in clients]
        assert begun.acquire(timeout=60)
        until(lambda: calls_of(service).answering == 2 * SLOW)
        for step in range(3):
            quick.report_outcomes(step, {f"p{step}": [0.0, 1.0]})
            assert quick.get_run().outcome_groups == step + 1
        assert quick.register_prompts(["another"]).added == 1
        # Also an estimate: the last one is used when half of the time is gone.
        assert quick.select_batch(1, 2, timeout_s=2.0).degraded
        assert quick.select_batch(0, 2).prompt_ids
        assert not any(call.done() for call in (*selections, *looks))
        released.set()
        assert all(not selection.result().degraded for selection in selections)
        assert all(look.result().prompt_id == "p0" for look in looks)
    service.close()


def test_what_one_run_is_asked_about_its_history_leaves_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many callers ask, and although such calls take no turns with the run's steps."""
    service = InProcessService(tmp_path / "state", workers=WORKERS + 1)
    released = threading.Event()
    reading: list[str] = []
    read = selector_servicer.prompt_history

    def slow(run: Any, prompt_id: str, limit: int) -> Any:
        reading.append(prompt_id)
        assert released.wait(120)
        return read(run, prompt_id, limit)

    monkeypatch.setattr(selector_servicer, "prompt_history", slow)
    busy, quick = service.client("busy", timeout_s=120.0), service.client("quick", timeout_s=60.0)
    for client in (busy, quick):
        client.create_run()
        client.register_prompts(["p0", "p1"])
    with ThreadPoolExecutor(SLOW) as threads:
        explanations = [threads.submit(busy.explain, "p0") for _ in range(SLOW)]
        until(lambda: calls_of(service).answering == SLOW)
        until(lambda: bool(reading))
        assert quick.select_batch(0, 1).prompt_ids
        # The run itself goes on as well.
        assert busy.select_batch(0, 1).prompt_ids
        assert len(reading) == 1
        released.set()
        assert all(explanation.result().prompt_id == "p0" for explanation in explanations)
    assert not service.server._lanes._lanes
    service.close()
