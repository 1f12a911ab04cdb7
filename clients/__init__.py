"""What a trainer imports: the blocking and the asyncio client, rollout groups, results and typed errors.

Needs numpy, grpcio and protobuf; loads neither torch nor anything of the server.
"""

from clients.aio import AsyncSelectorClient
from clients.columns import Column
from clients.config import run_config
from clients.errors import (
    AlreadyExists,
    ClientClosed,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    MalformedAnswer,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SelectorError,
    Unauthenticated,
    Unavailable,
)
from clients.results import (
    ArmQuality,
    Explanation,
    OutcomeRecord,
    OutcomeRow,
    OutcomesReported,
    PoolCounts,
    Predictions,
    PriorsImported,
    PromptRow,
    Pushed,
    Quality,
    ReferenceWeight,
    RefusedGroup,
    Registered,
    Retired,
    Rewound,
    RunCreated,
    RunInfo,
    Sample,
    Selection,
    SelectionRecord,
    SelectionRow,
)
from clients.retry import RetryPolicy
from clients.rollout_group import RolloutGroup
from clients.sampling_settings import SamplingSettings
from clients.sync import SelectorClient
from clients.tls import Tls

__all__ = [
    "AlreadyExists",
    "ArmQuality",
    "AsyncSelectorClient",
    "ClientClosed",
    "Column",
    "DeadlineExceeded",
    "Explanation",
    "FailedPrecondition",
    "FieldViolation",
    "Internal",
    "InvalidArgument",
    "MalformedAnswer",
    "NotFound",
    "OutcomeRecord",
    "OutcomeRow",
    "OutcomesReported",
    "PermissionDenied",
    "PoolCounts",
    "Predictions",
    "PriorsImported",
    "PromptRow",
    "Pushed",
    "Quality",
    "ReferenceWeight",
    "RefusedGroup",
    "Registered",
    "ResourceExhausted",
    "Retired",
    "RetryPolicy",
    "Rewound",
    "RolloutGroup",
    "RunCreated",
    "RunInfo",
    "Sample",
    "SamplingSettings",
    "Selection",
    "SelectionRecord",
    "SelectionRow",
    "SelectorClient",
    "SelectorError",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "run_config",
]
