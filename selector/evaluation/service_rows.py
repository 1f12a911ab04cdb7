"""The service's estimators on references: the same reports, features and estimates as in a run."""

from __future__ import annotations

import numpy as np

from selector.config import EstimatorConfig, ReferenceConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Estimate, Estimator, OutcomeBatch, PoolFeatures
from selector.difficulty.fused import FusedEstimator
from selector.difficulty.registry import make_estimator
from selector.evaluation.draws import Draw


def fresh_estimator(
    name: str, references: int, adapter: Adapter | None = None, config: EstimatorConfig | None = None
) -> Estimator:
    """An estimator under a run's configuration; ATTENTION attends to the newest ``references`` prompts of any arm.

    Args:
        adapter: of ATTENTION, None = untrained; of FUSED, None = no attention.
    """
    config = config or EstimatorConfig()
    return make_estimator(
        name,
        adapter=adapter,
        reference_mode="NONE",
        reference_size=references if name == "ATTENTION" else ReferenceConfig().size,
        tracker_decay=config.tracker_decay,
        embedding_components=config.embedding_components,
    )


def estimate(estimator: Estimator, features: PoolFeatures, draw: Draw) -> Estimate:
    """Report the references step by step, each with what was predicted before it, and predict the step after.

    Only FUSED learns from what was predicted; the others are spared predictions that nobody would look at.
    """
    learns = isinstance(estimator, FusedEstimator)
    for step, part in enumerate(draw.reports):
        prompt = draw.reference[part]
        population = np.full(len(prompt), np.nan)
        if learns:
            population = estimator.estimate(features, step).population[prompt]
        estimator.observe(
            OutcomeBatch(
                step=step,
                reference=False,
                prompt=prompt,
                trials=draw.trials[part],
                successes=draw.successes[part],
                uniform=np.ones(len(prompt), dtype=bool),
                population=population,
            )
        )
    return estimator.estimate(features, len(draw.reports))
