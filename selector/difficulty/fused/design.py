"""Columns of the population model: everything known about a prompt besides its own outcomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from scipy.special import logit

from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.surface import SURFACE_FEATURES
from selector.difficulty.tiles import TILE_ROWS

PRIOR_SLOPE = 0.5
"""What a logit of another model's success rate is worth in logit of this one's, before any outcome tells."""

_NOMINAL_TRIALS = 8.0
_SATURATED = 0.02
_LARGEST_DOMAINS = 32
# Of all their columns together, in units of one standardised column's.
_EMBEDDING_VARIANCE = 9.0
_DOMAIN_VARIANCE = 2.0
# The text's length alone often tells as much as all that is counted in it.
_LENGTH_VARIANCE = 4.0
# Standardised values beyond this are outliers that would act as levers in a ridge.
_LARGEST_VALUE = 5.0
_NO_VARIATION = 1e-6


class Source(IntEnum):
    """Where a column comes from, the more told by a text the larger."""

    GIVEN = 0
    """The intercept, and what was sent with the prompts or measured of them: priors, signals, the adapter's column."""
    TEXT = 1
    """Surface features and domain."""
    EMBEDDING = 2


@dataclass(frozen=True)
class PopulationDesign:
    """The regression's columns.

    Attributes:
        columns: (N, P) float32; column 0 is the intercept.
        source: (P,) ``Source`` of each column; those of the embeddings together vary as much as nine others.
        centre: (P,) float64, the coefficients the ridge pulls to: 0 except for the prior rate's logit.
        known: (N,) bool, prompts with a prior rate.
        prior_logit: (N,) float64, expected logit before any outcome: ``PRIOR_SLOPE`` times the prior's logit, or 0.
    """

    columns: np.ndarray
    source: np.ndarray
    centre: np.ndarray
    known: np.ndarray
    prior_logit: np.ndarray

    def with_column(self, values: np.ndarray, slope: float) -> PopulationDesign:
        """The design and one more column, (N,), standardised like the others; NaN = missing.

        Args:
            slope: what a unit of the values is worth in logit, before any outcome tells.
        """
        column, deviation = _standardised(values)
        if not len(column) or np.ptp(column) <= _NO_VARIATION:
            return self
        return replace(
            self,
            columns=np.column_stack([self.columns, column.astype(np.float32)]),
            source=np.append(self.source, Source.GIVEN),
            centre=np.append(self.centre, slope * deviation),
        )


