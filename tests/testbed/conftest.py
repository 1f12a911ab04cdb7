"""A small policy that solves short prompts now and then."""

from __future__ import annotations

import pytest
import torch

from selector.testbed.policy import Policy, PolicyConfig
from selector.testbed.pretrain import PretrainConfig, pretrain


@pytest.fixture(scope="session")
def base() -> Policy:
    """Success probabilities of level 1 lie between 0 and 0.9. Copy it before training it."""
    torch.set_num_threads(1)
    config = PretrainConfig(PolicyConfig(32, 2, 2), updates=110, batch=48, learning_rate=1e-2, warm_up=10)
    return pretrain(config)
