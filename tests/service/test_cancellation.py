"""Callers that go away: what has not begun is not begun, and nobody else waits for what they left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from clients import DeadlineExceeded, SelectorClient
from clients.retry import RetryPolicy
from selector.run import Run
from selector.v1 import selector_service_pb2 as pb
from selector.v1 import selector_service_pb2_grpc as pb_grpc
from tests.service.running import InProcessService


class Blocked:
    """Holds the lane of a run by a GetRun that does not end until released."""

    def __init__(self, service: InProcessService, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._released = threading.Event(), threading.Event()
        retire = Run.retire

        def slow(run: Run, *arguments: Any) -> Any:
            self.entered.set()
            assert self._released.wait(30)
            return retire(run, *arguments)

        monkeypatch.setattr(Run, "retire", slow)
        self._client = service.client(run_id)
        self._thread = threading.Thread(target=lambda: self._client.retire_prompts(["a"]))
        self._thread.start()
        assert self.entered.wait(10)

    def release(self) -> None:
        self._released.set()
        self._thread.join()


@pytest.fixture
def client(own_service: InProcessService) -> SelectorClient:
    made = own_service.client("run")
    made.create_run()
    made.register_prompts(["a", "b"], embeddings=np.eye(2))
    return made


def test_a_cancelled_call_that_waited_for_its_turn_is_not_applied(
    own_service: InProcessService, client: SelectorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(own_service, "run", monkeypatch)
    with grpc.insecure_channel(own_service.address) as channel:
        stub: Any = pb_grpc.SelectorServiceStub(channel)
        call = stub.SelectBatch.future(pb.SelectBatchRequest(run_id="run", step=999, batch_size=1))
        time.sleep(0.3)
        call.cancel()
        time.sleep(0.3)
    blocked.release()
    assert client.get_run().last_step == -1


def test_a_call_that_is_too_late_when_its_turn_comes_is_not_applied(
    own_service: InProcessService, client: SelectorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(own_service, "run", monkeypatch)
    with pytest.raises(DeadlineExceeded):
        own_service.client("run", retry=RetryPolicy(max_attempts=1)).select_batch(999, 1, timeout_s=0.3)
    blocked.release()
    assert client.get_run().last_step == -1


def test_listing_does_not_wait_for_a_busy_run(
    own_service: InProcessService, client: SelectorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_service.client("other").create_run({"seed": 5})
    blocked = Blocked(own_service, "run", monkeypatch)
    listed = {run.run_id: run for run in client.list_runs(timeout_s=4)}
    blocked.release()
    assert set(listed) == {"run", "other"}
    assert listed["other"].config.seed == 5
    assert listed["run"].config.group_size == 8


def test_calls_about_unknown_runs_leave_no_trace(own_service: InProcessService, client: SelectorClient) -> None:
    lanes = own_service.server._lanes
    for i in range(20):
        with pytest.raises(LookupError):
            own_service.client(f"unknown-{i}").select_batch(0, 1)
        with pytest.raises(LookupError):
            own_service.client(f"unknown-{i}").sample_rollouts(0, 1, wait=True, timeout_s=1)
    client.get_run()
    assert set(lanes._used) == {"run"}
    assert not lanes._lanes
    # Tracebacks of the refused calls may still hold on to their frames.
    gc.collect()
    assert not lanes._changes


class SlowEncoder:
    """Takes a while for every batch, and counts the texts it has seen."""

    name, key, width = "slow", "slow", 4

    def __init__(self) -> None:
        self.texts = 0
        self.started = threading.Event()

    def encode(self, texts: list[str], progress: Any = None, cancelled: Callable[[], bool] | None = None) -> np.ndarray:
        self.started.set()
        time.sleep(0.3)
        self.texts += len(texts)
        return np.ones((len(texts), self.width), dtype=np.float32)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[InProcessService, SlowEncoder]]:
    encoder = SlowEncoder()
    monkeypatch.setattr("selector.service.server.load_encoder", lambda *_, **__: encoder)
    running = InProcessService(tmp_path / "state", workers=2)
    yield running, encoder
    running.close()


def test_an_abandoned_registration_stops_and_blocks_nobody(
    slow: tuple[InProcessService, SlowEncoder],
) -> None:
    service, encoder = slow
    other = service.client("other")
    other.create_run()
    for name in "abc":
        leaving = service.client(name, retry=RetryPolicy(max_attempts=1))
        leaving.create_run()
        with pytest.raises(DeadlineExceeded):
            texts = [f"{name}{i}" for i in range(5000)]
            leaving.register_prompts([f"p{i}" for i in range(5000)], texts=texts, timeout_s=1)
        assert other.get_run(timeout_s=5).state == "EMPTY"
        assert leaving.get_run().pool.registered == 0
    time.sleep(1.0)
    seen = encoder.texts
    time.sleep(1.0)
    assert 0 < seen == encoder.texts < 5000
    other.register_prompts(["x"], texts=["x"], timeout_s=20)
    assert other.get_run().pool.active == 1
