"""A trained-looking adapter as torch modules, and its numpy counterpart."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from selector.difficulty.adapter import Adapter, CalibrationHead, LayerNorm, Linear, Projection


def torch_projection(width: int, hidden: int) -> nn.Sequential:
    projection = nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, hidden),
        nn.LayerNorm(hidden),
    )
    for module in projection:
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
        elif isinstance(module, nn.Linear):
            # torch's own start maps all inputs close to one another, as no trained adapter does.
            nn.init.normal_(module.weight, 0.0, 1.5 * module.in_features**-0.5)
    return projection


def torch_head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 2))


def _arrays(module: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = (getattr(module, name).detach().numpy().copy() for name in ("weight", "bias"))
    return weight, bias


def _projection(modules: nn.Sequential) -> Projection:
    layers = tuple(Linear(*_arrays(modules[index])) for index in (1, 3, 5))
    return Projection(LayerNorm(*_arrays(modules[0])), layers, LayerNorm(*_arrays(modules[6])))


def adapter_of(query: nn.Sequential, reference: nn.Sequential, head: nn.Sequential) -> Adapter:
    return Adapter(
        _projection(query),
        _projection(reference),
        CalibrationHead(Linear(*_arrays(head[0])), Linear(*_arrays(head[2]))),
        encoder="an-encoder",
        encoder_hash="abc",
    )


def random_adapter(seed: int, width: int, hidden: int) -> Adapter:
    """Random weights; the reference side is the query side disturbed, so that like attends to like."""
    torch.manual_seed(seed)
    query, reference = torch_projection(width, hidden), torch_projection(width, hidden)
    with torch.no_grad():
        for disturbed, weight in zip(reference.parameters(), query.parameters(), strict=True):
            disturbed.copy_(weight + 0.1 * weight.std() * torch.randn_like(weight))
    return adapter_of(query, reference, torch_head())
