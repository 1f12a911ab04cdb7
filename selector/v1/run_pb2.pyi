from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
ESTIMATOR_NAME_ATTENTION: EstimatorName
ESTIMATOR_NAME_FUSED: EstimatorName
ESTIMATOR_NAME_TRACKER: EstimatorName
ESTIMATOR_NAME_UNSPECIFIED: EstimatorName
LOG_PROB_MODE_PROCESSED: LogProbMode
LOG_PROB_MODE_RAW: LogProbMode
LOG_PROB_MODE_UNSPECIFIED: LogProbMode
ON_NAN_DROP_ROLLOUT: OnNan
ON_NAN_REJECT: OnNan
ON_NAN_UNSPECIFIED: OnNan
PRESET_DEFAULT: Preset
PRESET_PAPER: Preset
PRESET_UNIFORM: Preset
PRESET_UNSPECIFIED: Preset
REFERENCE_MODE_DEDICATED: ReferenceMode
REFERENCE_MODE_IN_BATCH: ReferenceMode
REFERENCE_MODE_NONE: ReferenceMode
REFERENCE_MODE_UNSPECIFIED: ReferenceMode
RUN_STATE_EMPTY: RunState
RUN_STATE_READY: RunState
RUN_STATE_UNSPECIFIED: RunState
SCORE_EVALUATION_EXPECTATION: ScoreEvaluation
SCORE_EVALUATION_THOMPSON: ScoreEvaluation
SCORE_EVALUATION_UNSPECIFIED: ScoreEvaluation
SCORE_INFORMATIVE: Score
SCORE_LEARNABLE: Score
SCORE_NEAR_TARGET: Score
SCORE_UNIFORM: Score
SCORE_UNSPECIFIED: Score

class EstimatorConfig(_message.Message):
    __slots__ = ["adapter", "embedding_components", "name", "shortlist", "tracker_decay"]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    TRACKER_DECAY_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    embedding_components: int
    name: EstimatorName
    shortlist: int
    tracker_decay: float
    def __init__(self, name: _Optional[_Union[EstimatorName, str]] = ..., adapter: _Optional[str] = ..., tracker_decay: _Optional[float] = ..., embedding_components: _Optional[int] = ..., shortlist: _Optional[int] = ...) -> None: ...

class PoolCounts(_message.Message):
    __slots__ = ["active", "ineligible", "leased", "never_selected", "registered", "registered_after_start", "replaced", "retired", "selected"]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    NEVER_SELECTED_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AFTER_START_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    active: int
    ineligible: int
    leased: int
    never_selected: int
    registered: int
    registered_after_start: int
    replaced: int
    retired: int
    selected: int
    def __init__(self, registered: _Optional[int] = ..., active: _Optional[int] = ..., retired: _Optional[int] = ..., ineligible: _Optional[int] = ..., selected: _Optional[int] = ..., never_selected: _Optional[int] = ..., leased: _Optional[int] = ..., registered_after_start: _Optional[int] = ..., replaced: _Optional[int] = ...) -> None: ...

class ReferenceConfig(_message.Message):
    __slots__ = ["every_steps", "fraction", "mode", "size"]
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    every_steps: int
    fraction: float
    mode: ReferenceMode
    size: int
    def __init__(self, mode: _Optional[_Union[ReferenceMode, str]] = ..., size: _Optional[int] = ..., every_steps: _Optional[int] = ..., fraction: _Optional[float] = ...) -> None: ...

