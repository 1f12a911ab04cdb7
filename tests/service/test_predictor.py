"""The process that computes estimates, behind a real server."""

from __future__ import annotations

import errno
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import DeadlineExceeded, RetryPolicy, SelectorClient, Unavailable
from selector.predictor.process import ProcessPredictor
from tests.service.running import InProcessService

_PROMPTS = 300


def _trained(service: InProcessService, kill: bool) -> list[tuple[str, ...]]:
    """The batches of a short training; with ``kill``, the predictor's process is killed at every step."""
    client = service.client("r", timeout_s=120.0)
    client.create_run({"group_size": 8, "seed": 3, "replay": {"fresh_fraction": 1.0}})
    ids = [f"p{i}" for i in range(_PROMPTS)]
    client.register_prompts(ids, [f"question {i} with {i % 7} words" for i in range(_PROMPTS)])
    batches = []
    for step in range(5):
        batch = client.select_batch(step, 32)
        assert not batch.degraded
        batches.append(batch.prompt_ids)
        random = np.random.default_rng(step)
        client.report_outcomes(step, {each: (random.random(8) < 0.4).astype(float) for each in batch.prompt_ids})
        if kill:
            _kill(service)
    if kill:
        # Also what is only looked at comes from it.
        assert client.explain(ids[0]).prompt_id == ids[0]
    return batches


def _kill(service: InProcessService) -> None:
    pid = service.server._predictor.pid  # type: ignore[attr-defined]
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def test_batches_are_the_same_wherever_estimates_are_computed_and_whatever_dies(tmp_path: Path) -> None:
    inside = InProcessService(tmp_path / "inside")
    outside = InProcessService(tmp_path / "outside", predictor_threads=1)
    killed = InProcessService(tmp_path / "killed", predictor_threads=1, metrics_listen="127.0.0.1:0")
    try:
        expected = _trained(inside, kill=False)
        assert _trained(outside, kill=False) == expected
        assert _trained(killed, kill=True) == expected
        with urllib.request.urlopen(f"http://{killed.server.metrics_address}/metrics") as page:
            lines = page.read().decode().splitlines()
        starts = next(float(line.split()[1]) for line in lines if line.startswith("selector_predictor_starts_total "))
        assert starts >= 5
    finally:
        for service in (inside, outside, killed):
            service.close()


def test_looks_that_wait_for_an_estimate_keep_nobody_waiting(tmp_path: Path) -> None:
    """The predictor's process stands still, as one of low priority may on a busy machine."""
    service = InProcessService(tmp_path / "state", predictor_threads=1, workers=2)
    try:
        _trained(service, kill=False)
        client, other = service.client("r", timeout_s=60.0), service.client("other", timeout_s=60.0)
        other.create_run({"group_size": 8})
        other.register_prompts(["p"], ["a question"])
        attention = service.client("attention", timeout_s=60.0)
        attention.create_run({"group_size": 8, "estimator": {"name": "ATTENTION"}})
        attention.register_prompts(["p"], embeddings=np.ones((1, 4), dtype=np.float32))
        pid = service.server._predictor.pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        try:
            client.report_outcomes(5, {"p0": [0.0, 1.0]})
            with ThreadPoolExecutor(12) as threads:
                looks: list[Future[Any]] = []
                looks += [threads.submit(client.predict_difficulty, ["p1"], timeout_s=8.0) for _ in range(6)]
                looks += [threads.submit(attention.explain, "p", timeout_s=8.0) for _ in range(6)]
                time.sleep(0.5)
                assert client.select_batch(6, 32, timeout_s=4.0).degraded
                client.report_outcomes(6, {"p0": [0.0, 1.0]}, timeout_s=2.0)
                assert other.get_run(timeout_s=2.0).pool.active == 1
                assert other.select_batch(0, 1, timeout_s=4.0).prompt_ids == ("p",)
                ended = [look.exception() for look in looks]
                assert all(isinstance(each, DeadlineExceeded) for each in ended), ended
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not client.select_batch(7, 32).degraded
        assert client.predict_difficulty(["p1"]).prompt_ids == ("p1",)
    finally:
        service.close()


def test_a_process_that_cannot_be_started_leaves_selections_degraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(threads: int, device: str) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr("selector.predictor.process._Child", failing)
    monkeypatch.setattr("selector.predictor.process._PAUSE_S", 0.0)
    service = InProcessService(tmp_path / "state", predictor_threads=1)
    try:
        client = service.client("r", timeout_s=5.0, retry=RetryPolicy(max_attempts=1))
        client.create_run({"group_size": 8})
        client.register_prompts(["p", "q"], ["a question", "another"])
        assert client.select_batch(0, 1).degraded
        for look in (lambda: client.predict_difficulty(["p"]), lambda: client.explain("p")):
            with pytest.raises(Unavailable, match="the process that computes estimates has ended"):
                look()
    finally:
        service.close()


def test_a_deleted_run_leaves_the_process(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", predictor_threads=1)
    try:
        _trained(service, kill=False)
        predictor = service.server._predictor
        assert isinstance(predictor, ProcessPredictor) and len(predictor._replicas) == 1
        service.client("r").delete_run()
        assert _until(lambda: not predictor._replicas)
    finally:
        service.close()


def _until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def test_a_rewound_run_goes_on_as_it_did_before(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", predictor_threads=1)
    try:
        batches = _trained(service, kill=False)
        client = service.client("r", timeout_s=120.0)
        client.rewind(3)
        assert client.select_batch(3, 32).prompt_ids == batches[3]
        service.restart()
        client = service.client("r", timeout_s=120.0)
        assert client.select_batch(3, 32).prompt_ids == batches[3]
        assert isinstance(client, SelectorClient)
    finally:
        service.close()
