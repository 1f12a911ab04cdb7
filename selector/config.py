"""A run's configuration: every value resolved, every value checked, and the presets it starts from.

``resolve`` lays explicit values over a preset and refuses what is unknown, out of range or contradictory, naming the
field. Sources of the presets: PAPER is DOTS + RR (arXiv 2506.05316, section 5 and appendix); DEFAULT is what our own
measurements say; UNIFORM is the control.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from selector.errors import FieldViolation, ServiceError, invalid_fields
from selector.stored_json import check_types, loads
from selector.v1.reasons import Reason

# Outcomes that differ by no more than this are the same.
INFORMATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ReferenceConfig:
    """Where the reference evidence comes from."""

    mode: str = "IN_BATCH"
    size: int = 256
    every_steps: int = 2
    fraction: float = 0.125

    @property
    def uniform_share(self) -> float:
        """Share of every batch that the UNIFORM arm takes."""
        return self.fraction if self.mode == "IN_BATCH" else 0.0


@dataclass(frozen=True)
class EstimatorConfig:
    """How difficulty is predicted."""

    name: str = "FUSED"
    adapter: str = ""
    tracker_decay: float = 0.7
    embedding_components: int = 128
    shortlist: int = 0


@dataclass(frozen=True)
class ReplayConfig:
    """What the replay buffer keeps and how much of a batch it may fill."""

    fresh_fraction: float = 0.5
    capacity_groups: int = 512
    capacity_bytes: int = 0
    max_age_steps: int = 0
    max_uses: int = 0
    informative_only: bool = True
    newest_per_prompt: bool = True
    min_effective_sample_size: float = 0.0


@dataclass(frozen=True)
class SamplingSettings:
    """How rollouts are sampled; ``log_prob_mode`` is RAW, PROCESSED or UNSPECIFIED."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    log_prob_mode: str = "UNSPECIFIED"


@dataclass(frozen=True)
class RunConfig:
    """The resolved configuration of a run; field meanings are in ``proto/selector/v1/run.proto``."""

    preset: str = "DEFAULT"
    group_size: int = 8
    target_difficulty: float = 0.5
    selection_temperature: float = 1e-3
    seed: int = 0
    outcome_range: tuple[float, float] = (0.0, 1.0)
    clip_outcomes: bool = False
    on_nan: str = "REJECT"
    reference: ReferenceConfig = ReferenceConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    score: str = "LEARNABLE"
    score_temperature: float = 0.5
    score_evaluation: str = "EXPECTATION"
    cool_down_steps: int = 8
    strict_cool_down: bool = False
    replay: ReplayConfig = ReplayConfig()
    sampling: SamplingSettings | None = None
    lease_steps: int = 8
    max_unselected_steps: int = 0
    review_fraction: float = 0.125
    max_prompt_tokens: int = 0
    twin_similarity: float = 0.9


PRESETS: Mapping[str, RunConfig] = MappingProxyType(
    {
        "DEFAULT": RunConfig(replay=ReplayConfig(max_age_steps=8)),
        "PAPER": RunConfig(
            preset="PAPER",
            reference=ReferenceConfig(mode="DEDICATED", size=256, every_steps=2, fraction=0.0),
            estimator=EstimatorConfig(name="ATTENTION"),
            score="NEAR_TARGET",
            cool_down_steps=0,
            twin_similarity=0.0,
        ),
        "UNIFORM": RunConfig(
            preset="UNIFORM",
            reference=ReferenceConfig(mode="NONE", fraction=0.0),
            score="UNIFORM",
            cool_down_steps=0,
            twin_similarity=0.0,
            replay=ReplayConfig(fresh_fraction=1.0, max_age_steps=8),
        ),
    }
)

# The temperature a score is used with when none is given.
_SCORE_TEMPERATURES: Mapping[str, float] = MappingProxyType({"LEARNABLE": 0.5, "INFORMATIVE": 0.25})

_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "on_nan": ("REJECT", "DROP_ROLLOUT"),
        "score": ("LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM"),
        "score_evaluation": ("EXPECTATION", "THOMPSON"),
        "reference.mode": ("IN_BATCH", "DEDICATED", "NONE"),
        "estimator.name": ("FUSED", "ATTENTION", "TRACKER"),
        "sampling.log_prob_mode": ("RAW", "PROCESSED", "UNSPECIFIED"),
    }
)

_LARGEST_STEP_COUNT = 2**31 - 1

# A score divided by less could overflow; the noise that is added to it is lost long before.
_SMALLEST_TEMPERATURE = 1e-9

