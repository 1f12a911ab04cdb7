"""The rollouts of one prompt by one policy version, as a trainer hands them over and gets them back.

Token columns are concatenated over the rollouts, in order and without padding; ``response(i)``, ``log_probs(i)``,
``mask(i)`` and ``split`` cut them into views. A group that comes from the service is backed by the received bytes and
therefore read-only; copy before changing anything. What it shares these bytes with, up to the whole sample, stays in
memory as long as any of its arrays: copy what is to be kept for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from clients.columns import Column, check_column, make_column
from clients.messages import add, build, fill, listed, shown
from clients.names import enum_number, short_name
from clients.sampling_settings import SamplingSettings
from clients.token_arrays import (
    FLOAT32,
    INT32,
    UINT8,
    check_token_ids,
    log_probs,
    loss_mask,
    per_rollout,
    scores,
    token_ids,
)
from selector.v1 import replay_service_pb2, selector_service_pb2
from selector.v1.wire import Part, delimited

_STATUS = selector_service_pb2.RolloutStatus.DESCRIPTOR
_ARRAYS = ("lengths", "rewards", "outcomes", "prompt_token_ids", "response_token_ids", "behavior_log_probs")
_FIELDS = replay_service_pb2.RolloutGroup.DESCRIPTOR.fields_by_name
# In order of their numbers.
_PAYLOAD: dict[str, np.dtype[Any]] = {
    "prompt_token_ids": INT32,
    "response_token_ids": INT32,
    "behavior_log_probs": FLOAT32,
    "loss_mask": UINT8,
}
# By their numbers.
PAYLOAD_FIELDS = {_FIELDS[name].number: name for name in _PAYLOAD}
_TOKEN_COLUMNS = ("response_token_ids", "behavior_log_probs", "loss_mask")


@dataclass(frozen=True, eq=False, repr=False)
class RolloutGroup:
    """n rollouts with T response tokens in all. ``from_arrays`` is the way to make one.

    Attributes:
        prompt_id: a registered prompt.
        group_id: unique in the run; empty lets the service name it ``<prompt_id>@<policy_version>``.
        policy_version: the step whose policy generated the rollouts.
        lengths: (n,) int32, response tokens of each rollout.
        rewards: (n,) float64, what the trainer optimises.
        outcomes: (n,) float64, raw task scores.
        statuses: empty, or one per rollout: COMPLETED, TRUNCATED, ABORTED, UNSCORABLE.
        prompt_token_ids: (P,) int32, shared by all rollouts.
        response_token_ids: (T,) int32.
        behavior_log_probs: (T,) float32, of the behaviour policy.
        loss_mask: (T,) uint8 of 0 and 1, None = all 1.
        columns: further columns by name.
        sampling: None = not stated.
        age_steps: steps since ``policy_version`` when it was sampled; None for a group that was not sampled.
        times_sampled: how often it has been sampled, this time included; None likewise.
        probability: with which it was in this sample; None likewise.
    """

    prompt_id: str
    group_id: str
    policy_version: int
    lengths: np.ndarray
    rewards: np.ndarray
    outcomes: np.ndarray
    prompt_token_ids: np.ndarray
    response_token_ids: np.ndarray
    behavior_log_probs: np.ndarray
    loss_mask: np.ndarray | None = None
    statuses: tuple[str | None, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    sampling: SamplingSettings | None = None
    age_steps: int | None = None
    times_sampled: int | None = None
    probability: float | None = None

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            if not isinstance(getattr(self, name), np.ndarray):
                raise ValueError(f"{name}: expected an array, got {shown(getattr(self, name))}")
        count = len(self.lengths)
        if count == 0:
            raise ValueError("lengths: expected at least one rollout, got none")
        if (self.lengths <= 0).any():
            empty = int(np.flatnonzero(self.lengths <= 0)[0])
            raise ValueError(f"lengths[{empty}]: expected at least one response token, got {self.lengths[empty]}")
        for name in ("rewards", "outcomes"):
            if getattr(self, name).shape != (count,):
                raise ValueError(f"{name}: expected shape ({count},), got {getattr(self, name).shape}")
        if self.statuses and len(self.statuses) != count:
            raise ValueError(f"statuses: expected none or one per rollout ({count}), got {len(self.statuses)}")
        tokens = int(self.lengths.sum(dtype=np.int64))
        for name in _TOKEN_COLUMNS:
            values = getattr(self, name)
            if values is not None and values.shape != (tokens,):
                raise ValueError(f"{name}: expected shape ({tokens},), got {values.shape}")
        for name, column in self.columns.items():
            check_column(column, count, f"columns.{name}")

    @classmethod
    def from_arrays(
        cls,
        *,
        prompt_id: str,
        policy_version: int,
        prompt_token_ids: Any,
        response_token_ids: Sequence[Any],
        behavior_log_probs: Sequence[Any],
        rewards: Any,
        outcomes: Any,
        loss_masks: Sequence[Any] | None = None,
        statuses: Sequence[str] | None = None,
        sampling: SamplingSettings | Mapping[str, Any] | None = None,
        columns: Mapping[str, Any] | None = None,
        group_id: str | None = None,
    ) -> RolloutGroup:
        """A group from one array (or list, or CPU tensor) per rollout.

        Args:
            prompt_token_ids: (P,) integers >= 0.
            response_token_ids: per rollout (length,) integers, at least one; >= 0 where the mask is 1.
            behavior_log_probs: per rollout (length,) floats.
            rewards, outcomes: (n,) floats.
            loss_masks: per rollout (length,) of 0 and 1; None = every token counts.
            statuses: per rollout a name of RolloutStatus; None = all completed.
            sampling: settings, or a mapping of their fields.
            group_id: unique in the run; None = ``<prompt_id>@<policy_version>``. A second group of a prompt by the same
                policy needs one of its own.
            columns: by name an array, bytes, or a list with one array (or bytes) per rollout.

        Raises:
            ValueError: names the field and rollout, what was expected and what was got.
        """
        own = build(
            replay_service_pb2.RolloutGroup,
            prompt_id=prompt_id,
            group_id="" if group_id is None else group_id,
            policy_version=policy_version,
        )
        responses = [
            token_ids(ids, f"response_token_ids[{index}]")
            for index, ids in enumerate(listed(response_token_ids, "response_token_ids", "arrays"))
        ]
        count = len(responses)
        if count == 0:
            raise ValueError("response_token_ids: expected at least one rollout, got none")
        lengths = np.array([len(ids) for ids in responses], dtype=np.int32)
        behavior = per_rollout(behavior_log_probs, lengths, log_probs, "behavior_log_probs")
        masks = None if loss_masks is None else per_rollout(loss_masks, lengths, loss_mask, "loss_masks")
        prompt = token_ids(prompt_token_ids, "prompt_token_ids")
        check_token_ids(prompt, "prompt_token_ids", own.prompt_id)
        for index, ids in enumerate(responses):
            mask = None if masks is None else masks[index]
            check_token_ids(ids, f"response_token_ids[{index}]", own.prompt_id, mask)
        return cls(
            prompt_id=own.prompt_id,
            group_id=own.group_id,
            policy_version=own.policy_version,
            lengths=lengths,
            rewards=scores(rewards, "rewards"),
            outcomes=scores(outcomes, "outcomes"),
            statuses=tuple(
                short_name(_STATUS, enum_number(_STATUS, status, f"statuses[{index}]"))
                for index, status in enumerate(listed(() if statuses is None else statuses, "statuses", "statuses"))
            ),
            prompt_token_ids=prompt,
            response_token_ids=np.concatenate(responses),
            behavior_log_probs=np.concatenate(behavior),
            loss_mask=None if masks is None else np.concatenate(masks),
            columns=_columns({} if columns is None else columns, count),
            sampling=_settings(sampling),
        )

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self.lengths)

    def __repr__(self) -> str:
        return (
            f"RolloutGroup(prompt_id={self.prompt_id!r}, group_id={self.group_id!r}, "
            f"policy_version={self.policy_version}, rollouts={len(self)}, tokens={self.total_tokens}, "
            f"rewards={self.rewards.tolist()}, columns={sorted(self.columns)})"
        )

    @property
    def total_tokens(self) -> int:
        """Response tokens of all rollouts."""
        return int(self._bounds[-1])

    @cached_property
    def _bounds(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    def response(self, index: int) -> np.ndarray:
        """(length,) int32 view of one rollout's tokens."""
        return self.response_token_ids[self._span(index)]

    def log_probs(self, index: int) -> np.ndarray:
        """(length,) float32 view of one rollout's behaviour log-probs."""
        return self.behavior_log_probs[self._span(index)]

    def mask(self, index: int) -> np.ndarray:
        """(length,) uint8: a view of one rollout's loss mask, or ones where the group has none."""
        span = self._span(index)
        return np.ones(span.stop - span.start, dtype=UINT8) if self.loss_mask is None else self.loss_mask[span]

    def column(self, name: str, index: int | None = None) -> np.ndarray | bytes:
        """A further column, whole or one rollout's part.

        Raises:
            KeyError: there is no such column.
            ValueError: one rollout's part of a column that is not split, or an element type unknown to numpy.
        """
        column = self.columns[name]
        return column.value if index is None else column.rollout(index)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Views, one per rollout, of an array whose first axis runs over the T response tokens.

        Raises:
            ValueError: the first axis has another length.
        """
        if len(values) != self.total_tokens:
            raise ValueError(f"values: expected {self.total_tokens} along the first axis, got {len(values)}")
        return [values[self._span(index)] for index in range(len(self))]

    def _span(self, index: int) -> slice:
        index = range(len(self))[index]
        return slice(int(self._bounds[index]), int(self._bounds[index + 1]))

    @property
    def nbytes(self) -> int:
        """Payload bytes: tokens, log-probs, mask and further columns."""
        arrays = (self.prompt_token_ids, self.response_token_ids, self.behavior_log_probs, self.loss_mask)
        return sum(array.nbytes for array in arrays if array is not None) + sum(
            len(column.data) for column in self.columns.values()
        )

    def to_proto(self) -> replay_service_pb2.RolloutGroup:
        """The message; what it was sampled with is left out."""
        message = replay_service_pb2.RolloutGroup()
        self.write_to(message)
        return message

    def write_to(self, message: replay_service_pb2.RolloutGroup) -> None:
        """Fills an empty message, such as one just added to a frame.

        Raises:
            ValueError: a field that ``from_arrays`` did not check cannot be sent; begins with its name.
        """
        self._write_head(message)
        for name, part in self._payload():
            setattr(message, name, bytes(part))
        self._write_columns(message)

    def encoded(self) -> list[Part]:
        """The message as it is sent, in parts that share the memory of the arrays.

        Raises:
            ValueError: as ``write_to``.
        """
        head, tail = replay_service_pb2.RolloutGroup(), replay_service_pb2.RolloutGroup()
        self._write_head(head)
        parts: list[Part] = [head.SerializeToString()]
        for name, part in self._payload():
            parts += delimited(_FIELDS[name].number, [part])
        if self.columns:
            self._write_columns(tail)
            parts.append(tail.SerializeToString())
        return parts

    def _payload(self) -> Iterator[tuple[str, memoryview]]:
        """The fields of tokens that are not empty, in order."""
        for name, dtype in _PAYLOAD.items():
            values = getattr(self, name)
            if values is not None and values.size:
                yield name, np.ascontiguousarray(values, dtype).data.cast("B")

    def _write_head(self, message: replay_service_pb2.RolloutGroup) -> None:
        """Everything that comes before the payload."""
        fill(
            message,
            prompt_id=self.prompt_id,
            group_id=self.group_id,
            policy_version=self.policy_version,
            sampling=None if self.sampling is None else self.sampling.to_proto(),
            lengths=self.lengths.tolist(),
            rewards=self.rewards.tolist(),
            outcomes=self.outcomes.tolist(),
            statuses=[
                0 if name is None else enum_number(_STATUS, name, f"statuses[{index}]")
                for index, name in enumerate(self.statuses)
            ],
        )

    def _write_columns(self, message: replay_service_pb2.RolloutGroup) -> None:
        for index, (name, column) in enumerate(self.columns.items()):
            add(
                message.columns,
                replay_service_pb2.Column,
                f"columns[{index}]",
                name=name,
                dtype=column.dtype,
                shape=column.shape,
                data=column.data,
                lengths=column.lengths,
            )

    @classmethod
    def from_proto(
        cls,
        message: replay_service_pb2.RolloutGroup,
        *,
        age_steps: int | None = None,
        times_sampled: int | None = None,
        probability: float | None = None,
    ) -> RolloutGroup:
        """A group of read-only views of the message's bytes.

        Raises:
            ValueError: the message's columns do not fit together.
        """
        payload = {name: getattr(message, name) for name in _PAYLOAD}
        return cls.from_parts(
            message, payload, age_steps=age_steps, times_sampled=times_sampled, probability=probability
        )

    @classmethod
    def from_parts(
        cls,
        message: replay_service_pb2.RolloutGroup,
        payload: Mapping[str, Part],
        *,
        age_steps: int | None = None,
        times_sampled: int | None = None,
        probability: float | None = None,
    ) -> RolloutGroup:
        """As ``from_proto``, of a message whose tokens, log-probs and mask are apart, by name of the field.

        Raises:
            ValueError: they do not fit together.
        """
        mask = payload.get("loss_mask")
        return cls(
            prompt_id=message.prompt_id,
            group_id=message.group_id,
            policy_version=message.policy_version,
            # By way of lists: numpy takes several times as long to look through protobuf's own sequences.
            lengths=np.array(list(message.lengths), dtype=np.int32),
            rewards=np.array(list(message.rewards), dtype=np.float64),
            outcomes=np.array(list(message.outcomes), dtype=np.float64),
            statuses=tuple(short_name(_STATUS, number) for number in message.statuses),
            prompt_token_ids=np.frombuffer(payload.get("prompt_token_ids", b""), INT32),
            response_token_ids=np.frombuffer(payload.get("response_token_ids", b""), INT32),
            behavior_log_probs=np.frombuffer(payload.get("behavior_log_probs", b""), FLOAT32),
            loss_mask=np.frombuffer(mask, UINT8) if mask else None,
            columns={
                column.name: Column(column.dtype, tuple(column.shape), column.data, tuple(column.lengths))
                for column in message.columns
            },
            sampling=SamplingSettings.from_proto(message.sampling) if message.HasField("sampling") else None,
            age_steps=age_steps,
            times_sampled=times_sampled,
            probability=probability,
        )


def _columns(columns: Mapping[str, Any], rollouts: int) -> dict[str, Column]:
    if not isinstance(columns, Mapping):
        raise ValueError(f"columns: expected a mapping name -> content, got {shown(columns)}")
    for index, name in enumerate(columns):
        build(replay_service_pb2.Column, f"columns[{index}]", name=name)
    return {name: make_column(content, rollouts, f"columns.{name}") for name, content in columns.items()}


def _settings(settings: SamplingSettings | Mapping[str, Any] | None) -> SamplingSettings | None:
    made = SamplingSettings.of(settings)
    if made is not None:
        # Names a value that cannot be sent here, where it is given.
        made.to_proto()
    return made
