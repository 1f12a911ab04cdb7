"""Selection frequencies and reported probabilities, against exact enumeration of sampling without replacement.

In bulk through ``choose_train``, which a batch is a pure function of, and in fewer draws through the server.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from clients import SelectorClient
from selector.config import RunConfig, resolve
from selector.difficulty.estimate import Estimate
from selector.selection.choose import TARGETED, UNIFORM, Choice, Window, choose_train
from selector.selection.part import Candidates
from tests.service.running import InProcessService
from tests.service.trainer import prompts

POOL = 7
# Beta posteriors of the success rate: from hopeless to solved, from sure to unknown.
SUCCESSES = np.array([1.0, 2.0, 5.0, 3.0, 1.0, 7.0, 9.0])
FAILURES = np.array([9.0, 7.0, 5.0, 1.0, 1.0, 3.0, 1.0])

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "learnable": {"score": "LEARNABLE", "score_temperature": 0.7},
    "informative": {"score": "INFORMATIVE", "score_temperature": 0.4, "group_size": 4},
    "near-target": {"score": "NEAR_TARGET", "selection_temperature": 0.2, "target_difficulty": 0.4},
    "uniform": {"score": "UNIFORM"},
}
# Draws per test; the long form resolves deviations four times smaller.
TIMES = pytest.mark.parametrize("times", [1200, pytest.param(20_000, marks=pytest.mark.slow)])
PLAIN = {"cool_down_steps": 0, "lease_steps": 0, "reference": {"mode": "NONE"}}


def _weights(config: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Weights (n,) by numerical integration over the posteriors Beta(a, b), from the scores' definitions."""
    score = config["score"]
    if score == "UNIFORM":
        return np.ones(len(a))
    if score == "NEAR_TARGET":
        distance = np.abs(b / (a + b) - config["target_difficulty"])
        return np.exp(-distance / config["selection_temperature"])
    if score == "LEARNABLE":

        def value(p: float) -> float:
            return p * (1 - p) ** 2
    else:
        size = config["group_size"]

        def value(p: float) -> float:
            return 1 - p**size - (1 - p) ** size

    expected = [
        integrate.quad(lambda p, x=x, y=y: value(p) * stats.beta.pdf(p, x, y), 0, 1)[0]
        for x, y in zip(a, b, strict=True)
    ]
    return np.asarray(expected) ** (1 / config["score_temperature"])


def _subsets(weights: np.ndarray, count: int) -> dict[frozenset[int], float]:
    """Probability of every subset of ``count`` prompts drawn one after the other, in proportion to their weights."""
    found: Counter[frozenset[int]] = Counter()
    for order in itertools.permutations(range(len(weights)), count):
        chance, left = 1.0, weights.sum()
        for at in order:
            chance *= weights[at] / left
            left -= weights[at]
        found[frozenset(order)] += chance  # type: ignore[assignment]
    return dict(found)


def _inclusion(subsets: Mapping[frozenset[int], float], size: int) -> np.ndarray:
    """Probability (size,) that a subset holds each prompt."""
    return np.array([sum(chance for subset, chance in subsets.items() if at in subset) for at in range(size)])


def _fits(observed: Counter[frozenset[int]], expected: Mapping[frozenset[int], float]) -> bool:
    """Whether a chi-squared test accepts the frequencies; rare subsets are taken together."""
    assert set(observed) <= set(expected)
    total = observed.total()
    rare = {subset for subset, chance in expected.items() if chance * total < 8}
    common = [subset for subset in expected if subset not in rare]
    counts = [*(observed[subset] for subset in common), sum(observed[subset] for subset in rare)]
    chances = [*(expected[subset] * total for subset in common), sum(expected[subset] * total for subset in rare)]
    if chances[-1] < 8:
        counts[-2:], chances[-2:] = [sum(counts[-2:])], [sum(chances[-2:])]
    return bool(stats.chisquare(counts, np.array(chances) * total / sum(chances)).pvalue > 1e-3)


