"""Made-up runs of arms, with a given course of accuracy."""

from __future__ import annotations

import numpy as np

from selector.testbed.record import ArmRun, Evaluation


def run_of(arm: str, accuracies: list[float], seed: int = 0, rollouts_per_step: int = 512) -> ArmRun:
    rng = np.random.default_rng(seed)
    true = rng.random(200)
    steps = len(accuracies) - 1
    return ArmRun(
        arm=arm,
        seed=seed,
        steps=steps,
        rollouts=rollouts_per_step * steps,
        generated_groups=64 * steps,
        informative_groups=20 * steps,
        cpu_seconds=11.0 + seed,
        evaluations=tuple(
            Evaluation(i, rollouts_per_step * i, 0.2 * i, accuracy, rollouts_per_step * i)
            for i, accuracy in enumerate(accuracies)
        ),
        predicted=np.clip(true + rng.normal(0, 0.1, 200), 0, 1),
        true=true,
        pool_correlation=None if arm == "oracle" else 0.8,
        coverage=0.9,
        effective_sample_size=(0.9, 0.7) if arm == "paper" else (),
        max_importance_weight=3.0 if arm == "paper" else None,
        degraded_selections=0,
    )
