"""The process that computes estimates: the same figures, whatever happens to it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.config import EstimatorConfig, ReferenceConfig, RunConfig
from selector.difficulty.estimate import Estimate, OutcomeBatch, PoolFeatures
from selector.difficulty.registry import estimator_of
from selector.estimates import EstimateKeeper
from selector.predictor import memory
from selector.predictor.predictor import PredictorLost
from selector.predictor.process import ProcessPredictor
from selector.state import RunState
from tests.difficulty.adapters import random_adapter
from tests.difficulty.simulation import features_of

_SIZE, _WIDTH = 3000, 24


@pytest.fixture
def predictor() -> Iterator[ProcessPredictor]:
    """One whose child ends with the test."""
    made = ProcessPredictor()
    yield made
    made.close()


def features(size: int = _SIZE, version: int = 1) -> PoolFeatures:
    """Of a pool that fills more than one tile."""
    random = np.random.default_rng(0)
    columns = features_of(
        size,
        embeddings=random.normal(size=(size, _WIDTH)).astype(np.float32),
        surface=random.normal(size=(size, 9)).astype(np.float32),
        signals={"a": random.normal(size=size)},
    )
    return replace(columns, version=version)


def config(name: str, adapter: str = "") -> RunConfig:
    """Of a run with that estimator."""
    return RunConfig(
        estimator=EstimatorConfig(name=name, adapter=adapter, embedding_components=4),
        reference=ReferenceConfig(size=64),
    )


def told(state: RunState, change: OutcomeBatch | np.ndarray) -> None:
    """A change of the estimator, as ``RunState.apply`` makes it."""
    if isinstance(change, OutcomeBatch):
        state.estimator.observe(change)
    else:
        state.estimator.forget(change)
    state.evidence_version += 1
    if state.changes is not None:
        state.changes.append(change)


def report(step: int, size: int = _SIZE) -> OutcomeBatch:
    """Of 64 prompts."""
    random = np.random.default_rng(step)
    return OutcomeBatch(
        step=step,
        reference=False,
        prompt=np.sort(random.choice(size, 64, replace=False)).astype(np.int32),
        trials=np.full(64, 8.0),
        successes=random.integers(0, 9, 64).astype(np.float64),
        uniform=np.ones(64, dtype=bool),
        population=np.full(64, np.nan),
    )


def assert_same(found: Estimate, expected: Estimate) -> None:
    """Bit for bit."""
    assert found.step == expected.step
    for name in ("difficulty", "standard_error", "own_weight", "basis", "population"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("name", ["FUSED", "ATTENTION", "TRACKER"])
def test_it_computes_what_the_runs_own_estimator_does(predictor: ProcessPredictor, name: str) -> None:
    adapter = random_adapter(0, _WIDTH, 16) if name == "ATTENTION" else None
    chosen = config(name)
    state, run = RunState(chosen, estimator_of(chosen, adapter)), predictor.of_run(chosen, adapter, "cpu")
    other = RunState(chosen, estimator_of(chosen, adapter))
    other_run = predictor.of_run(chosen, adapter, "cpu")
    pool = features()
    for step in range(6):
        told(state, report(step))
        if step == 2:
            told(state, np.arange(100, dtype=np.int32))
        if step == 3:
            # More prompts, and another signal of those that there were.
            pool = features(_SIZE + 500, version=2)
        if step == 4:
            pool = replace(pool, version=3, signals={"a": -pool.signals["a"]})
        assert_same(run.submit(state, pool, step + 1).result(), state.estimator.copy().estimate(pool, step + 1))
        expected = state.estimator.copy().references(pool, step + 1, 7, 5)
        assert run.references(state, pool, step + 1, 7, 5).result() == expected
        # Another run in between, of which nothing gets into this one.
        told(other, report(step + 50))
        assert_same(other_run.submit(other, pool, step + 1).result(), other.estimator.copy().estimate(pool, step + 1))
    assert predictor.starts == 1


def test_what_is_reported_later_is_not_in_an_estimate_that_was_asked_for_before(predictor: ProcessPredictor) -> None:
    chosen, pool = config("FUSED"), features()
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    told(state, report(0))
    expected = state.estimator.copy().estimate(pool, 1)
    first = run.submit(state, pool, 1)
    told(state, report(1))
    second = run.submit(state, pool, 2)
    assert_same(first.result(), expected)
    assert_same(second.result(), state.estimator.copy().estimate(pool, 2))


def test_a_process_that_is_killed_is_started_again_with_everything_it_knew(predictor: ProcessPredictor) -> None:
    chosen, pool = config("FUSED"), features()
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    keeper = EstimateKeeper(run, time.monotonic)
    for step in range(4):
        told(state, report(step))
        answer = keeper.current(state, pool, step + 1, None)
        assert not answer.degraded
        assert_same(answer.estimate, state.estimator.copy().estimate(pool, step + 1))
        assert predictor.pid is not None
        os.kill(predictor.pid, signal.SIGKILL)
    assert predictor.starts == 4


def test_a_process_that_never_lives_leaves_the_last_estimate(
    predictor: ProcessPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, pool = config("FUSED"), features()
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    keeper = EstimateKeeper(run, time.monotonic)
    told(state, report(0))
    first = keeper.current(state, pool, 1, None)
    assert predictor.pid is not None
    os.kill(predictor.pid, signal.SIGKILL)
    monkeypatch.setattr("selector.predictor.process.sys.executable", "/bin/false")
    monkeypatch.setattr("selector.predictor.process._PAUSE_S", 0.0)
    told(state, report(1))
    # Whoever waits first for what is computed, as calls do, comes to an end too.
    while (awaited := keeper.computing(state, pool, 2)) is not None:
        with pytest.raises(PredictorLost):
            awaited.result()
    answer = keeper.current(state, pool, 2, None)
    assert answer.degraded and answer.estimate is first.estimate
    monkeypatch.undo()
    answer = keeper.current(state, pool, 2, None)
    assert not answer.degraded
    assert_same(answer.estimate, state.estimator.copy().estimate(pool, 2))


@pytest.mark.parametrize("where", ["received", "region"])
def test_a_moment_without_memory_or_descriptors_is_survived(
    predictor: ProcessPredictor, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In the server, while an answer is read, or a job sent."""
    chosen, pool = config("FUSED"), features(20_000)
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    keeper = EstimateKeeper(run, time.monotonic)
    told(state, report(0))
    keeper.current(state, pool, 1, None)
    sound = getattr(memory, where)

    def failing(*arguments: Any) -> Any:
        monkeypatch.setattr(memory, where, sound)
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(memory, where, failing)
    told(state, report(1))
    # Another pool: large arrays are sent, too.
    other = replace(pool, version=2, surface=pool.surface.copy())
    answer = keeper.current(state, other, 2, None)
    assert not answer.degraded and getattr(memory, where) is sound
    assert_same(answer.estimate, state.estimator.copy().estimate(other, 2))
    assert predictor.starts == 2


