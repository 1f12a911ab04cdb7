from selector.v1 import run_pb2 as _run_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ARM_REVIEW: Arm
ARM_TARGETED: Arm
ARM_UNIFORM: Arm
ARM_UNSPECIFIED: Arm
BASIS_NONE: Basis
BASIS_OWN: Basis
BASIS_POPULATION: Basis
BASIS_PRIOR: Basis
BASIS_UNSPECIFIED: Basis
DESCRIPTOR: _descriptor.FileDescriptor
EXPORT_KIND_OUTCOMES: ExportKind
EXPORT_KIND_PROMPTS: ExportKind
EXPORT_KIND_SELECTIONS: ExportKind
EXPORT_KIND_UNSPECIFIED: ExportKind
PROMPT_STATUS_ACTIVE: PromptStatus
PROMPT_STATUS_INELIGIBLE: PromptStatus
PROMPT_STATUS_RETIRED: PromptStatus
PROMPT_STATUS_UNSPECIFIED: PromptStatus
PURPOSE_REFERENCE: Purpose
PURPOSE_TRAIN: Purpose
PURPOSE_UNSPECIFIED: Purpose
ROLLOUT_STATUS_ABORTED: RolloutStatus
ROLLOUT_STATUS_COMPLETED: RolloutStatus
ROLLOUT_STATUS_TRUNCATED: RolloutStatus
ROLLOUT_STATUS_UNSCORABLE: RolloutStatus
ROLLOUT_STATUS_UNSPECIFIED: RolloutStatus
SHORTFALL_REASON_BUFFER_TOO_SMALL: ShortfallReason
SHORTFALL_REASON_COOLING_DOWN: ShortfallReason
SHORTFALL_REASON_EXCLUDED: ShortfallReason
SHORTFALL_REASON_LEASED: ShortfallReason
SHORTFALL_REASON_POOL_TOO_SMALL: ShortfallReason
SHORTFALL_REASON_UNSPECIFIED: ShortfallReason

