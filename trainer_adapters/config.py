"""Which service an adapter talks to, and how: the part of the settings that is the same for every trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clients import RetryPolicy, SelectorClient
from clients.names import did_you_mean
from selector.v1 import run_pb2
from trainer_adapters.checks import AdapterError, agreed

# One caller per training may ask often; longer pauses would not see a service come back before a probe is over.
_RETRY = RetryPolicy(max_backoff_s=0.25)
TOKEN_VARIABLE = "SELECTOR_TOKEN"

# What configuration files easily get wrong: "false" in quotes would be true.
_KINDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("target", (str,), "host:port"),
    ("run_id", (str,), "text"),
    ("replay", (bool,), "true or false"),
    ("timeout_s", (int, float), "seconds"),
    ("start_timeout_s", (int, float), "seconds"),
    ("probe_s", (int, float), "seconds"),
    ("backlog_bytes", (int,), "bytes"),
    ("token_file", (str, type(None)), "a path"),
    ("tls", (bool, str, type(None)), "true or a path"),
)


@dataclass(frozen=True)
class CurriculumConfig:
    """One run of a service.

    Attributes:
        target: ``host:port`` of the service.
        run_id: the run, made at the start of a training if it does not exist; one per training.
        run: fields of ``RunConfig`` as a mapping (see ``clients.config``). What the trainer itself knows, its group
            size, its seed and how it samples, is filled in; stating something else is an error.
        on_failure: ``"open"``: while the service cannot be used, prompts are drawn uniformly and nothing is replayed,
            loudly and counted, and what could not be reported is sent when it answers again. ``"closed"``: the
            training ends with the error. At the start of a training every error ends it.
        outcome: the trainer's name of the raw task score, where what it optimises is shaped or a sum: the name of a
            reward function, or of a field of the reward's answer. None = the reward itself. Of several names, for
            domains with scores of their own, the first that has a value counts.
        replay: False = never replay, whatever the run's config says.
        timeout_s: seconds for one call, with all retries; longer than a restart of the service takes.
        start_timeout_s: seconds for registering the prompts at the start; the service embeds each new text once, some
            tens per second on a CPU.
        probe_s: seconds to wait for a service that did not answer before, once per step; at least 3, because gRPC
            pauses for up to 2.4 between two attempts to connect.
        backlog_bytes: of rollouts kept for a service that does not answer; beyond them the oldest are dropped.
        token_file: file with the bearer token; None = the environment variable SELECTOR_TOKEN, if there is one.
        tls: None = unencrypted, True = the system's authorities, or a path to the authorities in PEM.
    """

    target: str
    run_id: str
    run: Mapping[str, Any] = field(default_factory=dict)
    on_failure: str = "open"
    outcome: str | Sequence[str] | None = None
    replay: bool = True
    timeout_s: float = 120.0
    start_timeout_s: float = 1500.0
    probe_s: float = 5.0
    backlog_bytes: int = 2**28
    token_file: str | None = None
    tls: bool | str | None = None

    def __post_init__(self) -> None:
        if self.on_failure not in ("open", "closed"):
            raise AdapterError(f"curriculum.on_failure: expected 'open' or 'closed', got {self.on_failure!r}")
        if not isinstance(self.run, Mapping):
            raise AdapterError(f"curriculum.run: expected a mapping of RunConfig's fields, got {self.run!r}")
        for name, kinds, expected in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise AdapterError(f"curriculum.{name}: expected {expected}, got {value!r}")
        if not isinstance(self.outcome, (str, type(None))) and not (
            isinstance(self.outcome, Sequence) and all(isinstance(name, str) for name in self.outcome)
        ):
            raise AdapterError(f"curriculum.outcome: expected a name or a list of names, got {self.outcome!r}")
        if self.backlog_bytes < 0:
            raise AdapterError(f"curriculum.backlog_bytes: expected bytes >= 0, got {self.backlog_bytes!r}")
        for name, least in (("timeout_s", 1), ("start_timeout_s", 1), ("probe_s", 3)):
            if not getattr(self, name) >= least:
                raise AdapterError(f"curriculum.{name}: expected seconds >= {least}, got {getattr(self, name)!r}")

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The names in ``outcome``; none = the reward itself."""
        if self.outcome is None:
            return ()
        return (self.outcome,) if isinstance(self.outcome, str) else tuple(self.outcome)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> CurriculumConfig:
        """From a trainer's configuration file.

        Raises:
            AdapterError: an unknown or missing name.
        """
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                raise AdapterError(
                    f"curriculum.{name}: no such setting{_hint(str(name), known)}; known: {', '.join(known)}"
                )
        for name in ("target", "run_id"):
            if not settings.get(name):
                raise AdapterError(f"curriculum.{name}: is missing")
        return cls(**settings)

    def client(self) -> SelectorClient:
        """A client of the run; to be made in the process that uses it.

        Raises:
            AdapterError: the token file cannot be read.
        """
        try:
            token = (
                Path(self.token_file).read_text(encoding="utf-8") if self.token_file else os.environ.get(TOKEN_VARIABLE)
            )
        except (OSError, UnicodeDecodeError) as error:
            raise AdapterError(f"curriculum.token_file: {self.token_file!r} cannot be read: {error}") from error
        return SelectorClient(
            self.target, self.run_id, token=token, tls=self.tls, timeout_s=self.timeout_s, retry=_RETRY
        )

    def run_config(self, group_size: int, seed: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """The run's config with what the trainer knows filled in; a seed that is stated stays.

        Raises:
            AdapterError: the config states something else.
        """
        if group_size < 2:
            raise AdapterError(
                f"group size: expected at least 2 rollouts per prompt, got {group_size}: a group of one has no "
                "advantage within the group, and tells nothing"
            )
        stated = self.run.get("sampling") or {}
        if not isinstance(stated, Mapping):
            raise AdapterError(f"curriculum.run.sampling: expected a mapping, got {stated!r}")
        run = agreed(self.run, {"group_size": group_size}, "curriculum.run")
        return {"seed": seed, **run, "sampling": agreed(stated, sampling, "curriculum.run.sampling")}


def _hint(name: str, known: Sequence[str]) -> str:
    """What may have been meant by a name that is none of the settings."""
    path = _path_in_run(name, run_pb2.RunConfig.DESCRIPTOR)
    return f" (it belongs into {path})" if path else did_you_mean(name, list(known))


def _path_in_run(name: str, message: Any, prefix: str = "run") -> str:
    """Where the run's config has a field of that name; empty = nowhere."""
    if name in message.fields_by_name:
        return f"{prefix}.{name}"
    inner = (field for field in message.fields if field.message_type is not None)
    return next(filter(None, (_path_in_run(name, each.message_type, f"{prefix}.{each.name}") for each in inner)), "")
