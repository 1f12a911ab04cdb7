"""What the calls answer: frozen dataclasses with numpy arrays.

Fields are the protocol's, under the same names. Repeated numbers are arrays, repeated strings and names of enums are
tuples, enums are names without their prefix (``"TARGETED"``), and None stands for what is absent or unspecified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from clients.rollout_group import RolloutGroup
from selector.v1 import run_pb2


@dataclass(frozen=True, eq=False)
class Selection:
    """Prompts to roll out, as parallel columns, and how many groups to replay.

    Over all shards, ``len(prompt_ids) + replay_groups + shortfall`` is the batch size that was asked for.

    Attributes:
        predicted_difficulties: (n,) float64, 1 - expected outcome under the current policy.
        standard_errors: (n,) float64, of the predicted difficulty.
        probabilities: (n,) float64, with which the prompt was chosen by its arm.
        arms: TARGETED (by difficulty), UNIFORM (drawn uniformly) or REVIEW (not seen for too long).
        rollouts: (n,) int32, how many to generate.
        replay_groups: how many groups to take with ``sample_rollouts``.
        shortfall_reason: POOL_TOO_SMALL, EXCLUDED, LEASED, COOLING_DOWN or None.
        reference_due: a dedicated reference pass is due before the next training selection.
        estimate_step: largest step among the outcomes the estimate has seen; -1 = none.
        degraded: the estimate does not include every acknowledged outcome.
    """

    prompt_ids: tuple[str, ...]
    predicted_difficulties: np.ndarray
    standard_errors: np.ndarray
    probabilities: np.ndarray
    arms: tuple[str, ...]
    rollouts: np.ndarray
    replay_groups: int
    shortfall: int
    shortfall_reason: str | None
    reference_due: bool
    estimate_step: int
    degraded: bool

    def __len__(self) -> int:
        """Number of prompts to roll out."""
        return len(self.prompt_ids)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted difficulty of prompts, as parallel columns.

    Attributes:
        bases: what each prediction mostly rests on: OWN, POPULATION, PRIOR or NONE.
        own_weights: (n,) float64, share that rests on the prompt's own outcomes, in [0, 1].
        estimate_step: largest step among the outcomes the estimate has seen; -1 = none.
    """

    prompt_ids: tuple[str, ...]
    predicted_difficulties: np.ndarray
    standard_errors: np.ndarray
    bases: tuple[str, ...]
    own_weights: np.ndarray
    estimate_step: int

    def __len__(self) -> int:
        return len(self.prompt_ids)


class Sample(list[RolloutGroup]):
    """Sampled groups, with how many are missing and how many were eligible (0 where no call was needed)."""

    def __init__(
        self,
        groups: Iterable[RolloutGroup] = (),
        *,
        shortfall: int = 0,
        shortfall_reason: str | None = None,
        eligible_groups: int = 0,
    ) -> None:
        super().__init__(groups)
        self.shortfall = shortfall
        self.shortfall_reason = shortfall_reason
        self.eligible_groups = eligible_groups


@dataclass(frozen=True)
class PoolCounts:
    """Counts of a run's prompts by status, and how the pool changed."""

    registered: int
    active: int
    retired: int
    ineligible: int
    selected: int
    never_selected: int
    leased: int
    registered_after_start: int
    replaced: int


@dataclass(frozen=True, repr=False)
class RunInfo:
    """One run: config in effect, state (EMPTY or READY) and counts. Its repr leaves out most of it."""

    run_id: str
    config: run_pb2.RunConfig
    state: str | None
    pool: PoolCounts
    last_step: int
    selections: int
    outcome_groups: int
    outcome_rollouts: int
    replay_groups: int
    replay_bytes: int
    reference_due: bool
    created_unix_seconds: float
    forked_from: str
    forked_at_step: int
    encoder: str
    embedding_width: int

    def __repr__(self) -> str:
        return (
            f"RunInfo(run_id={self.run_id!r}, state={self.state}, active_prompts={self.pool.active}, "
            f"last_step={self.last_step}, outcome_groups={self.outcome_groups}, replay_groups={self.replay_groups}, …)"
        )


@dataclass(frozen=True)
class RunCreated:
    """The run as it now stands; ``created`` is False if it existed with the same config."""

    run: RunInfo
    created: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Rewound:
    """What a rewind dropped, and replay groups that had left the buffer since and are back."""

    dropped_selections: int
    dropped_reports: int
    dropped_replay_groups: int
    restored_replay_groups: int


@dataclass(frozen=True)
class Registered:
    """Prompts by what registering them did; up to ten ids of those too long to be selected."""

    added: int
    unchanged: int
    replaced: int
    ineligible: int
    ineligible_prompt_ids: tuple[str, ...]


