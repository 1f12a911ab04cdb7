"""Whether a pushed group of rollouts is sound, and what the buffer needs to know about it.

The G rollouts of one prompt by one policy version arrive as columns: per rollout a length, a reward, an outcome and
(optionally) a status; per response token, concatenated over the rollouts in order, an int32 id, a float32 behaviour
log-prob and (optionally) a uint8 loss mask; all little-endian. ``validate_group`` refuses what does not fit together
and looks at the bytes in place, without copying them. Tokens whose mask is 0 were not drawn by the policy (tool output,
padding), so their log-probs may hold anything.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE, SamplingSettings
from selector.errors import FieldViolation
from selector.outcomes import OutcomeRules, map_by_rules
from selector.replay.errors import GroupRefused
from selector.v1.reasons import Reason

_STATUSES = range(5)

OPAQUE = "bytes"
# Size of each numeric type in bytes: numpy's, and those that ml_dtypes adds to it.
_DTYPE_BYTES = {
    **{
        np.dtype(code).name: np.dtype(code).itemsize
        for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
    },
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_COLUMN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_ID_BYTES = 256
MOST_COLUMNS = 256
_LISTED = 10
# numpy's own limit, before version 2.
_MOST_EXTENTS = 32
# Clients may hold temperature and top_p in float32.
_SAMPLING_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ColumnLayout:
    """A further column, without its data.

    Attributes:
        name: 1 to 64 of ``[A-Za-z0-9_.-]``.
        dtype: numpy's name of the element type, or ``bytes`` for opaque content.
        shape: shape of the whole array, at most 32 extents.
        nbytes: size of the data.
        lengths: extent of each rollout along the first axis; empty when the column is not split by rollout.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupColumns:
    """A group as pushed; G rollouts, T response tokens in all.

    Attributes:
        prompt_id: 1 to 256 bytes of UTF-8.
        group_id: 1 to 256 bytes of UTF-8; empty = ``<prompt_id>@<policy_version>``.
        policy_version: step whose policy generated the rollouts, >= 0.
        sampling: how the log-probs were made; None if not stated.
        lengths: (G,) int64 response tokens of each rollout.
        rewards: (G,) float64.
        outcomes: (G,) float64 raw task scores.
        statuses: (G,) uint8 status codes, or (0,).
        prompt_token_ids: int32 bytes, >= 0.
        response_token_ids: (T,) int32 bytes, >= 0 where the mask is 1.
        behavior_log_probs: (T,) float32 bytes.
        loss_mask: (T,) uint8 bytes of 0 or 1; empty = all 1.
        columns: layouts of the further columns.
    """

    prompt_id: str
    group_id: str
    policy_version: int
    sampling: SamplingSettings | None
    lengths: np.ndarray
    rewards: np.ndarray
    outcomes: np.ndarray
    statuses: np.ndarray
    prompt_token_ids: bytes | memoryview
    response_token_ids: bytes | memoryview
    behavior_log_probs: bytes | memoryview
    loss_mask: bytes | memoryview = b""
    columns: tuple[ColumnLayout, ...] = ()


@dataclass(frozen=True)
class GroupRules(OutcomeRules):
    """What the run's configuration says about groups.

    Attributes:
        sampling: settings that groups must state; None accepts any.
    """

    sampling: SamplingSettings | None = None


@dataclass(frozen=True)
class CheckedGroup:
    """What the buffer keeps of a sound group besides its payload.

    Attributes:
        mean_outcome: mean mapped outcome of the rollouts that count, in [0, 1]; NaN when none counts.
        informative: outcomes of the rollouts that count differ by more than 1e-6.
        counted: rollouts that count, i.e. neither aborted nor unscorable nor dropped.
        clipped: outcomes that were clipped into the range.
        dropped: rollouts left out because their outcome is NaN or infinite.
    """

    prompt_id: str
    group_id: str
    policy_version: int
    mean_outcome: float
    informative: bool
    counted: int = 0
    clipped: int = 0
    dropped: int = 0


