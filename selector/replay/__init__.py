"""Rollout replay: groups of rollouts with the behaviour policy's log-probs, stored durably and sampled again.

``validate_group`` checks a group, ``ReplayRun`` pushes, samples and rewinds those of one run, ``ReplayStore`` keeps all
runs on disk.
"""

from selector.replay.answers import PushResult, ReplayStats, RewindResult, Sample, SampledGroup
from selector.replay.errors import (
    GroupRefused,
    PayloadCorrupt,
    RequestIdReused,
    RewindBeyondHistory,
    SampleDiffers,
    StorageFailed,
)
from selector.replay.group import CheckedGroup, ColumnLayout, GroupColumns, GroupRules, validate_group
from selector.replay.plans import Eviction, Refusal, SampleOrder, SampleRequest
from selector.replay.replay_run import ReplayRun
from selector.replay.store import ReplayStore

__all__ = [
    "CheckedGroup",
    "ColumnLayout",
    "Eviction",
    "GroupColumns",
    "GroupRefused",
    "GroupRules",
    "PayloadCorrupt",
    "PushResult",
    "Refusal",
    "ReplayRun",
    "ReplayStats",
    "ReplayStore",
    "RequestIdReused",
    "RewindBeyondHistory",
    "RewindResult",
    "Sample",
    "SampleDiffers",
    "SampleOrder",
    "SampleRequest",
    "SampledGroup",
    "StorageFailed",
    "validate_group",
]