def _estimate(a: np.ndarray = SUCCESSES, b: np.ndarray = FAILURES) -> Estimate:
    size = len(a)
    return Estimate(
        step=0,
        difficulty=b / (a + b),
        standard_error=stats.beta.std(a, b),
        own_weight=np.zeros(size),
        basis=np.ones(size, dtype=np.uint8),
        population=np.full(size, 0.5),
    )


def _everything(last_selected: np.ndarray | None = None) -> Candidates:
    last = np.full(POOL, -1) if last_selected is None else last_selected
    return Candidates(np.ones(POOL, dtype=bool), np.zeros(POOL, dtype=bool), last)


def _draws(config: RunConfig, count: int, times: int) -> list[Choice]:
    estimate, candidates = _estimate(), _everything()
    return [choose_train(config, estimate, candidates, count, step, 0, None) for step in range(times)]


@TIMES
@pytest.mark.parametrize("name", CONFIGS)
def test_batches_are_drawn_in_proportion_to_their_weights_without_replacement(name: str, times: int) -> None:
    config = resolve({**PLAIN, **CONFIGS[name], "seed": 11})
    observed = Counter(frozenset(choice.prompt.tolist()) for choice in _draws(config, 3, times))
    assert _fits(observed, _subsets(_weights(CONFIGS[name], SUCCESSES, FAILURES), 3))


def test_seeds_are_as_independent_as_steps() -> None:
    estimate, candidates = _estimate(), _everything()
    observed: Counter[frozenset[int]] = Counter()
    for seed in range(800):
        config = resolve({**PLAIN, **CONFIGS["learnable"], "seed": seed})
        observed[frozenset(choose_train(config, estimate, candidates, 3, 5, 0, None).prompt.tolist())] += 1
    assert _fits(observed, _subsets(_weights(CONFIGS["learnable"], SUCCESSES, FAILURES), 3))


def test_the_uniform_arm_is_drawn_uniformly_and_the_rest_from_what_it_leaves() -> None:
    config = resolve({**CONFIGS["near-target"], "cool_down_steps": 0, "reference": {"fraction": 0.5}, "seed": 3})
    weights = _weights(CONFIGS["near-target"], SUCCESSES, FAILURES)
    uniform: Counter[frozenset[int]] = Counter()
    both: Counter[frozenset[int]] = Counter()
    for choice in _draws(config, 2, 1500):
        first = int(choice.prompt[choice.arm == UNIFORM][0])
        second = int(choice.prompt[choice.arm == TARGETED][0])
        uniform[frozenset([first])] += 1
        both[frozenset([first, POOL + second])] += 1
        assert choice.probability[choice.arm == UNIFORM].tolist() == [1 / POOL]
    assert _fits(uniform, {frozenset([at]): 1 / POOL for at in range(POOL)})
    expected = {
        frozenset([i, POOL + j]): weights[j] / (weights.sum() - weights[i]) / POOL
        for i, j in itertools.permutations(range(POOL), 2)
    }
    assert _fits(both, expected)


def test_the_order_within_a_batch_says_nothing() -> None:
    """A batch is cut into minibatches in the order it comes in: each prompt must be as likely in every place."""
    config = resolve({**CONFIGS["near-target"], "cool_down_steps": 0, "reference": {"fraction": 0.25}, "seed": 4})
    draws = _draws(config, 4, 1000)
    for at in range(POOL):
        places = Counter(int(np.flatnonzero(choice.prompt == at)[0]) for choice in draws if at in choice.prompt)
        assert stats.chisquare([places[place] for place in range(4)]).pvalue > 1e-3
    arms = Counter(int(np.flatnonzero(choice.arm == UNIFORM)[0]) for choice in draws)
    assert stats.chisquare([arms[place] for place in range(4)]).pvalue > 1e-3


def _unbiased(estimates: np.ndarray, expected: float) -> None:
    """Means (times, n) of unbiased estimates lie within 4.5 standard errors of what they estimate."""
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - expected), 4.5 * error + 1e-12)


