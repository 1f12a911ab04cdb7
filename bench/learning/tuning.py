"""The optimiser's settings: those with which uniform ends best, by mixture and base policy, on seeds for tuning.

``tuned.json`` holds what was found and is what every arm trains with; ``python -m bench.learning tune`` finds it anew.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.learning.jobs import Job
from bench.learning.mixtures import SETTINGS
from bench.learning.records import Record
from selector.testbed.arms import UNIFORM
from selector.testbed.experiment import ExperimentConfig
from selector.testbed.grpo import GRPOConfig

TUNED = Path(__file__).with_name("tuned.json")

_RATES = (1.25e-4, 2.5e-4, 5e-4)
_MINIBATCHES = (4, 8, 16)

GRID: tuple[GRPOConfig, ...] = tuple(
    GRPOConfig(learning_rate=rate, minibatches=count, drop_constant=drop)
    for rate, count, drop in itertools.product(_RATES, _MINIBATCHES, (False, True))
)


def grid_jobs(steps: int, seeds: Sequence[int]) -> list[Job]:
    """Uniform with every setting of the grid."""
    return [
        Job(UNIFORM, name, base, seed, ExperimentConfig(steps=steps, grpo=grpo))
        for seed in seeds
        for name, setting in SETTINGS.items()
        for base in setting.bases
        for grpo in GRID
    ]


def best(jobs: Sequence[Job], records: Sequence[Record]) -> list[tuple[str, str, GRPOConfig, float]]:
    """(mixture, base, settings, final accuracy) with the highest final accuracy, a mean over seeds."""
    found: dict[tuple[str, str], dict[GRPOConfig, list[float]]] = {}
    for job, record in zip(jobs, records, strict=True):
        of_cell = found.setdefault((job.setting, job.base), {})
        of_cell.setdefault(job.experiment.grpo, []).append(record.run.final_accuracy)
    chosen = []
    for (setting, base), of_cell in found.items():
        means = {grpo: float(np.mean(values)) for grpo, values in of_cell.items()}
        grpo = max(means, key=lambda each: means[each])
        chosen.append((setting, base, grpo, means[grpo]))
    return chosen


def save_tuned(chosen: Sequence[tuple[str, str, GRPOConfig, float]], path: Path = TUNED) -> None:
    """Write what every arm is to train with."""
    content: dict[str, dict[str, dict[str, object]]] = {}
    for setting, base, grpo, _ in chosen:
        content.setdefault(setting, {})[base] = asdict(grpo)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_tuned(path: Path = TUNED) -> Mapping[tuple[str, str], GRPOConfig]:
    """(mixture, base) -> settings."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        (setting, base): GRPOConfig(**values) for setting, bases in content.items() for base, values in bases.items()
    }
