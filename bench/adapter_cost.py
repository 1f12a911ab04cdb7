"""CPU-seconds of FUSED's estimate with and without an adapter: ``python -m bench.adapter_cost [--json OUT]``.

A pool of random embeddings and surface features, 512 groups reported per step, one thread. The first estimate projects
the pool and builds the population model's other columns; later ones do neither.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from selector.adapter_training.network import AdapterNetwork
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.config import EstimatorConfig
from selector.difficulty.estimate import OutcomeBatch, PoolFeatures
from selector.difficulty.registry import make_estimator

_EMBEDDING = 384
_GROUPS = 512
_TRIALS = 8
_STEPS = 4


def seconds(prompts: int, width: int | None, references: int) -> list[float]:
    """CPU-seconds of each step's estimate; ``width``: of the adapter, None = no adapter."""
    random = np.random.default_rng(0)
    features = PoolFeatures(
        version=1,
        embeddings=random.normal(size=(prompts, _EMBEDDING)).astype(np.float32),
        surface=random.normal(size=(prompts, 9)).astype(np.float32),
        prior_rate=np.full(prompts, np.nan),
        prior_trials=np.zeros(prompts),
        domain=np.full(prompts, -1, dtype=np.int32),
        signals={},
    )
    estimator = make_estimator(
        "FUSED",
        adapter=None if width is None else AdapterNetwork(_EMBEDDING, width).adapter("", ""),
        reference_mode="IN_BATCH",
        reference_size=references,
        tracker_decay=0.7,
        embedding_components=EstimatorConfig().embedding_components,
    )
    found = []
    for step in range(_STEPS):
        prompt = np.sort(random.choice(prompts, _GROUPS, replace=False)).astype(np.int32)
        estimator.observe(
            OutcomeBatch(
                step=step,
                reference=False,
                prompt=prompt,
                trials=np.full(_GROUPS, float(_TRIALS)),
                successes=random.binomial(_TRIALS, 0.5, _GROUPS).astype(np.float64),
                uniform=np.ones(_GROUPS, dtype=bool),
                population=np.full(_GROUPS, np.nan),
            )
        )
        began = time.process_time()
        estimator.estimate(features, step + 1)
        found.append(time.process_time() - began)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.adapter_cost", description="See the module's docstring.")
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--references", type=int, default=256)
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    rows = []
    with threadpool_limits(1):
        for width in (None, 128, 896):
            first, *later = seconds(arguments.prompts, width, arguments.references)
            rows.append(("none" if width is None else str(width), first, float(np.mean(later))))
    header = ("adapter's width", "first estimate", "later ones")
    sys.stdout.write(table(header, rows) + "\n")
    write_json(
        arguments.json, {"prompts": arguments.prompts, "rows": [dict(zip(header, r, strict=True)) for r in rows]}
    )


if __name__ == "__main__":
    main()