@dataclass(frozen=True)
class PriorsImported:
    """Prompts whose prior was imported, and ids that are not registered, up to ten of them listed."""

    imported: int = 0
    unknown: int = 0
    unknown_prompt_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Retired:
    """Prompts taken out of selection now, and before."""

    retired: int
    already_retired: int


@dataclass(frozen=True)
class OutcomesReported:
    """What a report of outcomes changed."""

    applied_groups: int = 0
    informative_groups: int = 0
    empty_groups: int = 0
    skipped_rollouts: int = 0
    dropped_rollouts: int = 0
    clipped_outcomes: int = 0
    already_applied: bool = False


@dataclass(frozen=True)
class RefusedGroup:
    """A pushed group that was not stored: its position, the named reason, and the field that is wrong."""

    index: int
    prompt_id: str
    group_id: str
    reason: str
    field: str
    description: str


@dataclass(frozen=True)
class Pushed:
    """Groups by what pushing them did; ``refused`` only with ``skip_refused``."""

    stored: int = 0
    uninformative: int = 0
    unchanged: int = 0
    outdated: int = 0
    evicted: int = 0
    refused: tuple[RefusedGroup, ...] = ()
    already_applied: bool = False


@dataclass(frozen=True, eq=False)
class OutcomeRecord:
    """Reported outcomes of one prompt at one step, mapped to [0, 1].

    ``predicted_difficulty`` is from before they were seen; None for a prompt that was never selected.
    """

    step: int
    purpose: str | None
    outcomes: np.ndarray
    difficulty: float
    informative: bool
    predicted_difficulty: float | None
    arm: str | None


@dataclass(frozen=True)
class SelectionRecord:
    """One selection of one prompt."""

    step: int
    purpose: str | None
    round: int
    arm: str | None
    probability: float
    predicted_difficulty: float
    standard_error: float


@dataclass(frozen=True)
class ReferenceWeight:
    """A reference prompt that a prediction leans on."""

    prompt_id: str
    weight: float
    difficulty: float


@dataclass(frozen=True)
class Explanation:
    """One prompt's history, prediction, and why it was not in the latest training selection (empty if it was)."""

    prompt_id: str
    status: str | None
    status_reason: str
    predicted_difficulty: float
    standard_error: float
    basis: str | None
    own_weight: float
    references: tuple[ReferenceWeight, ...]
    outcomes: tuple[OutcomeRecord, ...]
    selections: tuple[SelectionRecord, ...]
    not_selected_because: str
    score_rank: int
    domain: str
    text: str
    twin_prompt_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArmQuality:
    """Groups of one arm reported within the window; figures of predictions are None where no group had one.

    ``reference`` marks the groups of reference passes, which are drawn uniformly too.
    """

    arm: str | None
    groups: int
    informative_groups: int
    informative_ratio: float
    mean_predicted_difficulty: float | None
    mean_difficulty: float
    mean_absolute_error: float | None
    reference: bool


@dataclass(frozen=True)
class Quality:
    """Whether selection is any good; None where there is not enough evidence. See the protocol for each figure."""

    window_groups: int
    arms: tuple[ArmQuality, ...]
    pearson: float | None
    mean_absolute_error: float | None
    mean_absolute_error_of_mean: float | None
    brier: float | None
    calibration_slope: float | None
    expected_calibration_error: float | None
    in_band_share: float | None
    population_success_rate: float | None
    coverage: float
    max_steps_since_selected: int
    starved_prompts: int
    estimate_age_steps: int
    degraded_selections: int
    informative_per_generated: float | None
    generated_groups: int
    effective_sample_size: float | None
    max_importance_weight: float | None
    clip_fraction: float | None
    replay_groups: int
    replay_bytes: int
    largest_domain_share: float | None
    twin_prompts: int = 0


@dataclass(frozen=True)
class OutcomeRow:
    """One reported group of a run's recorded history."""

    prompt_id: str
    record: OutcomeRecord


@dataclass(frozen=True)
class PromptRow:
    """One prompt of a run's pool as it is registered now.

    Attributes:
        prior: another model's pass rate and the trials behind it, if one was given.
        embedding: (w,) float32, if the prompt has one.
        status: ``"ACTIVE"``, ``"RETIRED"`` or ``"INELIGIBLE"``.
    """

    prompt_id: str
    text: str
    domain: str
    token_count: int
    prior: tuple[float, int] | None
    embedding: np.ndarray | None
    status: str | None


@dataclass(frozen=True)
class SelectionRow:
    """One selected prompt of a run's recorded history."""

    prompt_id: str
    record: SelectionRecord


ExportRow = OutcomeRow | SelectionRow | PromptRow
"""What an export holds, by its kind."""