def _inverse(choices: Sequence[Choice]) -> np.ndarray:
    """(times, POOL) inverse probability where chosen, else 0; what another arm took beforehand counts as 1."""
    found = np.zeros((len(choices), POOL))
    for row, choice in zip(found, choices, strict=True):
        row[choice.prompt] = np.where(choice.arm == TARGETED, 1 / choice.probability, 1.0)
    return found


@TIMES
@pytest.mark.parametrize(
    ("name", "evaluation", "fraction"),
    [
        *((name, "EXPECTATION", fraction) for name in CONFIGS for fraction in (0.0, 0.3)),
        ("learnable", "THOMPSON", 0.3),
        ("informative", "THOMPSON", 0.0),
    ],
)
def test_inverse_probabilities_count_the_pool_without_bias(
    name: str, evaluation: str, fraction: float, times: int
) -> None:
    """The sum of 1/probability over the TARGETED arm estimates how many prompts it was drawn from, each as one."""
    config = resolve(
        {
            **CONFIGS[name],
            # With a cool-down the score UNIFORM goes through the TARGETED arm too.
            "cool_down_steps": 1,
            "score_evaluation": evaluation,
            "reference": {"fraction": fraction},
            "seed": 17,
            # One draw may be so near to 0 or 1 that 1/probability has no usable variance at low temperatures.
            **({"score_temperature": 4.0} if evaluation == "THOMPSON" else {}),
        }
    )
    counts = _inverse(_draws(config, 3, times // 2))
    _unbiased(counts, 1.0)
    _unbiased(counts.sum(axis=1, keepdims=True), POOL)


def _windows(config: RunConfig, count: int, batches: int, times: int) -> list[list[Choice]]:
    """The batches of many windows; within a window a prompt that was taken is set aside."""
    estimate = _estimate()
    found = []
    for start in range(0, times * batches, batches):
        last = np.full(POOL, -1)
        window = []
        for i in range(batches):
            candidates = Candidates(np.ones(POOL, dtype=bool), last >= start, last.copy())
            choice = choose_train(config, estimate, candidates, count, start + i, 0, Window(start, batches - i))
            last[choice.prompt] = start + i
            window.append(choice)
        found.append(window)
    return found


@TIMES
@pytest.mark.parametrize(("count", "batches"), [(2, 2), (3, 2), (2, 3), (4, 1)])
def test_the_batches_of_a_window_are_one_draw_cut_at_random(count: int, batches: int, times: int) -> None:
    """mu batches of F prompts are disjoint, together the mu F draws without replacement, and cut without regard."""
    paper = {"preset": "PAPER", "selection_temperature": 0.2, "target_difficulty": 0.4, "seed": 23}
    windows = _windows(resolve(paper), count, batches, times // 2)
    unions: Counter[frozenset[int]] = Counter()
    cuts: Counter[tuple[int, ...]] = Counter()
    for window in windows:
        taken = [at for choice in window for at in choice.prompt.tolist()]
        assert len(set(taken)) == count * batches
        assert all((choice.arm == TARGETED).all() for choice in window)
        unions[frozenset(taken)] += 1
        cuts[tuple(np.searchsorted(np.sort(taken), np.sort(window[0].prompt)).tolist())] += 1
    assert _fits(unions, _subsets(_weights(CONFIGS["near-target"], SUCCESSES, FAILURES), count * batches))
    ways = list(itertools.combinations(range(count * batches), count))
    if len(ways) > 1:
        assert stats.chisquare([cuts[way] for way in ways]).pvalue > 1e-3
    # Every batch of a window, the later ones too, counts the whole pool that the window was drawn from.
    for i in range(batches):
        counts = _inverse([window[i] for window in windows])
        _unbiased(counts, 1.0)
        _unbiased(counts.sum(axis=1, keepdims=True), POOL)


# Through the server


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


def _tracked(client: SelectorClient, config: Mapping[str, Any], purpose: str = "train") -> None:
    """A run whose posteriors are those at the top of this file and stay so, as nothing more is reported."""
    client.create_run({**PLAIN, "estimator": {"name": "TRACKER"}, **config})
    client.register_prompts(prompts(POOL))
    reports = {
        prompt_id: [1.0] * int(a - 1) + [0.0] * int(b - 1)
        for prompt_id, a, b in zip(prompts(POOL), SUCCESSES, FAILURES, strict=True)
        if a + b > 2
    }
    client.report_outcomes(0, reports, purpose=purpose)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_server_selects_with_the_frequencies_and_probabilities_it_states(
    service: InProcessService, name: str
) -> None:
    client = service.client(f"frequencies-{name}")
    _tracked(client, {**CONFIGS[name], "seed": 5})
    times, size = 120, 3
    chosen = np.zeros((times, POOL))
    inverse = np.zeros((times, POOL))
    for step in range(times):
        batch = client.select_batch(step, size)
        at = [int(prompt_id[1:]) for prompt_id in batch.prompt_ids]
        chosen[step, at] = 1
        inverse[step, at] = 1 / batch.probabilities
        if name == "uniform":
            assert set(batch.arms) == {"UNIFORM"} and set(batch.probabilities) == {size / POOL}
    expected = _inclusion(_subsets(_weights(CONFIGS[name], SUCCESSES, FAILURES), size), POOL)
    spread = np.sqrt(expected * (1 - expected) / times)
    np.testing.assert_array_less(np.abs(chosen.mean(axis=0) - expected), 4.0 * spread + 1e-12)
    _unbiased(inverse.sum(axis=1, keepdims=True), POOL)


def test_the_server_cuts_windows_as_in_the_paper(service: InProcessService) -> None:
    """Two steps per reference pass: disjoint batches which together have the frequencies of 2F draws.

    The pass is made once; later ones are overdue, and selection goes on from window to window all the same.
    """
    client = service.client("windows")
    paper = {"preset": "PAPER", "selection_temperature": 0.2, "target_difficulty": 0.4, "seed": 8}
    reference = {"mode": "DEDICATED", "size": POOL, "every_steps": 2}
    _tracked(client, {**paper, "reference": reference}, purpose="reference")
    windows, size = 60, 2
    chosen = np.zeros((windows, POOL))
    for window in range(windows):
        batches = [client.select_batch(2 * window + i, size) for i in range(2)]
        assert all(set(batch.arms) == {"TARGETED"} for batch in batches)
        at = [int(prompt_id[1:]) for batch in batches for prompt_id in batch.prompt_ids]
        assert len(set(at)) == 2 * size
        chosen[window, at] = 1
    expected = _inclusion(_subsets(_weights(CONFIGS["near-target"], SUCCESSES, FAILURES), 2 * size), POOL)
    spread = np.sqrt(expected * (1 - expected) / windows)
    np.testing.assert_array_less(np.abs(chosen.mean(axis=0) - expected), 4.0 * spread + 1e-12)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shards_share_one_batch(service: InProcessService, count: int) -> None:
    """Each prompt is in exactly one shard; replay groups and shortfall are dealt out to the last one."""
    client = service.client(f"shards-{count}")
    client.create_run({"seed": 3, "cool_down_steps": 0})
    client.register_prompts(prompts(10))
    for step, size in enumerate((10, 16)):
        # The order in which shards ask does not matter, nor whether anyone asks for the whole.
        asked = [(i, client.select_batch(step, size, shard=(i, count))) for i in reversed(range(count))]
        parts = [part for _, part in sorted(asked, key=lambda entry: entry[0])]
        whole = client.select_batch(step, size)
        merged: list[str] = [""] * len(whole)
        probabilities = np.zeros(len(whole))
        for i, part in enumerate(parts):
            merged[i::count] = part.prompt_ids
            probabilities[i::count] = part.probabilities
        assert tuple(merged) == whole.prompt_ids
        np.testing.assert_array_equal(probabilities, whole.probabilities)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sum(part.shortfall for part in parts) == whole.shortfall == max(0, size - 10)
        client.report_outcomes(step, {prompt_id: [1.0, 0.0] for prompt_id in whole.prompt_ids})