def test_runs_that_had_to_make_room_are_sent_anew(
    predictor: ProcessPredictor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("selector.predictor.process._MOST_REPLICAS", 2)
    chosen, pool = config("TRACKER"), features()
    runs = [(RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")) for _ in range(4)]
    keepers = [EstimateKeeper(run, time.monotonic) for _, run in runs]
    for step in range(3):
        for number, ((state, _), keeper) in enumerate(zip(runs, keepers, strict=True)):
            told(state, report(step + 10 * number))
            answer = keeper.current(state, pool, step + 1, None)
            assert not answer.degraded
            assert_same(answer.estimate, state.estimator.copy().estimate(pool, step + 1))
    assert predictor.starts == 1 and len(predictor._replicas) == 2 and not caplog.records


def test_a_state_that_was_rebuilt_replaces_the_old_one(predictor: ProcessPredictor) -> None:
    chosen, pool = config("FUSED"), features()
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    for step in range(3):
        told(state, report(step))
        run.submit(state, pool, step + 1).result()
    rewound = RunState(chosen, estimator_of(chosen, None))
    told(rewound, report(0))
    run.forget()
    assert_same(run.submit(rewound, pool, 1).result(), rewound.estimator.copy().estimate(pool, 1))
    assert predictor.starts == 1


def test_an_error_of_an_estimator_comes_back_and_the_next_job_is_done(predictor: ProcessPredictor) -> None:
    chosen, pool = config("FUSED"), features()
    state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
    told(state, report(0))
    broken = replace(pool, version=9, surface=pool.surface[:5])
    with pytest.raises(RuntimeError, match="Error"):
        run.submit(state, broken, 1).result()
    assert_same(run.submit(state, pool, 1).result(), state.estimator.copy().estimate(pool, 1))
    assert predictor.starts == 1


def test_runs_asked_for_from_several_threads_do_not_mix(predictor: ProcessPredictor) -> None:
    chosen, pool = config("TRACKER"), features()

    def train(number: int) -> None:
        state, run = RunState(chosen, estimator_of(chosen, None)), predictor.of_run(chosen, None, "cpu")
        for step in range(5):
            told(state, report(step + 10 * number))
            assert_same(run.submit(state, pool, step + 1).result(), state.estimator.copy().estimate(pool, step + 1))
        run.forget()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(train, range(8)))


def test_the_child_ends_when_the_server_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(_SERVER)
    clone = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, str(program)], cwd=clone, stdout=subprocess.PIPE, env=_found(clone)
    ) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        server.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and _status(child) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


# It is killed while its child computes something long.
_SERVER = """
import time
from tests.predictor.test_process import *

chosen, pool = config("FUSED"), features(200_000)
state = RunState(chosen, estimator_of(chosen, None))
predictor = ProcessPredictor()
run = predictor.of_run(chosen, None, "cpu")
told(state, report(0))
run.submit(state, features(), 1).result()
run.submit(state, pool, 2)
print(predictor.pid, flush=True)
time.sleep(600)
"""


def _found(clone: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(clone)}


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