def build_design(features: PoolFeatures, components: np.ndarray) -> PopulationDesign:
    """All columns of the pool; ``components`` (N, k) are principal components of the embeddings, in proportion.

    Numeric columns are standardised over the prompts that have a value; a missing one becomes 0. Surface features and
    embeddings bring a flag for the prompts without, prior rates one for those with. Domains are one-hot, the 32 most
    frequent. Columns without variation are left out.
    """
    size = features.size
    known = np.isfinite(features.prior_rate)
    trials = np.where(features.prior_trials > 0.0, features.prior_trials, _NOMINAL_TRIALS)
    rate = (np.where(known, features.prior_rate, 0.5) * trials + 0.5) / (trials + 1.0)
    prior_logit = np.where(known, logit(rate), np.nan)
    saturated = known & ((rate <= _SATURATED) | (rate >= 1.0 - _SATURATED))

    columns: list[np.ndarray] = [np.ones((size, 1), dtype=np.float32)]
    factors: list[float] = [1.0]
    centre: list[float] = [0.0]
    source: list[Source] = [Source.GIVEN]

    def add(column: np.ndarray, of: Source, pulled_to: float = 0.0) -> None:
        if size and np.ptp(column) > _NO_VARIATION:
            columns.append(column.astype(np.float32)[:, None])
            factors.append(1.0)
            centre.append(pulled_to)
            source.append(of)

    standard, deviation = _standardised(prior_logit)
    add(standard, Source.GIVEN, PRIOR_SLOPE * deviation)
    add(_standardised(np.where(known, rate, np.nan))[0], Source.GIVEN)
    add(saturated.astype(np.float64), Source.GIVEN)
    add(known.astype(np.float64), Source.GIVEN)
    for index, name in enumerate(SURFACE_FEATURES):
        scale = np.sqrt(_LENGTH_VARIANCE) if name == "characters" else 1.0
        add(scale * _standardised(features.surface[:, index].astype(np.float64))[0], Source.TEXT)
    add(np.isnan(features.surface).all(axis=1).astype(np.float64), Source.TEXT)
    varying, of_components = _varying(components)
    columns.append(varying)
    factors += [of_components] * varying.shape[1]
    centre += [0.0] * varying.shape[1]
    source += [Source.EMBEDDING] * varying.shape[1]
    if features.embeddings is not None:
        add(np.asarray(~features.embeddings.any(axis=1), dtype=np.float64), Source.TEXT)
    codes, counts = np.unique(features.domain[features.domain >= 0], return_counts=True)
    largest = codes[np.argsort(-counts, kind="stable")[:_LARGEST_DOMAINS]]
    one_hot = np.asarray(features.domain[:, None] == largest, dtype=np.float64)
    one_hot -= one_hot.mean(axis=0) if size else 0.0
    spread = (
        np.sqrt(_DOMAIN_VARIANCE / max(float(np.square(one_hot).sum(axis=1).mean()), _NO_VARIATION)) if size else 1.0
    )
    for index in range(one_hot.shape[1]):
        add(spread * one_hot[:, index], Source.TEXT)
    for name in sorted(features.signals):
        add(_standardised(features.signals[name])[0], Source.GIVEN)

    return PopulationDesign(
        columns=_side_by_side(columns, np.array(factors, dtype=np.float32)),
        source=np.array(source, dtype=np.uint8),
        centre=np.array(centre),
        known=known,
        prior_logit=PRIOR_SLOPE * np.where(known, prior_logit, 0.0),
    )


def _varying(components: np.ndarray) -> tuple[np.ndarray, float]:
    """Those of the (N, k) components that vary, and the factor that gives all together the variance of embeddings."""
    if not components.size:
        return components[:, :0], 1.0
    tiles = [components[start : start + TILE_ROWS] for start in range(0, len(components), TILE_ROWS)]
    squares = [np.square(tile, dtype=np.float64).sum(axis=1) for tile in tiles]
    variance = float(np.concatenate(squares).mean())
    if variance <= _NO_VARIATION:
        return components[:, :0], 1.0
    scale = float(np.sqrt(_EMBEDDING_VARIANCE / variance))
    largest = np.max([tile.max(axis=0) for tile in tiles], axis=0)
    smallest = np.min([tile.min(axis=0) for tile in tiles], axis=0)
    varies = scale * (largest - smallest) > _NO_VARIATION
    return components if varies.all() else components[:, varies], scale


def _side_by_side(columns: list[np.ndarray], factors: np.ndarray) -> np.ndarray:
    """(N, P) float32 of all columns, each (N, k), times ``factors`` (P,)."""
    joined = np.empty((len(columns[0]), len(factors)), dtype=np.float32)
    # A tile at a time: a column at a time would go through all memory as often as there are columns.
    for start in range(0, len(joined), TILE_ROWS):
        rows = slice(start, start + TILE_ROWS)
        np.concatenate([each[rows] for each in columns], axis=1, out=joined[rows])
        joined[rows] *= factors
    return joined


def _standardised(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Values in units of their deviation around their mean, missing ones 0, and that deviation."""
    present = np.isfinite(values)
    if not present.any():
        return np.zeros(len(values)), 0.0
    mean, deviation = float(values[present].mean()), float(values[present].std())
    if deviation <= _NO_VARIATION * (1.0 + abs(mean)):
        return np.zeros(len(values)), 0.0
    standard = np.where(present, (np.where(present, values, mean) - mean) / deviation, 0.0)
    return np.clip(standard, -_LARGEST_VALUE, _LARGEST_VALUE), deviation