def validate_group(group: GroupColumns, rules: GroupRules, step: int) -> CheckedGroup:
    """Check every rule of a group that is pushed at a step.

    Raises:
        GroupRefused: INVALID_FIELD (ids, version, column names), INVALID_GROUP (columns that do not fit together,
            negative token ids), INVALID_OUTCOME, INVALID_LOG_PROB or SAMPLING_DIFFERS, with the field, what was
            expected and what came.
    """
    _check_identity(group, step)
    _check_sampling(group.sampling, rules.sampling)
    _check_rollouts(group)
    tokens = int(group.lengths.sum())
    _check_tokens(group, tokens)
    names: set[str] = set()
    for position, column in enumerate(group.columns):
        _check_column(column, f"columns[{position}]", len(group.lengths))
        if column.name in names:
            raise GroupRefused(Reason.INVALID_FIELD, f"columns[{position}].name", f"{column.name!r} occurs twice")
        names.add(column.name)
    _check_token_ids(group)
    _check_log_probs(group)
    return _outcome_summary(group, rules)


def _check_identity(group: GroupColumns, step: int) -> None:
    if not 1 <= len(group.prompt_id.encode()) <= _MAX_ID_BYTES:
        got = len(group.prompt_id.encode())
        raise GroupRefused(Reason.INVALID_FIELD, "prompt_id", f"expected 1 to 256 bytes; got {got}")
    if len(group.group_id.encode()) > _MAX_ID_BYTES:
        got = len(group.group_id.encode())
        raise GroupRefused(Reason.INVALID_FIELD, "group_id", f"expected at most 256 bytes; got {got}")
    if group.policy_version < 0:
        raise GroupRefused(Reason.INVALID_FIELD, "policy_version", f"expected >= 0; got {group.policy_version}")
    if group.policy_version > step:
        description = f"expected <= the push's step {step}; got {group.policy_version}"
        raise GroupRefused(Reason.INVALID_FIELD, "policy_version", description)


def _normalised(settings: SamplingSettings) -> tuple[float | None, float, int, str]:
    top_p = 1.0 if settings.top_p is None else settings.top_p
    top_k = 0 if settings.top_k is None or settings.top_k < 0 else settings.top_k
    return settings.temperature, top_p, top_k, settings.log_prob_mode


def _check_sampling(got: SamplingSettings | None, expected: SamplingSettings | None) -> None:
    if expected is None:
        return
    if got is None:
        raise GroupRefused(Reason.SAMPLING_DIFFERS, "sampling", f"expected {_described(expected)}; got nothing")
    names = ("temperature", "top_p", "top_k", "log_prob_mode")
    for name, mine, theirs in zip(names, _normalised(expected), _normalised(got), strict=True):
        if isinstance(mine, float) and isinstance(theirs, float):
            equal = math.isclose(mine, theirs, rel_tol=_SAMPLING_TOLERANCE)
        else:
            equal = mine == theirs
        if name == "log_prob_mode":
            equal = equal and theirs != "UNSPECIFIED"
        if not equal:
            description = f"expected {_described(expected)}; got {_described(got)}"
            raise GroupRefused(Reason.SAMPLING_DIFFERS, f"sampling.{name}", description)


def _described(settings: SamplingSettings) -> str:
    temperature, top_p, top_k, mode = _normalised(settings)
    shown = "unset" if temperature is None else f"{temperature:g}"
    return f"temperature={shown} top_p={top_p:g} top_k={top_k} log_prob_mode={mode}"


