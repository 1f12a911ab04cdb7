from selector.v1 import run_pb2 as _run_pb2
from selector.v1 import selector_service_pb2 as _selector_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
SAMPLE_ORDER_NEWEST: SampleOrder
SAMPLE_ORDER_UNIFORM: SampleOrder
SAMPLE_ORDER_UNSPECIFIED: SampleOrder

class Column(_message.Message):
    __slots__ = ["data", "dtype", "lengths", "name", "shape"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    dtype: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class PushRolloutsRequest(_message.Message):
    __slots__ = ["groups", "memory", "memory_messages", "request_id", "run_id", "skip_refused", "step"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SKIP_REFUSED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[RolloutGroup]
    memory: SharedMemory
    memory_messages: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    run_id: str
    skip_refused: bool
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., request_id: _Optional[str] = ..., skip_refused: bool = ..., groups: _Optional[_Iterable[_Union[RolloutGroup, _Mapping]]] = ..., memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., memory_messages: _Optional[_Iterable[int]] = ...) -> None: ...

class PushRolloutsResponse(_message.Message):
    __slots__ = ["already_applied", "evicted", "from_memory", "outdated", "refused", "stored", "unchanged", "uninformative"]
    ALREADY_APPLIED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    FROM_MEMORY_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    UNINFORMATIVE_FIELD_NUMBER: _ClassVar[int]
    already_applied: bool
    evicted: int
    from_memory: bool
    outdated: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedGroup]
    stored: int
    unchanged: int
    uninformative: int
    def __init__(self, stored: _Optional[int] = ..., uninformative: _Optional[int] = ..., unchanged: _Optional[int] = ..., outdated: _Optional[int] = ..., evicted: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedGroup, _Mapping]]] = ..., already_applied: bool = ..., from_memory: bool = ...) -> None: ...

class RefusedGroup(_message.Message):
    __slots__ = ["description", "field", "group_id", "index", "prompt_id", "reason"]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    description: str
    field: str
    group_id: str
    index: int
    prompt_id: str
    reason: str
    def __init__(self, index: _Optional[int] = ..., prompt_id: _Optional[str] = ..., group_id: _Optional[str] = ..., reason: _Optional[str] = ..., field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class RolloutGroup(_message.Message):
    __slots__ = ["behavior_log_probs", "columns", "group_id", "lengths", "loss_mask", "outcomes", "policy_version", "prompt_id", "prompt_token_ids", "response_token_ids", "rewards", "sampling", "statuses"]
    BEHAVIOR_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    behavior_log_probs: bytes
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    group_id: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    loss_mask: bytes
    outcomes: _containers.RepeatedScalarFieldContainer[float]
    policy_version: int
    prompt_id: str
    prompt_token_ids: bytes
    response_token_ids: bytes
    rewards: _containers.RepeatedScalarFieldContainer[float]
    sampling: _run_pb2.SamplingSettings
    statuses: _containers.RepeatedScalarFieldContainer[_selector_service_pb2.RolloutStatus]
    def __init__(self, prompt_id: _Optional[str] = ..., group_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., sampling: _Optional[_Union[_run_pb2.SamplingSettings, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., rewards: _Optional[_Iterable[float]] = ..., outcomes: _Optional[_Iterable[float]] = ..., statuses: _Optional[_Iterable[_Union[_selector_service_pb2.RolloutStatus, str]]] = ..., prompt_token_ids: _Optional[bytes] = ..., response_token_ids: _Optional[bytes] = ..., behavior_log_probs: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class SampleRolloutsRequest(_message.Message):
    __slots__ = ["count", "exclude_prompt_ids", "informative_only", "memory", "min_age_steps", "order", "request_id", "run_id", "shard", "step", "wait"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    INFORMATIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MIN_AGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    count: int
    exclude_prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    informative_only: bool
    memory: SharedMemory
    min_age_steps: int
    order: SampleOrder
    request_id: str
    run_id: str
    shard: _selector_service_pb2.Shard
    step: int
    wait: bool
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., count: _Optional[int] = ..., request_id: _Optional[str] = ..., wait: bool = ..., order: _Optional[_Union[SampleOrder, str]] = ..., min_age_steps: _Optional[int] = ..., exclude_prompt_ids: _Optional[_Iterable[str]] = ..., informative_only: bool = ..., shard: _Optional[_Union[_selector_service_pb2.Shard, _Mapping]] = ..., memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class SampleRolloutsResponse(_message.Message):
    __slots__ = ["eligible_groups", "groups", "last", "memory_bytes", "shortfall", "shortfall_reason"]
    ELIGIBLE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_REASON_FIELD_NUMBER: _ClassVar[int]
    eligible_groups: int
    groups: _containers.RepeatedCompositeFieldContainer[SampledGroup]
    last: bool
    memory_bytes: int
    shortfall: int
    shortfall_reason: _selector_service_pb2.ShortfallReason
    def __init__(self, groups: _Optional[_Iterable[_Union[SampledGroup, _Mapping]]] = ..., shortfall: _Optional[int] = ..., shortfall_reason: _Optional[_Union[_selector_service_pb2.ShortfallReason, str]] = ..., eligible_groups: _Optional[int] = ..., last: bool = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class SampledGroup(_message.Message):
    __slots__ = ["age_steps", "group", "probability", "times_sampled"]
    AGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    age_steps: int
    group: RolloutGroup
    probability: float
    times_sampled: int
    def __init__(self, group: _Optional[_Union[RolloutGroup, _Mapping]] = ..., age_steps: _Optional[int] = ..., times_sampled: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ["descriptor", "key", "process"]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    descriptor: int
    key: bytes
    process: int
    def __init__(self, process: _Optional[int] = ..., descriptor: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class SampleOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
