"""The adapter as torch modules: the forward pass of ``selector.difficulty.adapter`` with gradients and dropout."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.difficulty.adapter import Adapter, CalibrationHead, LayerNorm, Linear, Projection

DROPOUT = 0.1
_HEAD_WIDTH = 10
_SMALLEST_DIFFICULTY = 1e-4


class AdapterNetwork(nn.Module):
    """Query side, reference side and calibration head (arXiv 2506.05316, section 4.1 and appendix)."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.query = _projection(input_width, width)
        self.reference = _projection(input_width, width)
        self.head = nn.Sequential(nn.Linear(2, _HEAD_WIDTH), nn.ReLU(), nn.Linear(_HEAD_WIDTH, 2))

    def forward(self, queries: Tensor, references: Tensor, measured: Tensor) -> Tensor:
        """Logits (Q, M) of the difficulty of Q queries under M models.

        Args:
            queries: (Q, w) embeddings.
            references: (K, w) embeddings.
            measured: (K, M) difficulties of the references, NaN = not measured; each column has a measured one.
        """
        attended = _attended(self.query(queries), self.reference(references), measured)
        present = ~measured.isnan()
        count = present.sum(dim=0)
        difficulty = measured.nan_to_num(0.0)
        mean = difficulty.sum(dim=0) / count
        deviation = ((difficulty - mean).square() * present).sum(dim=0).div(count).sqrt()
        output = self.head(torch.stack([mean, deviation], dim=1))
        return functional.softplus(output[:, 0]) * attended + torch.tanh(output[:, 1])

    def adapter(self, encoder: str, encoder_hash: str) -> Adapter:
        """The weights as they are now, for use without torch."""
        return Adapter(
            query=_numpy_projection(self.query),
            reference=_numpy_projection(self.reference),
            head=CalibrationHead(_linear(self.head[0]), _linear(self.head[2])),
            encoder=encoder,
            encoder_hash=encoder_hash,
        )


def untrained(queries: Tensor, references: Tensor, measured: Tensor) -> Tensor:
    """What ``AdapterNetwork`` gives without any training: attention on layer-normalised embeddings, no head."""
    width = queries.shape[1:]
    return _attended(functional.layer_norm(queries, width), functional.layer_norm(references, width), measured)


def _attended(queries: Tensor, references: Tensor, measured: Tensor) -> Tensor:
    """Logits (Q, M) of ``sum_i a_i d_i`` from projected (Q, h) queries and (K, h) references."""
    scores = queries @ references.T * queries.shape[1] ** -0.5
    weights = torch.exp(scores - scores.amax(dim=1, keepdim=True))
    present = (~measured.isnan()).to(weights)
    # A model may have been measured on far away references only, whose weights vanish.
    total = (weights @ present).clamp_min(torch.finfo(weights.dtype).tiny)
    difficulty = (weights @ measured.nan_to_num(0.0)) / total
    return torch.logit(difficulty.clamp(_SMALLEST_DIFFICULTY, 1.0 - _SMALLEST_DIFFICULTY))


def _projection(input_width: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(input_width),
        nn.Linear(input_width, width),
        nn.GELU(),
        nn.Dropout(DROPOUT),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Dropout(DROPOUT),
        nn.Linear(width, width),
        nn.LayerNorm(width),
    )


def _numpy_projection(modules: nn.Module) -> Projection:
    layers = list(cast(nn.Sequential, modules))
    linear = tuple(_linear(layer) for layer in layers if isinstance(layer, nn.Linear))
    return Projection(LayerNorm(*_weights(layers[0])), linear, LayerNorm(*_weights(layers[-1])))


def _linear(module: nn.Module) -> Linear:
    return Linear(*_weights(module))


def _weights(module: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = (cast(Tensor, getattr(module, name)).detach().cpu().numpy().copy() for name in ("weight", "bias"))
    return weight, bias
