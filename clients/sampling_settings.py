"""How rollouts were sampled and their log-probs made: the client's side of the ``SamplingSettings`` message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from clients.messages import build, shown
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
            raise ValueError(f"sampling: expected a mapping or SamplingSettings, got {shown(settings)}")
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                where = f"sampling.{name}" if str(name).isprintable() else f"sampling[{shown(name)}]"
                near = did_you_mean(str(name), known)
                raise ValueError(f"{where}: no such field{near}; known: {', '.join(known)}")
        mode = settings.get("log_prob_mode")
        if mode is not None:
            mode = short_name(_MODE, enum_number(_MODE, mode, "sampling.log_prob_mode"))
        return cls(**{**settings, "log_prob_mode": mode})

    def to_proto(self) -> run_pb2.SamplingSettings:
        """The message; fields that are None stay unset.

        Raises:
            ValueError: a value of the wrong type or beyond its range; names it.
        """
        mode = None if self.log_prob_mode is None else enum_number(_MODE, self.log_prob_mode, "sampling.log_prob_mode")
        return build(
            run_pb2.SamplingSettings,
            "sampling",
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            # Not a field that can be unset: 0 is not stated.
            log_prob_mode=mode or 0,
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
