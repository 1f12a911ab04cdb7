"""A selection is the same however the pool is cut, and evaluates few prompts of a large one."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.noise import gumbels, noise_key, uniforms
from selector.selection import part as part_module
from selector.selection.choose import Choice, Window, choose_from, choose_train
from selector.selection.part import Candidates, PoolPart
from selector.selection.scores import log_weights

_STEP = 20

configs = st.builds(
    lambda **changes: replace(RunConfig(), **changes),
    score=st.sampled_from(["LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM"]),
    score_evaluation=st.sampled_from(["EXPECTATION", "THOMPSON"]),
    score_temperature=st.sampled_from([0.01, 0.3, 1.0, 30.0]),
    max_unselected_steps=st.integers(0, 15),
    cool_down_steps=st.integers(0, 3),
    strict_cool_down=st.booleans(),
    group_size=st.integers(1, 16),
    seed=st.integers(0, 2**40),
)
windows = st.none() | st.builds(Window, st.integers(0, 10), st.integers(1, 5))


def pool(size: int, seed: int, eligible: float = 0.8, cooling: float = 0.2) -> tuple[Estimate, Candidates]:
    """Of random prompts."""
    random = np.random.default_rng(seed)
    difficulty = random.random(size)
    estimate = Estimate(
        step=3,
        difficulty=difficulty,
        standard_error=random.random(size) * 0.3 + 1e-3,
        own_weight=np.zeros(size),
        basis=np.zeros(size, dtype=np.uint8),
        population=1 - difficulty,
    )
    return estimate, Candidates(
        random.random(size) < eligible, random.random(size) < cooling, random.integers(-1, _STEP, size)
    )


def cut(config: RunConfig, estimate: Estimate, candidates: Candidates, cuts: Sequence[int]) -> list[PoolPart]:
    """Parts of the pool that begin and end at ``cuts``; some may be empty."""
    return [
        PoolPart(
            config,
            estimate.of(slice(start, stop)),
            Candidates(
                candidates.eligible[start:stop], candidates.cooling[start:stop], candidates.last_selected[start:stop]
            ),
            start,
        )
        for start, stop in itertools.pairwise(cuts)
    ]


def evenly(size: int, count: int) -> list[int]:
    """Where ``count`` parts begin and end."""
    return [size * index // count for index in range(count + 1)]


def assert_same(found: Choice, expected: Choice) -> None:
    """Bit for bit, in order."""
    np.testing.assert_array_equal(found.prompt, expected.prompt)
    np.testing.assert_array_equal(found.arm, expected.arm)
    np.testing.assert_array_equal(found.probability, expected.probability)


@settings(max_examples=150, deadline=None)
@given(configs, windows, st.integers(1, 3000), st.integers(0, 200), st.floats(0, 1), st.floats(0, 1), st.data())
def test_any_cut_of_the_pool_gives_the_same_batch(
    config: RunConfig,
    window: Window | None,
    size: int,
    count: int,
    eligible: float,
    cooling: float,
    data: st.DataObject,
) -> None:
    estimate, candidates = pool(size, config.seed % 1000, eligible, cooling)
    whole = choose_train(config, estimate, candidates, count, _STEP, 0, window)
    at = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    for cuts in ([0, *at, size], evenly(size, 2), evenly(size, 7), evenly(size, 64)):
        assert_same(choose_from(config, cut(config, estimate, candidates, cuts), count, _STEP, 0, window), whole)


@settings(max_examples=100, deadline=None)
@given(configs, st.integers(1, 3000), st.integers(1, 100), st.floats(0, 1))
def test_lazy_evaluation_finds_what_evaluating_everything_does(
    config: RunConfig, size: int, count: int, eligible: float
) -> None:
    estimate, candidates = pool(size, config.seed % 1000, eligible)
    among = np.flatnonzero(candidates.eligible & ~candidates.cooling)
    key, thompson = noise_key(config.seed, "select"), noise_key(config.seed, "thompson")
    draws = uniforms(thompson, 0, size) if config.score_evaluation == "THOMPSON" else None
    keys = (log_weights(config, estimate, draws) + gumbels(key, 0, size))[among]
    best = np.lexsort((among, -keys))[:count]
    found = PoolPart(config, estimate, candidates).targeted(key, thompson, count)
    np.testing.assert_array_equal(found.prompt, among[best])
    np.testing.assert_array_equal(found.keys[0], keys[best])


def test_groups_of_one_are_never_informative_whatever_rounding_leaves() -> None:
    config = replace(RunConfig(), score="INFORMATIVE", group_size=1)
    for seed in range(20):
        estimate, candidates = pool(3000, seed)
        assert np.ptp(log_weights(config, estimate, None)) == 0
        whole = choose_train(config, estimate, candidates, 40, _STEP, 0, None)
        assert_same(choose_from(config, cut(config, estimate, candidates, evenly(3000, 7)), 40, _STEP, 0, None), whole)


@pytest.mark.parametrize("evaluation", ["EXPECTATION", "THOMPSON"])
def test_few_prompts_of_a_large_pool_are_evaluated(monkeypatch: pytest.MonkeyPatch, evaluation: str) -> None:
    size, count = 200_000, 256
    estimate, candidates = pool(size, 0, eligible=1.0, cooling=0.0)
    evaluated: list[int] = []

    def counted(config: RunConfig, some: Estimate, draws: np.ndarray | None) -> np.ndarray:
        evaluated.append(len(some.difficulty))
        return log_weights(config, some, draws)

    monkeypatch.setattr(part_module, "log_weights", counted)
    config = replace(RunConfig(), score_evaluation=evaluation)
    assert len(choose_train(config, estimate, candidates, count, _STEP, 0, None).prompt) == count
    assert 0 < sum(evaluated) < size // 10


def test_noise_ties_go_by_position_in_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven values of noise for all prompts: most are equal."""
    words = np.array([2**63 + index * 2**40 for index in range(7)], dtype=np.uint64)
    monkeypatch.setattr(part_module, "raw", lambda key, start, count: words[np.arange(start, start + count) % 7])
    config = replace(RunConfig(), score="UNIFORM", cool_down_steps=3)
    estimate, candidates = pool(500, 0)
    whole = choose_train(config, estimate, candidates, 40, _STEP, 0, None)
    for count in (2, 7, 64):
        parts = cut(config, estimate, candidates, evenly(500, count))
        assert_same(choose_from(config, parts, 40, _STEP, 0, None), whole)