class ReplayConfig(_message.Message):
    __slots__ = ["capacity_bytes", "capacity_groups", "fresh_fraction", "informative_only", "max_age_steps", "max_uses", "min_effective_sample_size", "newest_per_prompt"]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FRACTION_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_USES_FIELD_NUMBER: _ClassVar[int]
    MIN_EFFECTIVE_SAMPLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PER_PROMPT_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    capacity_groups: int
    fresh_fraction: float
    informative_only: bool
    max_age_steps: int
    max_uses: int
    min_effective_sample_size: float
    newest_per_prompt: bool
    def __init__(self, fresh_fraction: _Optional[float] = ..., capacity_groups: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., max_age_steps: _Optional[int] = ..., max_uses: _Optional[int] = ..., informative_only: bool = ..., newest_per_prompt: bool = ..., min_effective_sample_size: _Optional[float] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ["config", "created_unix_seconds", "embedding_width", "encoder", "forked_at_step", "forked_from", "last_step", "outcome_groups", "outcome_rollouts", "pool", "reference_due", "replay_bytes", "replay_groups", "run_id", "selections", "state"]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_WIDTH_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    FORKED_AT_STEP_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DUE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    config: RunConfig
    created_unix_seconds: float
    embedding_width: int
    encoder: str
    forked_at_step: int
    forked_from: str
    last_step: int
    outcome_groups: int
    outcome_rollouts: int
    pool: PoolCounts
    reference_due: bool
    replay_bytes: int
    replay_groups: int
    run_id: str
    selections: int
    state: RunState
    def __init__(self, run_id: _Optional[str] = ..., config: _Optional[_Union[RunConfig, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., pool: _Optional[_Union[PoolCounts, _Mapping]] = ..., last_step: _Optional[int] = ..., selections: _Optional[int] = ..., outcome_groups: _Optional[int] = ..., outcome_rollouts: _Optional[int] = ..., replay_groups: _Optional[int] = ..., replay_bytes: _Optional[int] = ..., reference_due: bool = ..., created_unix_seconds: _Optional[float] = ..., forked_from: _Optional[str] = ..., forked_at_step: _Optional[int] = ..., encoder: _Optional[str] = ..., embedding_width: _Optional[int] = ...) -> None: ...

class RunConfig(_message.Message):
    __slots__ = ["clip_outcomes", "cool_down_steps", "estimator", "group_size", "lease_steps", "max_prompt_tokens", "max_unselected_steps", "on_nan", "outcome_range", "preset", "reference", "replay", "review_fraction", "sampling", "score", "score_evaluation", "score_temperature", "seed", "selection_temperature", "strict_cool_down", "target_difficulty", "twin_similarity"]
    CLIP_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    COOL_DOWN_STEPS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEASE_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_UNSELECTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    ON_NAN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_RANGE_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    REVIEW_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SCORE_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SCORE_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SELECTION_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    STRICT_COOL_DOWN_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    TWIN_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    clip_outcomes: bool
    cool_down_steps: int
    estimator: EstimatorConfig
    group_size: int
    lease_steps: int
    max_prompt_tokens: int
    max_unselected_steps: int
    on_nan: OnNan
    outcome_range: _containers.RepeatedScalarFieldContainer[float]
    preset: Preset
    reference: ReferenceConfig
    replay: ReplayConfig
    review_fraction: float
    sampling: SamplingSettings
    score: Score
    score_evaluation: ScoreEvaluation
    score_temperature: float
    seed: int
    selection_temperature: float
    strict_cool_down: bool
    target_difficulty: float
    twin_similarity: float
    def __init__(self, preset: _Optional[_Union[Preset, str]] = ..., group_size: _Optional[int] = ..., target_difficulty: _Optional[float] = ..., selection_temperature: _Optional[float] = ..., seed: _Optional[int] = ..., outcome_range: _Optional[_Iterable[float]] = ..., clip_outcomes: bool = ..., on_nan: _Optional[_Union[OnNan, str]] = ..., reference: _Optional[_Union[ReferenceConfig, _Mapping]] = ..., estimator: _Optional[_Union[EstimatorConfig, _Mapping]] = ..., score: _Optional[_Union[Score, str]] = ..., score_temperature: _Optional[float] = ..., score_evaluation: _Optional[_Union[ScoreEvaluation, str]] = ..., cool_down_steps: _Optional[int] = ..., strict_cool_down: bool = ..., replay: _Optional[_Union[ReplayConfig, _Mapping]] = ..., sampling: _Optional[_Union[SamplingSettings, _Mapping]] = ..., lease_steps: _Optional[int] = ..., max_unselected_steps: _Optional[int] = ..., review_fraction: _Optional[float] = ..., max_prompt_tokens: _Optional[int] = ..., twin_similarity: _Optional[float] = ...) -> None: ...

class SamplingSettings(_message.Message):
    __slots__ = ["log_prob_mode", "temperature", "top_k", "top_p"]
    LOG_PROB_MODE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    log_prob_mode: LogProbMode
    temperature: float
    top_k: int
    top_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., log_prob_mode: _Optional[_Union[LogProbMode, str]] = ...) -> None: ...

class Preset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class OnNan(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ReferenceMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class EstimatorName(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Score(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ScoreEvaluation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class LogProbMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
