"""FUSED: population model, own evidence, drift and recalibration joined in one posterior per prompt."""

from selector.difficulty.fused.attention_column import AttentionColumn
from selector.difficulty.fused.estimator import FusedEstimator

__all__ = ["AttentionColumn", "FusedEstimator"]