class RemotePart:
    """A part in another process."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._end.send((name, arguments))
            return self._end.recv()

        return call


def _hold(end: Connection, config: RunConfig, estimate: Estimate, candidates: Candidates, start: int) -> None:
    """The other process."""
    part = PoolPart(config, estimate, candidates, start)
    while True:
        try:
            name, arguments = end.recv()
        except EOFError:
            return
        end.send(getattr(part, name)(*arguments))


@contextmanager
def remote(config: RunConfig, estimate: Estimate, candidates: Candidates, cuts: Sequence[int]) -> Iterator[list[Any]]:
    """Parts in a process each."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for start, stop in itertools.pairwise(cuts):
        ours, its = context.Pipe()
        columns = (
            candidates.eligible[start:stop],
            candidates.cooling[start:stop],
            candidates.last_selected[start:stop],
        )
        arguments = (its, config, estimate.of(slice(start, stop)), Candidates(*columns), start)
        process = context.Process(target=_hold, args=arguments, daemon=True)
        process.start()
        its.close()
        ends.append(ours)
        processes.append(process)
    try:
        yield [RemotePart(end) for end in ends]
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join(30)
            assert process.exitcode == 0


def test_parts_in_other_processes_give_the_same_batch() -> None:
    estimate, candidates = pool(5000, 1)
    for config, window in (
        (replace(RunConfig(), max_unselected_steps=12), None),
        (replace(RunConfig(), score="NEAR_TARGET", cool_down_steps=0), Window(18, 3)),
    ):
        whole = choose_train(config, estimate, candidates, 100, _STEP, 0, window)
        with remote(config, estimate, candidates, [0, 1700, 1700, 5000]) as parts:
            assert_same(choose_from(config, parts, 100, _STEP, 0, window), whole)
