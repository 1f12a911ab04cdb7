"""Estimates that are computed on a device of torch's, behind a real server."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from clients import SelectorClient
from selector.difficulty.kernel import TOLERANCE
from selector.predictor import child
from selector.predictor.channel import Channel
from tests.difficulty.test_kernel import DEVICES
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import contents

_PROMPTS, _WIDTH, _BATCH = 300, 16, 32
_NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def _begun(client: SelectorClient) -> None:
    client.create_run({"group_size": 8, "seed": 3, "estimator": {"name": "ATTENTION"}, "reference": {"size": 64}})
    embeddings = np.random.default_rng(0).normal(size=(_PROMPTS, _WIDTH)).astype(np.float32)
    client.register_prompts([f"p{i}" for i in range(_PROMPTS)], embeddings=embeddings)


def _step(client: SelectorClient, step: int) -> tuple[object, ...]:
    batch = client.select_batch(step, _BATCH)
    assert not batch.degraded
    random = np.random.default_rng(step)
    client.report_outcomes(step, {each: (random.random(8) < 0.4).astype(float) for each in batch.prompt_ids})
    return contents(batch)


@pytest.mark.parametrize("device", DEVICES)
def test_predictions_are_those_of_numpy_and_batches_the_same_after_a_restart(tmp_path: Path, device: str) -> None:
    services = [
        InProcessService(tmp_path / str(number), predictor_threads=1, predictor_device=each)
        for number, each in enumerate(["cpu", device, device])
    ]
    plain, through, restarted = services
    try:
        for service in services:
            _begun(service.client("r", timeout_s=120.0))
        reported = _step(plain.client("r"), 0)
        for service in (through, restarted):
            assert _step(service.client("r"), 0) == reported
        predicted = [service.client("r").predict_difficulty().predicted_difficulties for service in services]
        assert np.ptp(predicted[0]) > 0.01
        np.testing.assert_allclose(predicted[1], predicted[0], atol=TOLERANCE)
        batches = []
        for step in range(1, 6):
            restarted.restart()
            batches.append((_step(through.client("r"), step), _step(restarted.client("r", timeout_s=120.0), step)))
        assert [one for one, _ in batches] == [other for _, other in batches]
        # A process that died is replaced by one on the same device.
        os.kill(through.server._predictor.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert _step(through.client("r"), 6) == _step(restarted.client("r"), 6)
    finally:
        for service in services:
            service.close()


def test_torch_is_loaded_by_the_predictor_s_process_alone(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "state", "--predictor-device=torch-cpu")
    try:
        with service.client("r", timeout_s=120.0) as client:
            _begun(client)
            _step(client, 0)
            _step(client, 1)
        server = service.process.pid
        children = [
            int(pid) for task in Path(f"/proc/{server}/task").glob("*/children") for pid in task.read_text().split()
        ]
        assert len(children) == 1
        assert "libtorch" in Path(f"/proc/{children[0]}/maps").read_text()
        assert "libtorch" not in Path(f"/proc/{server}/maps").read_text()
    finally:
        assert service.terminate() == 0


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_an_encoder_s_device_that_is_not_there_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr("selector.service.server.load_encoder", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match=rf"^--device {device} (is|needs) "):
        InProcessService(tmp_path, encoder="default", device=device)


@_NO_GPU
def test_a_server_does_not_start_on_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*cannot start: predictor_device cuda needs .*; torch"):
        ServiceProcess(tmp_path / "state", "--predictor-device=cuda")
    # Nothing is left of the process that was asked, nor of the server.
    service = InProcessService(tmp_path / "state", predictor_threads=1)
    service.close()


def test_a_server_that_computes_by_itself_takes_no_device(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="predictor_device torch-cpu: predictor_threads must not be 0"):
        InProcessService(tmp_path / "state", predictor_threads=0, predictor_device="torch-cpu")


@pytest.mark.parametrize(("device", "ends"), [("torch-cpu", True), ("cpu", False)])
def test_a_process_whose_device_failed_ends(monkeypatch: pytest.MonkeyPatch, device: str, ends: bool) -> None:
    """After an error a GPU may be of no use to a process any more; what numpy fails at, the next job may not."""

    def failing(_replicas: child.Replicas, _job: child.Job) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(child.Replicas, "do", failing)
    ours, its = (Channel(end) for end in socket.socketpair())
    try:
        ours.send(child.Job(1, None, (), {}, "estimate", (), ()))
        if ends:
            with pytest.raises(RuntimeError, match="illegal memory access"):
                child.serve(its, device, 1)
            assert ours.receive() == (True, None)
            return
        ours._end.shutdown(socket.SHUT_WR)
        child.serve(its, device, 1)
        assert ours.receive() == (True, None)
        well, error = ours.receive()
        assert not well and "illegal memory access" in str(error)
    finally:
        ours.close()
        its.close()
