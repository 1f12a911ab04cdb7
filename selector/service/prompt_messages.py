"""Prompts between the protocol and the domain."""

from __future__ import annotations

import math

import numpy as np

from selector.errors import invalid
from selector.requests import PromptSpec
from selector.service import checks
from selector.v1 import selector_service_pb2 as pb

_LONGEST_TEXT = 4 * 2**20
_LONGEST_DOMAIN = 256
_WIDEST_EMBEDDING = 65_536
_MOST_TOKENS = 2**31 - 1


def prompt_spec(prompt: pb.Prompt, position: int) -> PromptSpec:
    """A prompt to register, checked for form; ``position`` is its place in the request, for the field path."""
    path = f"prompts[{position}]"
    checks.identifier(prompt.prompt_id, f"{path}.prompt_id")
    checks.at_most_bytes(prompt.text, _LONGEST_TEXT, f"{path}.text")
    checks.at_most_bytes(prompt.domain, _LONGEST_DOMAIN, f"{path}.domain")
    checks.between(prompt.token_count, 0, _MOST_TOKENS, f"{path}.token_count")
    rate, trials = math.nan, 0
    if prompt.HasField("prior"):
        rate = checks.real_between(prompt.prior.pass_rate, 0.0, 1.0, f"{path}.prior.pass_rate")
        trials = checks.between(prompt.prior.trials, 1, _MOST_TOKENS, f"{path}.prior.trials")
    return PromptSpec(
        prompt_id=prompt.prompt_id,
        text=prompt.text,
        embedding=_embedding(prompt.embedding, f"{path}.embedding"),
        domain=prompt.domain,
        token_count=prompt.token_count,
        prior_rate=rate,
        prior_trials=trials,
    )


def _embedding(data: bytes, path: str) -> np.ndarray | None:
    if not data:
        return None
    if len(data) % 4:
        raise invalid(path, f"expected little-endian float32, a multiple of 4 bytes; got {len(data)} bytes")
    if len(data) > 4 * _WIDEST_EMBEDDING:
        raise invalid(path, f"expected a width of at most {_WIDEST_EMBEDDING}; got {len(data) // 4}")
    return np.frombuffer(data, dtype="<f4")