def _check_rollouts(group: GroupColumns) -> None:
    rollouts = len(group.lengths)
    if rollouts == 0:
        raise GroupRefused(Reason.INVALID_GROUP, "lengths", "expected at least one rollout; got none")
    if int(group.lengths.min()) <= 0:
        first = int(np.argmax(group.lengths <= 0))
        raise GroupRefused(Reason.INVALID_GROUP, f"lengths[{first}]", f"expected > 0; got {group.lengths[first]}")
    for name, values in (("rewards", group.rewards), ("outcomes", group.outcomes), ("statuses", group.statuses)):
        if len(values) != rollouts and not (name == "statuses" and len(values) == 0):
            description = f"expected one per rollout, {rollouts}; got {len(values)}"
            raise GroupRefused(Reason.INVALID_GROUP, name, description)
    finite = np.isfinite(group.rewards)
    if not finite.all():
        first = int(np.argmin(finite))
        description = f"expected a finite number; got {group.rewards[first]}"
        raise GroupRefused(Reason.INVALID_GROUP, f"rewards[{first}]", description)
    if not len(group.statuses):
        return
    unknown = (group.statuses < _STATUSES.start) | (group.statuses >= _STATUSES.stop)
    if unknown.any():
        first = int(np.argmax(unknown))
        description = f"expected a known status; got {group.statuses[first]}"
        raise GroupRefused(Reason.INVALID_FIELD, f"statuses[{first}]", description)


def _check_tokens(group: GroupColumns, tokens: int) -> None:
    if len(group.prompt_token_ids) % 4:
        description = f"expected a multiple of 4 bytes (int32); got {len(group.prompt_token_ids)}"
        raise GroupRefused(Reason.INVALID_GROUP, "prompt_token_ids", description)
    sizes = (
        ("response_token_ids", group.response_token_ids, 4, "int32"),
        ("behavior_log_probs", group.behavior_log_probs, 4, "float32"),
        ("loss_mask", group.loss_mask, 1, "uint8"),
    )
    for name, data, width, dtype in sizes:
        if name == "loss_mask" and not data:
            continue
        if len(data) != tokens * width:
            description = f"expected {tokens * width} bytes ({tokens} response tokens of {dtype}); got {len(data)}"
            raise GroupRefused(Reason.INVALID_GROUP, name, description)
    if group.loss_mask:
        mask = np.frombuffer(group.loss_mask, dtype=np.uint8)
        if int(mask.max()) > 1:
            first = int(np.argmax(mask > 1))
            raise GroupRefused(Reason.INVALID_GROUP, f"loss_mask[{first}]", f"expected 0 or 1; got {mask[first]}")


def _check_column(column: ColumnLayout, path: str, rollouts: int) -> None:
    if not _COLUMN_NAME.fullmatch(column.name):
        description = f"expected 1 to 64 of [A-Za-z0-9_.-]; got {column.name[:80]!r}"
        raise GroupRefused(Reason.INVALID_FIELD, f"{path}.name", description)
    if column.dtype != OPAQUE and column.dtype not in _DTYPE_BYTES:
        description = f"expected {OPAQUE} or numpy's name of a numeric type, such as int32; got {column.dtype[:80]!r}"
        raise GroupRefused(Reason.INVALID_FIELD, f"{path}.dtype", description)
    # Before anything is computed from them: the product of many extents has as many digits.
    if len(column.shape) > _MOST_EXTENTS:
        description = f"expected at most {_MOST_EXTENTS} extents; got {len(column.shape)}"
        raise GroupRefused(Reason.INVALID_GROUP, f"{path}.shape", description)
    if any(extent < 0 for extent in column.shape):
        raise GroupRefused(Reason.INVALID_GROUP, f"{path}.shape", f"expected extents >= 0; got {list(column.shape)}")
    if column.dtype != OPAQUE:
        expected = math.prod(column.shape) * _DTYPE_BYTES[column.dtype]
        if column.nbytes != expected:
            description = (
                f"expected {expected} bytes ({column.dtype} of shape {list(column.shape)}); got {column.nbytes}"
            )
            raise GroupRefused(Reason.INVALID_GROUP, f"{path}.data", description)
    if not column.lengths:
        return
    if len(column.lengths) != rollouts or min(column.lengths) < 0:
        more = f" and {len(column.lengths) - _LISTED} more" if len(column.lengths) > _LISTED else ""
        got = f"{list(column.lengths[:_LISTED])}{more}"
        description = f"expected one extent >= 0 per rollout, {rollouts}; got {got}"
        raise GroupRefused(Reason.INVALID_GROUP, f"{path}.lengths", description)
    if column.shape:
        whole, meaning = column.shape[0], "the first axis"
    elif column.dtype == OPAQUE:
        whole, meaning = column.nbytes, "the bytes"
    else:
        raise GroupRefused(Reason.INVALID_GROUP, f"{path}.lengths", "expected none, the column is a single number")
    if sum(column.lengths) != whole:
        description = f"expected extents adding up to {meaning}, {whole}; got {sum(column.lengths)}"
        raise GroupRefused(Reason.INVALID_GROUP, f"{path}.lengths", description)