# Field -> (what is expected, whether a value is). Paths are those of the request.
_RANGES: Mapping[str, tuple[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "group_size": ("in [1, 4096]", lambda v: 1 <= v <= 4096),
        "target_difficulty": ("in [0, 1]", lambda v: 0 <= v <= 1),
        "selection_temperature": ("finite and >= 1e-9", lambda v: _SMALLEST_TEMPERATURE <= v < math.inf),
        "seed": (">= 0", lambda v: v >= 0),
        "score_temperature": ("finite and >= 1e-9", lambda v: _SMALLEST_TEMPERATURE <= v < math.inf),
        "cool_down_steps": (">= 0", lambda v: v >= 0),
        "lease_steps": (">= 0", lambda v: v >= 0),
        "max_unselected_steps": (">= 0", lambda v: v >= 0),
        "review_fraction": ("in [0, 1]", lambda v: 0 <= v <= 1),
        "max_prompt_tokens": (">= 0", lambda v: v >= 0),
        "twin_similarity": ("in [0, 1]", lambda v: 0 <= v <= 1),
        "reference.size": ("in [1, 1000000]", lambda v: 1 <= v <= 1_000_000),
        "reference.every_steps": ("> 0", lambda v: 0 < v <= _LARGEST_STEP_COUNT),
        "reference.fraction": ("in [0, 1]", lambda v: 0 <= v <= 1),
        "estimator.tracker_decay": ("in (0, 1]", lambda v: 0 < v <= 1),
        "estimator.embedding_components": ("in [0, 256]", lambda v: 0 <= v <= 256),
        "estimator.shortlist": (">= 0", lambda v: v >= 0),
        "replay.fresh_fraction": ("in (0, 1]", lambda v: 0 < v <= 1),
        "replay.capacity_groups": ("> 0", lambda v: v > 0),
        "replay.capacity_bytes": (">= 0", lambda v: v >= 0),
        "replay.max_age_steps": (">= 0", lambda v: v >= 0),
        "replay.max_uses": (">= 0", lambda v: v >= 0),
        "replay.min_effective_sample_size": ("in [0, 1]", lambda v: 0 <= v <= 1),
        "sampling.temperature": ("finite and > 0", lambda v: v is None or 0 < v < math.inf),
        "sampling.top_p": ("in (0, 1]", lambda v: v is None or 0 < v <= 1),
        "sampling.top_k": (">= -1", lambda v: v is None or v >= -1),
    }
)


def resolve(explicit: Mapping[str, Any]) -> RunConfig:
    """Lay explicit values over their preset.

    Args:
        explicit: field name -> value, nested by mappings; only the fields that were set.

    Raises:
        ServiceError: INVALID_FIELD or CONTRADICTORY_FIELDS, with the path of every field that is wrong.
    """
    preset = explicit.get("preset", "DEFAULT")
    if preset not in PRESETS:
        raise invalid_fields([FieldViolation("config.preset", f"expected one of {', '.join(PRESETS)}; got {preset}")])
    given = {name: value for name, value in explicit.items() if name != "preset"}
    outcome_range = given.pop("outcome_range", None)
    violations = _range_violations(given, "")
    if outcome_range is not None:
        violations += _outcome_range_violations(outcome_range)
    if violations:
        raise invalid_fields(violations)

    config = _overlay(PRESETS[preset], given)
    if "fraction" not in given.get("reference", {}):
        fraction = ReferenceConfig.fraction if config.reference.mode == "IN_BATCH" else 0.0
        config = replace(config, reference=replace(config.reference, fraction=fraction))
    if outcome_range is not None:
        config = replace(config, outcome_range=(float(outcome_range[0]), float(outcome_range[1])))
    if "score_temperature" not in given:
        config = replace(config, score_temperature=_SCORE_TEMPERATURES.get(config.score, 1.0))
    contradictions = _contradictions(config, given)
    if contradictions:
        raise invalid_fields(contradictions, Reason.CONTRADICTORY_FIELDS)
    return config


def config_to_json(config: RunConfig) -> str:
    """Canonical JSON of a resolved configuration."""
    return json.dumps(asdict(config), sort_keys=True)


