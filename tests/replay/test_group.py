"""Validation of pushed groups: what is sound passes, and every defect is refused by field and reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.config import SamplingSettings, resolve
from selector.errors import FieldViolation
from selector.outcomes import map_outcomes
from selector.replay import CheckedGroup, ColumnLayout, GroupColumns, GroupRefused, GroupRules, validate_group
from selector.v1.reasons import Reason
from tests.replay.groups import columns, log_probs

RULES = GroupRules()
NAN, INF = math.nan, math.inf
STEP = 5


def validated(group: GroupColumns, rules: GroupRules) -> CheckedGroup:
    """Checked as of a push at step 5."""
    return validate_group(group, rules, STEP)


def test_sound_group() -> None:
    checked = validated(columns(), RULES)
    assert checked.group_id == "p@3"
    assert checked.informative
    assert checked.mean_outcome == pytest.approx(2 / 3)
    assert checked.counted == 3
    assert validated(columns(group_id="mine"), RULES).group_id == "mine"


DEFECTS: list[tuple[dict[str, Any], Reason, str]] = [
    ({"prompt_id": ""}, Reason.INVALID_FIELD, "prompt_id"),
    ({"prompt_id": "é" * 129}, Reason.INVALID_FIELD, "prompt_id"),
    ({"group_id": "x" * 257}, Reason.INVALID_FIELD, "group_id"),
    ({"policy_version": -1}, Reason.INVALID_FIELD, "policy_version"),
    ({"policy_version": STEP + 1}, Reason.INVALID_FIELD, "policy_version"),
    ({"lengths": np.array([], dtype=np.int64)}, Reason.INVALID_GROUP, "lengths"),
    ({"lengths": np.array([2, 0, 4])}, Reason.INVALID_GROUP, "lengths[1]"),
    ({"lengths": np.array([2, -3, 7])}, Reason.INVALID_GROUP, "lengths[1]"),
    ({"lengths": np.array([2, 3, 2])}, Reason.INVALID_GROUP, "response_token_ids"),
    ({"rewards": np.array([1.0, 2.0])}, Reason.INVALID_GROUP, "rewards"),
    ({"rewards": np.array([1.0, NAN, 2.0])}, Reason.INVALID_GROUP, "rewards[1]"),
    ({"rewards": np.array([1.0, 0.0, -INF])}, Reason.INVALID_GROUP, "rewards[2]"),
    ({"outcomes": np.array([1.0])}, Reason.INVALID_GROUP, "outcomes"),
    ({"outcomes": np.array([1.0, NAN, 0.0])}, Reason.INVALID_OUTCOME, "outcomes[1]"),
    ({"outcomes": np.array([1.0, 0.0, INF])}, Reason.INVALID_OUTCOME, "outcomes[2]"),
    ({"outcomes": np.array([1.0, 0.0, 1.4])}, Reason.INVALID_OUTCOME, "outcomes[2]"),
    ({"outcomes": np.array([-0.1, 0.0, 1.0])}, Reason.INVALID_OUTCOME, "outcomes[0]"),
    ({"statuses": np.array([1, 1], dtype=np.uint8)}, Reason.INVALID_GROUP, "statuses"),
    ({"statuses": np.array([1, 5, 1], dtype=np.uint8)}, Reason.INVALID_FIELD, "statuses[1]"),
    ({"prompt_token_ids": b"123"}, Reason.INVALID_GROUP, "prompt_token_ids"),
    ({"response_token_ids": b"1234" * 5}, Reason.INVALID_GROUP, "response_token_ids"),
    ({"behavior_log_probs": log_probs(-1, -1, -1)}, Reason.INVALID_GROUP, "behavior_log_probs"),
    ({"behavior_log_probs": b""}, Reason.INVALID_GROUP, "behavior_log_probs"),
    ({"loss_mask": b"\1\1"}, Reason.INVALID_GROUP, "loss_mask"),
    ({"loss_mask": b"\1\1\1\2\1\1"}, Reason.INVALID_GROUP, "loss_mask[3]"),
    ({"behavior_log_probs": log_probs(-1, -1, NAN, -1, -1, -1)}, Reason.INVALID_LOG_PROB, "behavior_log_probs[2]"),
    ({"behavior_log_probs": log_probs(-1, -1, -1, -1, -1, 1e-7)}, Reason.INVALID_LOG_PROB, "behavior_log_probs[5]"),
    ({"behavior_log_probs": log_probs(-INF, -1, -1, -1, -1, -1)}, Reason.INVALID_LOG_PROB, "behavior_log_probs[0]"),
]


def test_token_ids_where_the_mask_is_0_may_be_negative() -> None:
    ids = np.array([1, -100, 3, 4, 5, -1], dtype="<i4").tobytes()
    validated(columns(response_token_ids=ids, loss_mask=b"\1\0\1\1\1\0"), RULES)
    with pytest.raises(GroupRefused) as caught:
        validated(columns(response_token_ids=ids, loss_mask=b"\1\0\1\1\1\1"), RULES)
    assert caught.value.field == "response_token_ids[5]"


@pytest.mark.parametrize(("changes", "reason", "field"), DEFECTS)
def test_defect_is_refused(changes: dict[str, Any], reason: Reason, field: str) -> None:
    with pytest.raises(GroupRefused) as caught:
        validated(columns(**changes), RULES)
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_sizes_are_stated() -> None:
    with pytest.raises(GroupRefused, match=r"expected 24 bytes .* got 20"):
        validated(columns(response_token_ids=b"1234" * 5), RULES)


@pytest.mark.parametrize(("token", "place"), [(0, "rollout 0, token 0"), (2, "rollout 1, token 0")])
def test_case_25_bad_log_prob_is_located(token: int, place: str) -> None:
    for bad in (NAN, 0.5):
        values = [-1.0] * 6
        values[token] = bad
        with pytest.raises(GroupRefused, match=place):
            validated(columns(behavior_log_probs=log_probs(*values)), RULES)


def test_case_25_zero_is_legal() -> None:
    assert validated(columns(behavior_log_probs=log_probs(0, -0.0, -1, -1, -1, -1)), RULES).informative


def test_case_44_masked_positions_hold_anything() -> None:
    mask = b"\1\0\0\1\0\1"
    values = [-1.0, NAN, INF, -1.0, 7.0, 0.0]
    assert validated(columns(loss_mask=mask, behavior_log_probs=log_probs(*values)), RULES).counted == 3
    values[3] = 7.0
    with pytest.raises(GroupRefused, match="rollout 1, token 1"):
        validated(columns(loss_mask=mask, behavior_log_probs=log_probs(*values)), RULES)


def test_everything_masked_is_sound() -> None:
    validated(columns(loss_mask=b"\0" * 6, behavior_log_probs=log_probs(*[NAN] * 6)), RULES)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_bad_log_prob_is_located_wherever_it_is(lengths: list[int], data: st.DataObject) -> None:
    rollout = data.draw(st.integers(0, len(lengths) - 1))
    token = data.draw(st.integers(0, lengths[rollout] - 1))
    values = [np.full(length, -0.5) for length in lengths]
    values[rollout][token] = data.draw(st.sampled_from([NAN, INF, -INF, 1e-30]))
    group = columns(
        lengths=np.array(lengths),
        rewards=np.zeros(len(lengths)),
        outcomes=np.zeros(len(lengths)),
        response_token_ids=bytes(4 * sum(lengths)),
        behavior_log_probs=log_probs(*np.concatenate(values)),
    )
    with pytest.raises(GroupRefused, match=f"rollout {rollout}, token {token}:"):
        validated(group, RULES)


SOUND_COLUMNS = [
    ColumnLayout("routed_experts", "int16", (6, 2), 24, (2, 3, 1)),
    ColumnLayout("scalar", "float64", (), 8),
    ColumnLayout("pooled", "float32", (3,), 12, (1, 1, 1)),
    ColumnLayout("image.ref", "bytes", (), 33),
    ColumnLayout("image-parts", "bytes", (), 33, (11, 0, 22)),
    ColumnLayout("opaque_states", "bytes", (6, 4), 48, (2, 3, 1)),
    ColumnLayout("states", "bfloat16", (6, 4), 48, (2, 3, 1)),
    ColumnLayout("cache", "float8_e4m3fn", (6, 4), 24, (2, 3, 1)),
    ColumnLayout("n" * 64, "bool", (0,), 0),
]

BAD_COLUMNS = [
    (ColumnLayout("", "int8", (1,), 1), Reason.INVALID_FIELD, "columns[0].name"),
    (ColumnLayout("n" * 65, "int8", (1,), 1), Reason.INVALID_FIELD, "columns[0].name"),
    (ColumnLayout("a b", "int8", (1,), 1), Reason.INVALID_FIELD, "columns[0].name"),
    (ColumnLayout("a\n", "int8", (1,), 1), Reason.INVALID_FIELD, "columns[0].name"),
    (ColumnLayout("a", "object", (1,), 8), Reason.INVALID_FIELD, "columns[0].dtype"),
    (ColumnLayout("a", "i4", (1,), 4), Reason.INVALID_FIELD, "columns[0].dtype"),
    (ColumnLayout("a", "int32,int32", (1,), 8), Reason.INVALID_FIELD, "columns[0].dtype"),
    (ColumnLayout("a", "", (1,), 8), Reason.INVALID_FIELD, "columns[0].dtype"),
    (ColumnLayout("a", "int32", (2, 3), 20), Reason.INVALID_GROUP, "columns[0].data"),
    (ColumnLayout("a", "int32", (-1, -1), 4), Reason.INVALID_GROUP, "columns[0].shape"),
    (ColumnLayout("a", "int8", (6,), 6, (3, 3)), Reason.INVALID_GROUP, "columns[0].lengths"),
    (ColumnLayout("a", "int8", (6,), 6, (3, 3, 1)), Reason.INVALID_GROUP, "columns[0].lengths"),
    (ColumnLayout("a", "int8", (6,), 6, (7, -1, 0)), Reason.INVALID_GROUP, "columns[0].lengths"),
    (ColumnLayout("a", "int8", (), 1, (1, 0, 0)), Reason.INVALID_GROUP, "columns[0].lengths"),
    (ColumnLayout("a", "bytes", (), 5, (1, 1, 1)), Reason.INVALID_GROUP, "columns[0].lengths"),
]


def test_sound_columns() -> None:
    validated(columns(columns=tuple(SOUND_COLUMNS)), RULES)


@pytest.mark.parametrize(("column", "reason", "field"), BAD_COLUMNS)
def test_bad_column(column: ColumnLayout, reason: Reason, field: str) -> None:
    with pytest.raises(GroupRefused) as caught:
        validated(columns(columns=(column,)), RULES)
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_column_names_are_unique() -> None:
    column = ColumnLayout("a", "int8", (1,), 1)
    with pytest.raises(GroupRefused, match="occurs twice") as caught:
        validated(columns(columns=(column, column)), RULES)
    assert caught.value.field == "columns[1].name"


def test_outcome_range_and_clipping() -> None:
    rules = GroupRules(outcome_range=(-1.0, 1.0))
    assert validated(columns(outcomes=np.array([-1.0, 0.0, 1.0])), rules).mean_outcome == pytest.approx(0.5)
    clipping = GroupRules(outcome_range=(-1.0, 1.0), clip_outcomes=True)
    clipped = validated(columns(outcomes=np.array([-3.0, 1.4, 1.0])), clipping)
    assert (clipped.clipped, clipped.mean_outcome) == (2, pytest.approx(2 / 3))


def test_only_rollouts_that_count() -> None:
    statuses = np.array([3, 1, 4], dtype=np.uint8)
    left_out = validated(columns(outcomes=np.array([NAN, 1.0, 99.0]), statuses=statuses), RULES)
    assert (left_out.counted, left_out.mean_outcome, left_out.informative) == (1, 1.0, False)
    none = validated(columns(statuses=np.array([3, 3, 4], dtype=np.uint8)), RULES)
    assert none.counted == 0 and not none.informative and math.isnan(none.mean_outcome)
    truncated = validated(columns(statuses=np.array([0, 2, 1], dtype=np.uint8)), RULES)
    assert truncated.counted == 3


def test_dropped_rollouts() -> None:
    dropped = validated(columns(outcomes=np.array([1.0, NAN, 0.0])), GroupRules(drop_nan=True))
    assert (dropped.counted, dropped.dropped, dropped.mean_outcome) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("outcomes", "informative"),
    [([0.5, 0.5, 0.5], False), ([0.5, 0.5, 0.5 + 1e-7], False), ([0.5, 0.5, 0.5 + 1e-5], True), ([0, 0, 1], True)],
)
def test_informative(outcomes: list[float], informative: bool) -> None:
    assert validated(columns(outcomes=np.array(outcomes)), RULES).informative is informative


@given(
    st.lists(st.tuples(st.sampled_from([-3.0, -1.0, 0.25, 2.0, 2.5, NAN, INF]), st.integers(0, 4)), min_size=1),
    st.booleans(),
    st.sampled_from(["REJECT", "DROP_ROLLOUT"]),
)
def test_outcomes_count_as_in_reports(rollouts: list[tuple[float, int]], clip: bool, on_nan: str) -> None:
    """A group and a report of the same rollouts have the same outcomes, or the same one is wrong."""
    config = resolve({"outcome_range": (-1.0, 2.0), "clip_outcomes": clip, "on_nan": on_nan})
    rules = GroupRules(config.outcome_range, clip, drop_nan=on_nan == "DROP_ROLLOUT")
    outcomes, statuses = (np.array(column) for column in zip(*rollouts, strict=True))
    count = len(rollouts)
    group = columns(
        lengths=np.ones(count, dtype=np.int64),
        rewards=np.zeros(count),
        outcomes=outcomes,
        statuses=statuses,
        response_token_ids=bytes(4 * count),
        behavior_log_probs=bytes(4 * count),
    )
    reported = map_outcomes(config, outcomes, statuses, "outcomes")
    if isinstance(reported, FieldViolation):
        with pytest.raises(GroupRefused) as caught:
            validated(group, rules)
        assert (caught.value.field, caught.value.description) == (reported.field, reported.description)
        return
    found = validated(group, rules)
    assert (found.counted, found.dropped, found.clipped) == (
        len(reported.outcomes),
        reported.dropped,
        reported.clipped,
    )
    if found.counted:
        assert found.mean_outcome == reported.outcomes.mean()


RUN = SamplingSettings(temperature=1.0, top_p=0.95, top_k=0, log_prob_mode="PROCESSED")


@pytest.mark.parametrize(
    "same",
    [
        RUN,
        SamplingSettings(1.0, 0.95, -1, "PROCESSED"),
        SamplingSettings(1.0, 0.95, None, "PROCESSED"),
        SamplingSettings(1.0, float(np.float32(0.95)), None, "PROCESSED"),
    ],
)
def test_same_sampling(same: SamplingSettings) -> None:
    validated(columns(sampling=same), GroupRules(sampling=RUN))


def test_no_top_p_means_everything() -> None:
    run = SamplingSettings(0.7, None, None, "RAW")
    validated(columns(sampling=SamplingSettings(0.7, 1.0, 0, "RAW")), GroupRules(sampling=run))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (None, "sampling"),
        (SamplingSettings(0.6, 0.95, 0, "PROCESSED"), "sampling.temperature"),
        (SamplingSettings(None, 0.95, 0, "PROCESSED"), "sampling.temperature"),
        (SamplingSettings(1.0, None, 0, "PROCESSED"), "sampling.top_p"),
        (SamplingSettings(1.0, 0.95, 50, "PROCESSED"), "sampling.top_k"),
        (SamplingSettings(1.0, 0.95, 0, "RAW"), "sampling.log_prob_mode"),
        (SamplingSettings(1.0, 0.95, 0), "sampling.log_prob_mode"),
    ],
)
def test_other_sampling(other: SamplingSettings | None, field: str) -> None:
    with pytest.raises(GroupRefused) as caught:
        validated(columns(sampling=other), GroupRules(sampling=RUN))
    assert (caught.value.reason, caught.value.field) == (Reason.SAMPLING_DIFFERS, field)
    assert "log_prob_mode=PROCESSED" in caught.value.description


def test_run_without_sampling_accepts_any() -> None:
    validated(columns(sampling=SamplingSettings(0.6, 0.5, 7, "UNSPECIFIED")), RULES)
