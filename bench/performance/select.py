"""What choosing a batch costs, and that cutting the pool changes nothing: ``python -m bench.performance.select``.

Random estimates of N prompts, B to choose, the default score. CPU seconds, in turns, of

* ``evaluating everything``: every prompt's score and noise, then the B largest: the same arithmetic, vectorised;
* ours, ``selector.selection``: lazily, from the largest noise down.

Both give the same prompts, which is checked in every round. With Thompson sampling a score is a draw from a posterior,
and costs more. The figures of parts count batches that are the same, in order and probabilities, from a pool that is
cut into so many parts: 1 = all.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from bench.performance.figures import SAME, Figure, at_least, options, parsed, show
from bench.performance.turns import compared, in_turns
from selector.config import RunConfig
from selector.difficulty.estimate import Estimate
from selector.noise import gumbels, noise_key, uniforms
from selector.selection.choose import choose_from, choose_train
from selector.selection.part import Candidates, PoolPart, top
from selector.selection.scores import log_weights

_PARTS = (2, 7, 64)


def pool(prompts: int) -> tuple[Estimate, Candidates]:
    """Difficulties uniform on [0, 1], standard errors between 0.05 and 0.3; a fiftieth is cooling down."""
    random = np.random.default_rng(0)
    difficulty = random.random(prompts)
    estimate = Estimate(
        step=10,
        difficulty=difficulty,
        standard_error=random.uniform(0.05, 0.3, prompts),
        own_weight=np.zeros(prompts),
        basis=np.zeros(prompts, dtype=np.uint8),
        population=1.0 - difficulty,
    )
    candidates = Candidates(np.ones(prompts, dtype=bool), random.random(prompts) < 0.02, np.full(prompts, -1))
    return estimate, candidates


def everything(config: RunConfig, estimate: Estimate, candidates: Candidates, count: int, step: int) -> np.ndarray:
    """The targeted prompts of a step, every key computed."""
    key, thompson = (noise_key(config.seed, purpose, step, 0) for purpose in ("select", "thompson"))
    size = len(estimate.difficulty)
    draws = uniforms(thompson, 0, size) if config.score_evaluation == "THOMPSON" else None
    keys = log_weights(config, estimate, draws) + gumbels(key, 0, size)
    among = np.flatnonzero(candidates.eligible & ~candidates.cooling)
    return among[top(keys[among], count)]


def figure(config: RunConfig, prompts: int, count: int, rounds: int, must: float | None) -> Figure:
    """One size."""
    estimate, candidates = pool(prompts)
    chosen: dict[str, dict[int, np.ndarray]] = {"everything": {}, "ours": {}}

    def whole(step: int) -> None:
        chosen["everything"][step] = everything(config, estimate, candidates, count, step)

    def lazily(step: int) -> None:
        key, thompson = (noise_key(config.seed, purpose, step, 0) for purpose in ("select", "thompson"))
        chosen["ours"][step] = PoolPart(config, estimate, candidates).targeted(key, thompson, count).prompt

    found = in_turns({"everything": whole, "ours": lazily}, rounds)
    for step, prompt in chosen["everything"].items():
        assert np.array_equal(prompt, chosen["ours"][step])
    name = f"choose {count:,} of {prompts:,}" + (", Thompson" if config.score_evaluation == "THOMPSON" else "")
    return compared(
        name,
        found["everything"].cpu,
        found["ours"].cpu,
        "evaluating everything",
        work=1e-3,
        unit="CPU ms",
        must=must,
        prompts=prompts,
        batch=count,
    )


def cuts(config: RunConfig, prompts: int, count: int, steps: int) -> list[Figure]:
    """Whole selections, all arms, from pools that are cut."""
    estimate, candidates = pool(prompts)
    figures = []
    for number in _PARTS:
        bounds = [prompts * index // number for index in range(number + 1)]
        same = 0
        for step in range(steps):
            parts = [
                PoolPart(
                    config,
                    estimate.of(slice(start, stop)),
                    Candidates(*(column[start:stop] for column in vars(candidates).values())),
                    start,
                )
                for start, stop in itertools.pairwise(bounds)
            ]
            cut = choose_from(config, parts, count, step, 0, None)
            whole = choose_train(config, estimate, candidates, count, step, 0, None)
            same += all(np.array_equal(*pair) for pair in zip(vars(cut).values(), vars(whole).values(), strict=True))
        figures.append(
            Figure(
                f"batches of {count:,} of {prompts:,} in {number} parts",
                1.0,
                same / steps,
                same / steps,
                SAME,
                "one part",
                must=1.0,
                detail={"batches": steps},
            )
        )
    return figures


def main() -> None:
    """Measure, print and write."""
    parser = options("select", __doc__)
    parser.add_argument("--prompts", type=at_least(1), nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch-sizes", type=at_least(1), nargs="+", default=[256, 1024])
    parser.add_argument("--rounds", type=at_least(1), default=9)
    arguments = parsed(parser, prompts=[10_000], rounds=1)
    sizes, rounds, most = sorted(arguments.prompts), arguments.rounds, max(arguments.batch_sizes)
    # Some are cooling down, and a part of a pool that is cut should not be chosen whole.
    if sizes[0] < 2 * most:
        parser.error(f"--prompts: expected at least twice what is chosen, {2 * most}; got {sizes[0]}")
    config = RunConfig()
    found: list[Figure] = []
    with threadpool_limits(1):
        for prompts in sizes:
            for count in arguments.batch_sizes:
                found.append(figure(config, prompts, count, rounds, None))
        thompson = replace(config, score_evaluation="THOMPSON")
        middle = min(sizes[-1], 1_000_000)
        found.append(figure(thompson, middle, most, min(rounds, 3), None))
        found += cuts(config, min(sizes[-1], 100_000), most, 2 if arguments.quick else 20)
    show(found, arguments.json)


if __name__ == "__main__":
    main()