def _check_token_ids(group: GroupColumns) -> None:
    prompt = np.frombuffer(group.prompt_token_ids, dtype="<i4")
    if len(prompt) and prompt.min() < 0:
        first = int(np.argmax(prompt < 0))
        description = f"expected a token id >= 0; got {prompt[first]}"
        raise GroupRefused(Reason.INVALID_GROUP, f"prompt_token_ids[{first}]", description)
    response = np.frombuffer(group.response_token_ids, dtype="<i4")
    if response.min() >= 0:
        return
    # What the policy did not draw may be marked by whatever the trainer likes.
    wrong = (response < 0) & _counts(group)
    if wrong.any():
        first = int(np.argmax(wrong))
        description = f"{_place(group, first)}: expected a token id >= 0 where the mask is 1; got {response[first]}"
        raise GroupRefused(Reason.INVALID_GROUP, f"response_token_ids[{first}]", description)


def _counts(group: GroupColumns) -> np.ndarray:
    """Response tokens whose mask is 1: (T,) bool, or one True for all."""
    return np.frombuffer(group.loss_mask, dtype=np.uint8) != 0 if group.loss_mask else np.ones(1, dtype=bool)


def _place(group: GroupColumns, position: int) -> str:
    """Which rollout's token a position in the response is."""
    ends = np.cumsum(group.lengths)
    rollout = int(np.searchsorted(ends, position, side="right"))
    return f"rollout {rollout}, token {position - int(ends[rollout] - group.lengths[rollout])}"


def _check_log_probs(group: GroupColumns) -> None:
    log_probs = np.frombuffer(group.behavior_log_probs, dtype="<f4")
    # A NaN makes both extremes NaN, which compare false. Mostly even masked positions are sound.
    if log_probs.max() <= 0 and log_probs.min() > -np.inf:
        return
    sound = (log_probs <= 0) & (log_probs > -np.inf) | ~_counts(group)
    if sound.all():
        return
    first = int(np.argmin(sound))
    description = f"{_place(group, first)}: expected finite and <= 0 where the mask is 1; got {log_probs[first]}"
    raise GroupRefused(Reason.INVALID_LOG_PROB, f"behavior_log_probs[{first}]", description)


def _outcome_summary(group: GroupColumns, rules: GroupRules) -> CheckedGroup:
    found = map_by_rules(rules, group.outcomes, group.statuses, "outcomes")
    if isinstance(found, FieldViolation):
        raise GroupRefused(Reason.INVALID_OUTCOME, found.field, found.description)
    mapped = found.outcomes
    return CheckedGroup(
        prompt_id=group.prompt_id,
        group_id=group.group_id or f"{group.prompt_id}@{group.policy_version}",
        policy_version=group.policy_version,
        mean_outcome=float(mapped.mean()) if len(mapped) else math.nan,
        informative=bool(len(mapped)) and float(mapped.max() - mapped.min()) > INFORMATIVE_TOLERANCE,
        counted=len(mapped),
        clipped=found.clipped,
        dropped=found.dropped,
    )
