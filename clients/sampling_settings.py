"""How rollouts were sampled and their log-probs made: the client's side of the ``SamplingSettings`` message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from clients.names import did_you_mean, enum_number, short_name
from selector.v1 import run_pb2

_MODE = run_pb2.LogProbMode.DESCRIPTOR


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of the sampler; None = not stated.

    ``log_prob_mode`` is ``"RAW"`` (log-softmax of the raw logits) or ``"PROCESSED"`` (the distribution the token was
    drawn from, after temperature, top-p and top-k). A run that states its settings refuses groups that do not.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    log_prob_mode: str | None = None

    @classmethod
    def of(cls, settings: SamplingSettings | Mapping[str, Any] | None) -> SamplingSettings | None:
        """Settings from a mapping of their fields; mode names in any case, with or without prefix.

        Raises:
            ValueError: an unknown field or mode; names it and near matches.
        """
        if settings is None or isinstance(settings, cls):
            return settings
        if not isinstance(settings, Mapping):
            raise ValueError(f"sampling: expected a mapping or SamplingSettings, got {settings!r}")
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(
                    f"sampling.{name}: no such field{did_you_mean(name, known)}; known: {', '.join(known)}"
                )
            value = settings[name]
            if name != "log_prob_mode" and value is not None and not isinstance(value, (int, float, np.number)):
                raise ValueError(f"sampling.{name}: expected a number, got {value!r}")
        mode = settings.get("log_prob_mode")
        if mode is not None:
            mode = short_name(_MODE, enum_number(_MODE, mode, "sampling.log_prob_mode"))
        return cls(**{**settings, "log_prob_mode": mode})

    def to_proto(self) -> run_pb2.SamplingSettings:
        """The message; fields that are None stay unset."""
        mode = None if self.log_prob_mode is None else enum_number(_MODE, self.log_prob_mode, "sampling.log_prob_mode")
        return run_pb2.SamplingSettings(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, log_prob_mode=mode
        )

    @classmethod
    def from_proto(cls, message: run_pb2.SamplingSettings) -> SamplingSettings:
        """The settings of a message."""
        return cls(
            temperature=message.temperature if message.HasField("temperature") else None,
            top_p=message.top_p if message.HasField("top_p") else None,
            top_k=message.top_k if message.HasField("top_k") else None,
            log_prob_mode=short_name(_MODE, message.log_prob_mode),
        )