class ArmQuality(_message.Message):
    __slots__ = ["arm", "groups", "informative_groups", "informative_ratio", "mean_absolute_error", "mean_difficulty", "mean_predicted_difficulty", "reference"]
    ARM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_RATIO_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEAN_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    MEAN_PREDICTED_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    arm: Arm
    groups: int
    informative_groups: int
    informative_ratio: float
    mean_absolute_error: float
    mean_difficulty: float
    mean_predicted_difficulty: float
    reference: bool
    def __init__(self, arm: _Optional[_Union[Arm, str]] = ..., groups: _Optional[int] = ..., informative_groups: _Optional[int] = ..., informative_ratio: _Optional[float] = ..., mean_predicted_difficulty: _Optional[float] = ..., mean_difficulty: _Optional[float] = ..., mean_absolute_error: _Optional[float] = ..., reference: bool = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ["config", "request_id", "run_id"]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    config: _run_pb2.RunConfig
    request_id: str
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., config: _Optional[_Union[_run_pb2.RunConfig, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ["created", "run", "warnings"]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    created: bool
    run: _run_pb2.Run
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., created: bool = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ["request_id", "run_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ExplainPromptRequest(_message.Message):
    __slots__ = ["limit", "prompt_id", "run_id"]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    prompt_id: str
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., prompt_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ExplainPromptResponse(_message.Message):
    __slots__ = ["basis", "domain", "not_selected_because", "outcomes", "own_weight", "predicted_difficulty", "prompt_id", "references", "score_rank", "selections", "standard_error", "status", "status_reason", "text", "twin_prompt_ids"]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NOT_SELECTED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    OWN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SCORE_RANK_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TWIN_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    basis: Basis
    domain: str
    not_selected_because: str
    outcomes: _containers.RepeatedCompositeFieldContainer[OutcomeRecord]
    own_weight: float
    predicted_difficulty: float
    prompt_id: str
    references: _containers.RepeatedCompositeFieldContainer[ReferenceWeight]
    score_rank: int
    selections: _containers.RepeatedCompositeFieldContainer[SelectionRecord]
    standard_error: float
    status: PromptStatus
    status_reason: str
    text: str
    twin_prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prompt_id: _Optional[str] = ..., status: _Optional[_Union[PromptStatus, str]] = ..., status_reason: _Optional[str] = ..., predicted_difficulty: _Optional[float] = ..., standard_error: _Optional[float] = ..., basis: _Optional[_Union[Basis, str]] = ..., own_weight: _Optional[float] = ..., references: _Optional[_Iterable[_Union[ReferenceWeight, _Mapping]]] = ..., outcomes: _Optional[_Iterable[_Union[OutcomeRecord, _Mapping]]] = ..., selections: _Optional[_Iterable[_Union[SelectionRecord, _Mapping]]] = ..., not_selected_because: _Optional[str] = ..., score_rank: _Optional[int] = ..., domain: _Optional[str] = ..., text: _Optional[str] = ..., twin_prompt_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ExportRunRequest(_message.Message):
    __slots__ = ["kind", "run_id"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    kind: ExportKind
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., kind: _Optional[_Union[ExportKind, str]] = ...) -> None: ...

class ExportRunResponse(_message.Message):
    __slots__ = ["outcomes", "prompts", "selections"]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[OutcomeRow]
    prompts: _containers.RepeatedCompositeFieldContainer[PromptRow]
    selections: _containers.RepeatedCompositeFieldContainer[SelectionRow]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[OutcomeRow, _Mapping]]] = ..., selections: _Optional[_Iterable[_Union[SelectionRow, _Mapping]]] = ..., prompts: _Optional[_Iterable[_Union[PromptRow, _Mapping]]] = ...) -> None: ...

class ForkRunRequest(_message.Message):
    __slots__ = ["new_run_id", "request_id", "run_id", "step"]
    NEW_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    new_run_id: str
    request_id: str
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., new_run_id: _Optional[str] = ..., step: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForkRunResponse(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ["run_id"]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class GetSelectionQualityRequest(_message.Message):
    __slots__ = ["run_id"]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetSelectionQualityResponse(_message.Message):
    __slots__ = ["arms", "brier", "calibration_slope", "clip_fraction", "coverage", "degraded_selections", "effective_sample_size", "estimate_age_steps", "expected_calibration_error", "generated_groups", "in_band_share", "informative_per_generated", "largest_domain_share", "max_importance_weight", "max_steps_since_selected", "mean_absolute_error", "mean_absolute_error_of_mean", "pearson", "population_success_rate", "replay_bytes", "replay_groups", "starved_prompts", "twin_prompts", "window_groups"]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    BRIER_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_SLOPE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FRACTION_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_SAMPLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_AGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_CALIBRATION_ERROR_FIELD_NUMBER: _ClassVar[int]
    GENERATED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_PER_GENERATED_FIELD_NUMBER: _ClassVar[int]
    IN_BAND_SHARE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_DOMAIN_SHARE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMPORTANCE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_SINCE_SELECTED_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_ERROR_OF_MEAN_FIELD_NUMBER: _ClassVar[int]
    PEARSON_FIELD_NUMBER: _ClassVar[int]
    POPULATION_SUCCESS_RATE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    STARVED_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TWIN_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_GROUPS_FIELD_NUMBER: _ClassVar[int]
    arms: _containers.RepeatedCompositeFieldContainer[ArmQuality]
    brier: float
    calibration_slope: float
    clip_fraction: float
    coverage: float
    degraded_selections: int
    effective_sample_size: float
    estimate_age_steps: int
    expected_calibration_error: float
    generated_groups: int
    in_band_share: float
    informative_per_generated: float
    largest_domain_share: float
    max_importance_weight: float
    max_steps_since_selected: int
    mean_absolute_error: float
    mean_absolute_error_of_mean: float
    pearson: float
    population_success_rate: float
    replay_bytes: int
    replay_groups: int
    starved_prompts: int
    twin_prompts: int
    window_groups: int
    def __init__(self, window_groups: _Optional[int] = ..., arms: _Optional[_Iterable[_Union[ArmQuality, _Mapping]]] = ..., pearson: _Optional[float] = ..., mean_absolute_error: _Optional[float] = ..., mean_absolute_error_of_mean: _Optional[float] = ..., brier: _Optional[float] = ..., calibration_slope: _Optional[float] = ..., expected_calibration_error: _Optional[float] = ..., in_band_share: _Optional[float] = ..., population_success_rate: _Optional[float] = ..., coverage: _Optional[float] = ..., max_steps_since_selected: _Optional[int] = ..., starved_prompts: _Optional[int] = ..., estimate_age_steps: _Optional[int] = ..., degraded_selections: _Optional[int] = ..., informative_per_generated: _Optional[float] = ..., generated_groups: _Optional[int] = ..., effective_sample_size: _Optional[float] = ..., max_importance_weight: _Optional[float] = ..., clip_fraction: _Optional[float] = ..., replay_groups: _Optional[int] = ..., replay_bytes: _Optional[int] = ..., largest_domain_share: _Optional[float] = ..., twin_prompts: _Optional[int] = ...) -> None: ...

class ImportPriorsRequest(_message.Message):
    __slots__ = ["priors", "request_id", "run_id", "step"]
    PRIORS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    priors: _containers.RepeatedCompositeFieldContainer[ImportedPrior]
    request_id: str
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ..., step: _Optional[int] = ..., priors: _Optional[_Iterable[_Union[ImportedPrior, _Mapping]]] = ...) -> None: ...

class ImportPriorsResponse(_message.Message):
    __slots__ = ["imported", "unknown", "unknown_prompt_ids"]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    imported: int
    unknown: int
    unknown_prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, imported: _Optional[int] = ..., unknown: _Optional[int] = ..., unknown_prompt_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ImportedPrior(_message.Message):
    __slots__ = ["pass_rate", "prompt_id", "trials"]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    pass_rate: float
    prompt_id: str
    trials: int
    def __init__(self, prompt_id: _Optional[str] = ..., pass_rate: _Optional[float] = ..., trials: _Optional[int] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ["next_page_token", "runs"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class OutcomeRecord(_message.Message):
    __slots__ = ["arm", "difficulty", "informative", "outcomes", "predicted_difficulty", "purpose", "step"]
    ARM_FIELD_NUMBER: _ClassVar[int]
    DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    arm: Arm
    difficulty: float
    informative: bool
    outcomes: _containers.RepeatedScalarFieldContainer[float]
    predicted_difficulty: float
    purpose: Purpose
    step: int
    def __init__(self, step: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., outcomes: _Optional[_Iterable[float]] = ..., difficulty: _Optional[float] = ..., informative: bool = ..., predicted_difficulty: _Optional[float] = ..., arm: _Optional[_Union[Arm, str]] = ...) -> None: ...

class OutcomeRow(_message.Message):
    __slots__ = ["prompt_id", "record"]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    record: OutcomeRecord
    def __init__(self, prompt_id: _Optional[str] = ..., record: _Optional[_Union[OutcomeRecord, _Mapping]] = ...) -> None: ...

class PredictDifficultyRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "prompt_ids", "run_id"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class PredictDifficultyResponse(_message.Message):
    __slots__ = ["bases", "estimate_step", "next_page_token", "own_weights", "predicted_difficulties", "prompt_ids", "standard_errors"]
    BASES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_STEP_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWN_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_DIFFICULTIES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    bases: _containers.RepeatedScalarFieldContainer[Basis]
    estimate_step: int
    next_page_token: str
    own_weights: _containers.RepeatedScalarFieldContainer[float]
    predicted_difficulties: _containers.RepeatedScalarFieldContainer[float]
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    standard_errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prompt_ids: _Optional[_Iterable[str]] = ..., predicted_difficulties: _Optional[_Iterable[float]] = ..., standard_errors: _Optional[_Iterable[float]] = ..., bases: _Optional[_Iterable[_Union[Basis, str]]] = ..., own_weights: _Optional[_Iterable[float]] = ..., estimate_step: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Prior(_message.Message):
    __slots__ = ["pass_rate", "trials"]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    pass_rate: float
    trials: int
    def __init__(self, pass_rate: _Optional[float] = ..., trials: _Optional[int] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ["domain", "embedding", "prior", "prompt_id", "text", "token_count"]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    domain: str
    embedding: bytes
    prior: Prior
    prompt_id: str
    text: str
    token_count: int
    def __init__(self, prompt_id: _Optional[str] = ..., text: _Optional[str] = ..., embedding: _Optional[bytes] = ..., domain: _Optional[str] = ..., token_count: _Optional[int] = ..., prior: _Optional[_Union[Prior, _Mapping]] = ...) -> None: ...

class PromptOutcomes(_message.Message):
    __slots__ = ["outcomes", "prompt_id", "statuses"]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[float]
    prompt_id: str
    statuses: _containers.RepeatedScalarFieldContainer[RolloutStatus]
    def __init__(self, prompt_id: _Optional[str] = ..., outcomes: _Optional[_Iterable[float]] = ..., statuses: _Optional[_Iterable[_Union[RolloutStatus, str]]] = ...) -> None: ...

class PromptRow(_message.Message):
    __slots__ = ["prompt", "status"]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    status: PromptStatus
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., status: _Optional[_Union[PromptStatus, str]] = ...) -> None: ...

class ReferenceWeight(_message.Message):
    __slots__ = ["difficulty", "prompt_id", "weight"]
    DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    difficulty: float
    prompt_id: str
    weight: float
    def __init__(self, prompt_id: _Optional[str] = ..., weight: _Optional[float] = ..., difficulty: _Optional[float] = ...) -> None: ...

class RegisterPromptsRequest(_message.Message):
    __slots__ = ["prompts", "replace", "request_id", "run_id"]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    replace: bool
    request_id: str
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ..., replace: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class RegisterPromptsResponse(_message.Message):
    __slots__ = ["added", "ineligible", "ineligible_prompt_ids", "replaced", "unchanged"]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    added: int
    ineligible: int
    ineligible_prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    replaced: int
    unchanged: int
    def __init__(self, added: _Optional[int] = ..., unchanged: _Optional[int] = ..., replaced: _Optional[int] = ..., ineligible: _Optional[int] = ..., ineligible_prompt_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportOutcomesRequest(_message.Message):
    __slots__ = ["outcomes", "purpose", "request_id", "run_id", "step"]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[PromptOutcomes]
    purpose: Purpose
    request_id: str
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., request_id: _Optional[str] = ..., outcomes: _Optional[_Iterable[_Union[PromptOutcomes, _Mapping]]] = ...) -> None: ...

class ReportOutcomesResponse(_message.Message):
    __slots__ = ["already_applied", "applied_groups", "clipped_outcomes", "dropped_rollouts", "empty_groups", "informative_groups", "skipped_rollouts"]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    already_applied: bool
    applied_groups: int
    clipped_outcomes: int
    dropped_rollouts: int
    empty_groups: int
    informative_groups: int
    skipped_rollouts: int
    def __init__(self, applied_groups: _Optional[int] = ..., informative_groups: _Optional[int] = ..., empty_groups: _Optional[int] = ..., skipped_rollouts: _Optional[int] = ..., dropped_rollouts: _Optional[int] = ..., clipped_outcomes: _Optional[int] = ..., already_applied: bool = ...) -> None: ...

class ReportTrainingRequest(_message.Message):
    __slots__ = ["clip_fraction", "effective_sample_size", "max_importance_weight", "request_id", "run_id", "signals", "step", "updates"]
    CLIP_FRACTION_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_SAMPLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMPORTANCE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    clip_fraction: float
    effective_sample_size: float
    max_importance_weight: float
    request_id: str
    run_id: str
    signals: _containers.RepeatedCompositeFieldContainer[Signal]
    step: int
    updates: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., request_id: _Optional[str] = ..., effective_sample_size: _Optional[float] = ..., max_importance_weight: _Optional[float] = ..., clip_fraction: _Optional[float] = ..., updates: _Optional[int] = ..., signals: _Optional[_Iterable[_Union[Signal, _Mapping]]] = ...) -> None: ...

class ReportTrainingResponse(_message.Message):
    __slots__ = ["already_applied"]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    already_applied: bool
    def __init__(self, already_applied: bool = ...) -> None: ...

class RetirePromptsRequest(_message.Message):
    __slots__ = ["prompt_ids", "request_id", "run_id"]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    run_id: str
    def __init__(self, run_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class RetirePromptsResponse(_message.Message):
    __slots__ = ["already_retired", "retired"]
    ALREADY_RETIRED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    already_retired: int
    retired: int
    def __init__(self, retired: _Optional[int] = ..., already_retired: _Optional[int] = ...) -> None: ...

class RewindRunRequest(_message.Message):
    __slots__ = ["request_id", "run_id", "step"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class RewindRunResponse(_message.Message):
    __slots__ = ["dropped_replay_groups", "dropped_reports", "dropped_selections", "restored_replay_groups"]
    DROPPED_REPLAY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_REPORTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_REPLAY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    dropped_replay_groups: int
    dropped_reports: int
    dropped_selections: int
    restored_replay_groups: int
    def __init__(self, dropped_selections: _Optional[int] = ..., dropped_reports: _Optional[int] = ..., dropped_replay_groups: _Optional[int] = ..., restored_replay_groups: _Optional[int] = ...) -> None: ...

class SelectBatchRequest(_message.Message):
    __slots__ = ["batch_size", "exclude_prompt_ids", "fresh_only", "purpose", "request_id", "round", "run_id", "shard", "step"]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    FRESH_ONLY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    exclude_prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    fresh_only: bool
    purpose: Purpose
    request_id: str
    round: int
    run_id: str
    shard: Shard
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., round: _Optional[int] = ..., batch_size: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., request_id: _Optional[str] = ..., exclude_prompt_ids: _Optional[_Iterable[str]] = ..., fresh_only: bool = ..., shard: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class SelectBatchResponse(_message.Message):
    __slots__ = ["arms", "degraded", "estimate_step", "predicted_difficulties", "probabilities", "prompt_ids", "reference_due", "replay_groups", "rollouts", "shortfall", "shortfall_reason", "standard_errors"]
    ARMS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_STEP_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_DIFFICULTIES_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DUE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_REASON_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    arms: _containers.RepeatedScalarFieldContainer[Arm]
    degraded: bool
    estimate_step: int
    predicted_difficulties: _containers.RepeatedScalarFieldContainer[float]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    reference_due: bool
    replay_groups: int
    rollouts: _containers.RepeatedScalarFieldContainer[int]
    shortfall: int
    shortfall_reason: ShortfallReason
    standard_errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prompt_ids: _Optional[_Iterable[str]] = ..., predicted_difficulties: _Optional[_Iterable[float]] = ..., standard_errors: _Optional[_Iterable[float]] = ..., probabilities: _Optional[_Iterable[float]] = ..., arms: _Optional[_Iterable[_Union[Arm, str]]] = ..., rollouts: _Optional[_Iterable[int]] = ..., replay_groups: _Optional[int] = ..., shortfall: _Optional[int] = ..., shortfall_reason: _Optional[_Union[ShortfallReason, str]] = ..., reference_due: bool = ..., estimate_step: _Optional[int] = ..., degraded: bool = ...) -> None: ...

class SelectionRecord(_message.Message):
    __slots__ = ["arm", "predicted_difficulty", "probability", "purpose", "round", "standard_error", "step"]
    ARM_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    arm: Arm
    predicted_difficulty: float
    probability: float
    purpose: Purpose
    round: int
    standard_error: float
    step: int
    def __init__(self, step: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., round: _Optional[int] = ..., arm: _Optional[_Union[Arm, str]] = ..., probability: _Optional[float] = ..., predicted_difficulty: _Optional[float] = ..., standard_error: _Optional[float] = ...) -> None: ...

class SelectionRow(_message.Message):
    __slots__ = ["prompt_id", "record"]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    record: SelectionRecord
    def __init__(self, prompt_id: _Optional[str] = ..., record: _Optional[_Union[SelectionRecord, _Mapping]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ["count", "index"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    count: int
    index: int
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ["name", "prompt_ids", "values"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Arm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ShortfallReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RolloutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PromptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Basis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ExportKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
