"""Runs that take long leave the others their threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients import SelectorClient, SelectorError
from selector.difficulty.fused.estimator import FusedEstimator
from selector.run import Run
from selector.runs import Runs
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


@pytest.mark.parametrize(
    ("reader", "call"),
    [
        ("report_request", lambda client: client.report_outcomes(0, {"p0": [0.0, 1.0]})),
        ("training_request", lambda client: client.report_training(0, updates=1)),
        ("select_request", lambda client: client.select_batch(0, 1)),
    ],
)
def test_a_request_that_takes_long_to_read_keeps_no_other_run_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, call: Callable[[SelectorClient], Any]
) -> None:
    service = InProcessService(tmp_path / "state", workers=WORKERS)
    begun, released = threading.Event(), threading.Event()
    read = getattr(selector_servicer, reader)

    def slow(request: Any) -> Any:
        begun.set()
        assert released.wait(120)
        return read(request)

    busy, quick = service.client("busy", timeout_s=120.0), service.client("quick", timeout_s=60.0)
    for client in (busy, quick):
        client.create_run()
        client.register_prompts(["p0"])
    monkeypatch.setattr(selector_servicer, reader, slow)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(call, busy)
        assert begun.wait(60)
        assert quick.get_run().pool.active == 1
        released.set()
        answer.result()
    service.close()


def test_looking_at_a_run_that_is_being_rewound_keeps_no_other_run_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold of the rewound log is done once, in the run's lane, whoever asks for the run meanwhile."""
    service = InProcessService(tmp_path / "state", workers=WORKERS + 1)
    begun, released = threading.Semaphore(0), threading.Event()
    refold = Run._refold

    def slow(run: Run) -> None:
        begun.release()
        assert released.wait(120)
        refold(run)

    busy, quick = service.client("busy", timeout_s=120.0), service.client("quick", timeout_s=60.0)
    for client in (busy, quick):
        client.create_run()
        client.register_prompts(["p0"])
        client.report_outcomes(0, {"p0": [0.0, 1.0]})
    monkeypatch.setattr(Run, "_refold", slow)
    with ThreadPoolExecutor(2) as threads:
        rewound = threads.submit(busy.rewind, 0)
        assert begun.acquire(timeout=60)
        explained = threads.submit(busy.explain, "p0")
        until(lambda: calls_of(service).answering == 2)
        assert quick.get_run().outcome_groups == 1
        released.set()
        rewound.result()
        assert explained.result().own_weight == 0.0
    assert not begun.acquire(blocking=False)
    service.close()


def test_many_new_runs_wait_for_a_slow_fork_with_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = InProcessService(tmp_path / "state", workers=WORKERS)
    begun, released = threading.Event(), threading.Event()
    fork = Runs.fork

    def slow(runs: Runs, *arguments: Any) -> Run:
        begun.set()
        assert released.wait(120)
        return fork(runs, *arguments)

    source, quick = service.client("source", timeout_s=120.0), service.client("quick", timeout_s=60.0)
    for client in (source, quick):
        client.create_run()
        client.register_prompts(["p0"])
    monkeypatch.setattr(Runs, "fork", slow)
    clients = [service.client(f"new-{i}", timeout_s=120.0) for i in range(SLOW)]
    with ThreadPoolExecutor(SLOW + 1) as threads:
        forked = threads.submit(source.fork, "branch", 0)
        assert begun.wait(60)
        created = [threads.submit(client.create_run) for client in clients]
        until(lambda: calls_of(service).answering == SLOW + 1)
        assert quick.select_batch(0, 1).prompt_ids == ("p0",)
        assert not any(run.done() for run in created)
        released.set()
        forked.result()
        assert all(run.result() for run in created)
    service.close()


def test_what_was_prepared_for_a_deleted_run_is_not_put_into_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = InProcessService(tmp_path / "state", workers=WORKERS)
    begun, released = threading.Event(), threading.Event()
    prepare = selector_servicer.prepare

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert released.wait(120)
        return prepare(*arguments)

    client = service.client("run", timeout_s=120.0)
    client.create_run()
    monkeypatch.setattr(selector_servicer, "prepare", slow)
    with ThreadPoolExecutor(1) as threads:
        registered = threads.submit(client.register_prompts, ["p0"])
        assert begun.wait(60)
        client.delete_run()
        client.create_run({"seed": 1})
        released.set()
        with pytest.raises(SelectorError, match="deleted meanwhile"):
            registered.result()
    assert client.get_run().pool.active == 0
    service.close()
