"""Pass rates of two tiny models on the demo's prompts, as a file for ``selector evaluate``.

    python examples/tiny_pass_rates.py rates.parquet

The models are the demo's base policy, ``policy``, and one that was trained longer from another start, ``other``. Every
prompt has one right answer, so the probability of success is known exactly; the file holds what 16 rollouts of each
prompt would have measured. Takes about a minute on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from selector.testbed.policy import Policy, success_probability
from selector.testbed.pretrain import PretrainConfig, pretrain
from selector.testbed.tasks import Prompt, make_prompt_sets

TRIALS = 16
MODELS = {"policy": PretrainConfig(), "other": PretrainConfig(seed=1, updates=500)}


def measured(policy: Policy, prompts: tuple[Prompt, ...], rng: np.random.Generator) -> np.ndarray:
    """Pass rate of each prompt over so many rollouts."""
    return rng.binomial(TRIALS, success_probability(policy, prompts)) / TRIALS


def main() -> None:
    torch.set_num_threads(1)
    prompts = make_prompt_sets(seed=0).training
    rng = np.random.default_rng(0)
    columns = {
        "id": [prompt.prompt_id for prompt in prompts],
        "text": [prompt.text for prompt in prompts],
        "domain": [prompt.task for prompt in prompts],
        **{name: measured(pretrain(config), prompts, rng) for name, config in MODELS.items()},
        "n": [TRIALS] * len(prompts),
    }
    pq.write_table(pa.table(columns), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