def config_from_json(text: str) -> RunConfig:
    """Inverse of ``config_to_json``; fields added since keep the value they had before they existed: the default.

    Raises:
        ValueError: it is not the JSON of a configuration, or a value is out of range.
    """
    try:
        values = loads(text)
        violations = _range_violations(values, "") + _outcome_range_violations(values["outcome_range"])
        if violations:
            raise invalid_fields(violations)
        values["outcome_range"] = tuple(values["outcome_range"])
        # A run that is older than the search for twins goes on without.
        values.setdefault("twin_similarity", 0.0)
        if values["sampling"] is None:
            del values["sampling"]
        config = cast(RunConfig, _overlay(RunConfig(), values))
        check_types(config)
    except (ServiceError, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"the stored configuration is damaged: {error}") from error
    return config


def differences(left: RunConfig, right: RunConfig) -> list[tuple[str, Any, Any]]:
    """Paths at which two configurations differ, with both values."""
    return _differences(asdict(left), asdict(right), "")


def _differences(left: Any, right: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for name in left:
            found += _differences(left[name], right[name], f"{path}.{name}" if path else name)
        return found
    return [] if left == right else [(path, left, right)]


def _overlay(base: Any, given: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(base)}
    unknown = set(given) - known
    if unknown:
        names = ", ".join(sorted(unknown))
        raise invalid_fields([FieldViolation("config", f"unknown field {names}")])
    changes: dict[str, Any] = {}
    for name, value in given.items():
        current = getattr(base, name)
        if isinstance(value, Mapping):
            changes[name] = _overlay(current if is_dataclass(current) else SamplingSettings(), value)
        else:
            changes[name] = value
    return replace(base, **changes)


def _range_violations(given: Mapping[str, Any], prefix: str) -> list[FieldViolation]:
    violations: list[FieldViolation] = []
    for name, value in given.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            violations += _range_violations(value, f"{path}.")
        elif path in _CHOICES and value not in _CHOICES[path]:
            choices = ", ".join(_CHOICES[path])
            violations.append(FieldViolation(f"config.{path}", f"expected one of {choices}; got {value}"))
        elif path in _RANGES:
            expected, holds = _RANGES[path]
            if not holds(value):
                violations.append(FieldViolation(f"config.{path}", f"expected {expected}; got {value}"))
    return violations


def _outcome_range_violations(outcome_range: Any) -> list[FieldViolation]:
    values = list(outcome_range)
    if len(values) == 2 and all(math.isfinite(v) for v in values):
        low, high = values
        if low < high and math.isfinite(high - low):
            return []
    return [
        FieldViolation(
            "config.outcome_range", f"expected two finite numbers, low < high, with a finite difference; got {values}"
        )
    ]


def _contradictions(config: RunConfig, given: Mapping[str, Any]) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    reference = given.get("reference", {})
    mode = config.reference.mode
    if "score_temperature" in given and config.score in ("NEAR_TARGET", "UNIFORM"):
        hint = "selection_temperature" if config.score == "NEAR_TARGET" else "no temperature"
        found.append(FieldViolation("config.score_temperature", f"score {config.score} uses {hint}"))
    if mode != "IN_BATCH" and reference.get("fraction", 0.0) > 0:
        found.append(FieldViolation("config.reference.fraction", f"is for mode IN_BATCH; the mode is {mode}"))
    if mode != "DEDICATED" and "every_steps" in reference:
        found.append(FieldViolation("config.reference.every_steps", f"is for mode DEDICATED; the mode is {mode}"))
    if config.strict_cool_down and config.cool_down_steps == 0:
        found.append(FieldViolation("config.strict_cool_down", "needs cool_down_steps > 0"))
    estimator = config.estimator
    if estimator.adapter and estimator.name == "TRACKER":
        found.append(FieldViolation("config.estimator.adapter", "is for FUSED and ATTENTION; the estimator is TRACKER"))
    if "tracker_decay" in given.get("estimator", {}) and estimator.name != "TRACKER":
        found.append(
            FieldViolation("config.estimator.tracker_decay", f"is for TRACKER; the estimator is {estimator.name}")
        )
    if "embedding_components" in given.get("estimator", {}) and estimator.name != "FUSED":
        found.append(
            FieldViolation("config.estimator.embedding_components", f"is for FUSED; the estimator is {estimator.name}")
        )
    if estimator.shortlist and estimator.name != "ATTENTION":
        found.append(
            FieldViolation("config.estimator.shortlist", f"is for ATTENTION; the estimator is {estimator.name}")
        )
    stated = config.sampling
    if stated is not None and stated.log_prob_mode == "UNSPECIFIED":
        found.append(FieldViolation("config.sampling.log_prob_mode", "must be RAW or PROCESSED when sampling is set"))
    return found
