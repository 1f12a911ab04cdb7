"""The process that computes estimates, behind a real server."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path

import numpy as np

from clients import SelectorClient
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
