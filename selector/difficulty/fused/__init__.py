"""FUSED: population model, own evidence, drift and recalibration joined in one posterior per prompt."""

from selector.difficulty.fused.estimator import FusedEstimator

__all__ = ["FusedEstimator"]
