"""Rollout groups between the protocol and the domain. The payload stays what was received: the group's own message."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from selector.replay.errors import GroupRefused
from selector.replay.group import MOST_COLUMNS, ColumnLayout, GroupColumns
from selector.service.config_messages import sampling_from
from selector.v1 import replay_service_pb2 as pb
from selector.v1.reasons import Reason

_PAYLOAD = ("prompt_token_ids", "response_token_ids", "behavior_log_probs", "loss_mask")


def group_columns(group: pb.RolloutGroup, payload: Mapping[str, memoryview] | None = None) -> GroupColumns:
    """A pushed group, to be validated; field paths are within the group.

    Args:
        payload: tokens, log-probs and mask by name of the field, if they are not in the message.

    Raises:
        GroupRefused: more columns than are worth looking at.
    """
    if len(group.columns) > MOST_COLUMNS:
        description = f"expected at most {MOST_COLUMNS}; got {len(group.columns)}"
        raise GroupRefused(Reason.INVALID_GROUP, "columns", description)
    content = {name: getattr(group, name) for name in _PAYLOAD} if payload is None else payload
    return GroupColumns(
        prompt_id=group.prompt_id,
        group_id=group.group_id,
        policy_version=group.policy_version,
        sampling=sampling_from(group.sampling, "sampling") if group.HasField("sampling") else None,
        # By way of lists: numpy takes several times as long to look through protobuf's own sequences.
        lengths=np.array(list(group.lengths), dtype=np.int64),
        rewards=np.array(list(group.rewards), dtype=np.float64),
        outcomes=np.array(list(group.outcomes), dtype=np.float64),
        statuses=np.array(list(group.statuses), dtype=np.int64),
        prompt_token_ids=content.get("prompt_token_ids", b""),
        response_token_ids=content.get("response_token_ids", b""),
        behavior_log_probs=content.get("behavior_log_probs", b""),
        loss_mask=content.get("loss_mask", b""),
        columns=tuple(
            ColumnLayout(column.name, column.dtype, tuple(column.shape), len(column.data), tuple(column.lengths))
            for column in group.columns
        ),
    )
