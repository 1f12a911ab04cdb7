"""Difficulty of every prompt for the current policy, predicted from outcomes: FUSED, ATTENTION and TRACKER."""

from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Basis, Estimate, Estimator, OutcomeBatch, PoolFeatures
from selector.difficulty.registry import make_estimator
from selector.difficulty.surface import surface_features

__all__ = [
    "Adapter",
    "Basis",
    "Estimate",
    "Estimator",
    "OutcomeBatch",
    "PoolFeatures",
    "make_estimator",
    "surface_features",
]
