"""What can be asked of a run, and what is answered: the domain's side of the protocol.

These types hold Python and numpy values that have been checked for form (types, ranges that need no state); whether
they make sense for the run (known prompts, outcome range) is checked by the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class RequestKey:
    """Identifies a mutating request.

    Attributes:
        request_id: empty = the caller does not want idempotency by id.
        method: name of the RPC.
        fingerprint: of the content, without the id.
    """

    request_id: str
    method: str
    fingerprint: bytes


class PromptSpec(NamedTuple):
    """A prompt to register; a tuple, since there are millions of them.

    Attributes:
        embedding: (w,) float32, None = to be embedded by the service, if it can.
        prior_rate: another model's success rate, NaN = none.
    """

    prompt_id: str
    text: str
    embedding: np.ndarray | None
    domain: str
    token_count: int
    prior_rate: float
    prior_trials: int


@dataclass(frozen=True)
class RegisterResult:
    """Counts of registered prompts."""

    added: int
    unchanged: int
    replaced: int
    ineligible: int
    ineligible_prompt_ids: list[str]


@dataclass(frozen=True)
class RetireResult:
    """Counts of retired prompts."""

    retired: int
    already_retired: int


@dataclass(frozen=True)
class ImportRequest:
    """Other models' success rates on prompts: parallel (n,) rates in [0, 1] and trials, 0 = no prior.

    Attributes:
        step: the step that a rewind takes the import back with, None = it belongs to no step.
    """

    prompt_ids: Sequence[str]
    rates: np.ndarray
    trials: np.ndarray
    step: int | None
    key: RequestKey


@dataclass(frozen=True)
class ImportResult:
    """Counts of prompts whose prior was imported, and of ids that are not registered, up to ten of them listed."""

    imported: int
    unknown: int
    unknown_prompt_ids: list[str]


@dataclass(frozen=True)
class SelectRequest:
    """A batch to select; ``shard_index`` of ``shard_count`` is this caller's part of it."""

    step: int
    round: int
    batch_size: int
    purpose: int
    fresh_only: bool
    exclude_prompt_ids: Sequence[str]
    shard_index: int
    shard_count: int
    key: RequestKey


@dataclass(frozen=True, eq=False)
class Batch:
    """A selected batch (or one shard of it); parallel columns as in SelectBatchResponse. Equal to itself alone."""

    prompt_ids: list[str]
    difficulty: np.ndarray
    standard_error: np.ndarray
    probability: np.ndarray
    arm: np.ndarray
    rollouts: np.ndarray
    replay_groups: int
    shortfall: int
    shortfall_reason: int
    reference_due: bool
    estimate_step: int
    degraded: bool


@dataclass(frozen=True)
class ReportRequest:
    """Outcomes of rolled-out prompts; the rollouts of all prompts one after another.

    Attributes:
        prompt_ids: M of them, each once.
        count: (M,) int32 rollouts of each prompt, at least 1.
        outcomes: (sum of count,) float64, raw.
        statuses: (sum of count,) uint8 RolloutStatus codes, 0 = none was sent.
    """

    step: int
    purpose: int
    prompt_ids: Sequence[str]
    count: np.ndarray
    outcomes: np.ndarray
    statuses: np.ndarray
    key: RequestKey


@dataclass(frozen=True)
class ReportResult:
    """What a report changed."""

    applied_groups: int
    informative_groups: int
    empty_groups: int
    skipped_rollouts: int
    dropped_rollouts: int
    clipped_outcomes: int
    already_applied: bool = False


@dataclass(frozen=True)
class TrainingRequest:
    """What the trainer saw; signals as name -> (prompt ids, (n,) float64)."""

    step: int
    effective_sample_size: float | None
    max_importance_weight: float | None
    clip_fraction: float | None
    updates: int | None
    key: RequestKey
    signals: Mapping[str, tuple[Sequence[str], np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """Whether the report had been applied before."""

    already_applied: bool = False


@dataclass(frozen=True)
class ForkResult:
    """The number of the run that a fork made, 0 = it was recorded before numbers were."""

    run: int = 0


@dataclass(frozen=True)
class RewindResult:
    """What a rewind dropped and brought back."""

    dropped_selections: int
    dropped_reports: int
    dropped_replay_groups: int
    restored_replay_groups: int
