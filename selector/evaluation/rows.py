"""The rows of the table: every way of predicting that the data allows, by name, from nothing to everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Basis, Estimate
from selector.evaluation.draws import Draw
from selector.evaluation.figures import Measured
from selector.evaluation.questions import Questions
from selector.evaluation.service_rows import estimate, fresh_estimator
from selector.evaluation.simple_rows import (
    Fit,
    as_estimate,
    constant,
    domain_block,
    embedding_block,
    neighbours,
    prior_block,
    ridge,
    standardised,
)

CONSTANT, LENGTH, ORACLE = "constant", "length only", "oracle"
FUSED, FUSED_ADAPTER = "fused", "fused, adapter"
FUSED_PRIOR, FUSED_PRIOR_ADAPTER = "fused, prior", "fused, prior, adapter"
PRIOR = "prior only, recalibrated"


@dataclass(frozen=True)
class Row:
    """One way of predicting.

    Attributes:
        control: what the service's default has to beat.
        prior: knows another model's pass rates.
        predict: an estimate of all questions from a draw's references.
        has_interval: whether its standard error says anything.
    """

    name: str
    control: bool
    prior: bool
    predict: Callable[[Draw], Estimate]
    has_interval: bool = True


def rows_for(questions: Questions, measured: Measured, references: int, adapter: Adapter | None) -> list[Row]:
    """All rows in the order of the table; ``measured`` is for the oracle alone."""
    features = questions.features
    size = features.size
    found: list[Row] = []

    def simple(name: str, fit: Callable[[Draw], Fit], prior: bool = False) -> None:
        found.append(Row(name, True, prior, lambda draw: as_estimate(fit(draw), draw)))

    def service(
        name: str, estimator: str, embeddings: bool = True, prior: bool = False, trained: Adapter | None = None
    ) -> None:
        view = questions.view(embeddings, prior)
        # Copies share the caches of what follows from the features alone.
        pristine = fresh_estimator(estimator, references, trained)
        found.append(Row(name, estimator != "FUSED", prior, lambda draw: estimate(pristine.copy(), view, draw)))

    simple(CONSTANT, lambda draw: constant(size, draw))
    surface = standardised(features.surface)
    has_text = questions.lengths is not None
    if questions.lengths is not None:
        length = standardised(np.log1p(questions.lengths)[:, None])
        simple(LENGTH, lambda draw: ridge([length], draw))
        simple("surface features", lambda draw: ridge([surface], draw))
    embeddings = features.embeddings
    domain = domain_block(features.domain)
    known = np.concatenate([surface, domain], axis=1) if has_text else domain
    blocks = [known] if known.shape[1] else []
    if embeddings is not None:
        block = embedding_block(embeddings)
        simple("kNN, embeddings", lambda draw: neighbours(embeddings, draw))
        service("attention, untrained", "ATTENTION")
        if adapter is not None:
            service("attention, trained", "ATTENTION", trained=adapter)
        simple("ridge, embeddings", lambda draw: ridge([block], draw))
        if has_text:
            simple("ridge, embeddings + surface", lambda draw: ridge([surface, block], draw))
        blocks.append(block)
    if domain.shape[1]:
        simple("ridge, all but prior" if questions.has_prior else "ridge, all", lambda draw: ridge(blocks, draw))
    if questions.has_prior:
        prior = prior_block(features.prior_rate, features.prior_trials)
        simple(PRIOR, lambda draw: ridge([prior], draw), prior=True)
        if blocks:
            simple("ridge, prior + all else", lambda draw: ridge([prior, *blocks], draw), prior=True)
    service("tracker", "TRACKER")
    if embeddings is not None:
        service("fused, no embeddings", "FUSED", embeddings=False)
    service(FUSED, "FUSED")
    if adapter is not None:
        service(FUSED_ADAPTER, "FUSED", trained=adapter)
    if questions.has_prior:
        if embeddings is not None:
            service("fused, prior, no embeddings", "FUSED", embeddings=False, prior=True)
        service(FUSED_PRIOR, "FUSED", prior=True)
        if adapter is not None:
            service(FUSED_PRIOR_ADAPTER, "FUSED", prior=True, trained=adapter)
    found.append(Row(ORACLE, False, False, lambda draw: _oracle(measured), has_interval=False))
    return found


def _oracle(measured: Measured) -> Estimate:
    """Every measured rate, known exactly: what no prediction can beat."""
    rate = measured.rate
    return Estimate(
        step=-1,
        difficulty=1.0 - rate,
        standard_error=np.full(len(rate), 1e-6),
        own_weight=np.ones(len(rate)),
        basis=np.full(len(rate), Basis.OWN, dtype=np.uint8),
        population=rate,
    )
