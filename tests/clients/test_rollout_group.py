"""Rollout groups: round trips byte for byte, views, and errors that name what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clients import Column, RolloutGroup, SamplingSettings
from selector.v1 import replay_service_pb2, run_pb2

STATUSES = ["COMPLETED", "TRUNCATED", "ABORTED", "UNSCORABLE"]
DTYPES = st.sampled_from([np.dtype(name) for name in ("bool", "int16", ">i4", "int64", "float16", "float32", ">f8")])


@st.composite
def group_arguments(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    count = len(lengths)

    def per_rollout(dtype: Any, elements: st.SearchStrategy[Any] | None = None) -> list[np.ndarray]:
        return [draw(hnp.arrays(dtype, length, elements=elements)) for length in lengths]

    names = st.text("abcXYZ019_.-", min_size=1, max_size=8)
    column_dtype = draw(DTYPES)
    split = st.just(None).map(
        lambda _: [draw(hnp.arrays(column_dtype, (draw(st.integers(0, 3)), 2))) for _ in range(count)]
    )
    whole = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    opaque = st.one_of(st.binary(max_size=9), st.lists(st.binary(max_size=5), min_size=count, max_size=count))
    return {
        "prompt_id": draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)),
        "policy_version": draw(st.integers(0, 2**40)),
        "prompt_token_ids": draw(hnp.arrays(np.int64, st.integers(0, 5), elements=st.integers(0, 2**31 - 1))),
        "response_token_ids": per_rollout(np.int32, st.integers(0, 2**31 - 1)),
        # Whatever the bits are: masked positions may hold anything.
        "behavior_log_probs": [bits.view(np.float32) for bits in per_rollout(np.uint32)],
        "rewards": draw(hnp.arrays(np.float64, count)),
        "outcomes": draw(hnp.arrays(np.float64, count)),
        "loss_masks": draw(st.sampled_from([None, per_rollout(np.uint8, st.integers(0, 1))])),
        "statuses": draw(st.sampled_from([None, [draw(st.sampled_from(STATUSES)) for _ in lengths]])),
        "sampling": draw(
            st.none()
            | st.builds(
                SamplingSettings,
                temperature=st.none() | st.floats(0.1, 2),
                top_p=st.none() | st.floats(0.1, 1),
                top_k=st.none() | st.integers(-1, 100),
                log_prob_mode=st.sampled_from([None, "RAW", "PROCESSED"]),
            )
        ),
        "columns": draw(st.dictionaries(names, st.one_of(split, whole, opaque), max_size=3)),
        "group_id": draw(st.sampled_from([None, "group-1"])),
    }


@settings(max_examples=60, deadline=None)
@given(group_arguments())
def test_a_group_comes_back_byte_for_byte(arguments: dict[str, Any]) -> None:
    group = RolloutGroup.from_arrays(**arguments)
    wire = group.to_proto().SerializeToString(deterministic=True)
    back = RolloutGroup.from_proto(replay_service_pb2.RolloutGroup.FromString(wire))
    assert back.to_proto().SerializeToString(deterministic=True) == wire
    assert (back.sampling, back.statuses, back.group_id) == (group.sampling, group.statuses, group.group_id)
    for index, (ids, log_probs) in enumerate(
        zip(arguments["response_token_ids"], arguments["behavior_log_probs"], strict=True)
    ):
        assert back.response(index).tobytes() == ids.tobytes()
        assert back.log_probs(index).tobytes() == log_probs.tobytes()
        expected = np.ones(len(ids)) if arguments["loss_masks"] is None else arguments["loss_masks"][index]
        np.testing.assert_array_equal(back.mask(index), expected)
    for name, content in arguments["columns"].items():
        if isinstance(content, list):
            for index, part in enumerate(content):
                got = back.column(name, index)
                if isinstance(part, bytes):
                    assert got == part
                else:
                    np.testing.assert_array_equal(got, part)
        elif isinstance(content, bytes):
            assert back.column(name) == content
        else:
            np.testing.assert_array_equal(back.column(name), content)
            assert np.asarray(back.column(name)).shape == content.shape


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "prompt_id": "p",
        "policy_version": 3,
        "prompt_token_ids": [1, 2],
        "response_token_ids": [[1, 2, 3], [4]],
        "behavior_log_probs": [[-0.1, -0.2, -0.3], [-0.4]],
        "rewards": [1.0, 0.0],
        "outcomes": [1.0, 0.0],
        **changes,
    }


def column(**changes: Any) -> Column:
    return replace(Column("int8", (1,), b"a"), **changes)


def test_tokens_that_the_policy_did_not_draw_may_be_anything() -> None:
    group = RolloutGroup.from_arrays(**arguments(response_token_ids=[[1, -100, 3], [4]], loss_masks=[[1, 0, 1], [1]]))
    assert group.response(0).tolist() == [1, -100, 3]


def test_parts_are_views_and_received_arrays_are_read_only() -> None:
    made = RolloutGroup.from_arrays(**arguments(loss_masks=[[1, 0, 1], [1]]))
    back = RolloutGroup.from_proto(made.to_proto())
    for group in (made, back):
        assert np.shares_memory(group.response(0), group.response_token_ids)
        assert np.shares_memory(group.log_probs(-1), group.behavior_log_probs)
        assert np.shares_memory(group.mask(1), group.loss_mask)
        assert all(np.shares_memory(part, group.behavior_log_probs) for part in group.split(group.behavior_log_probs))
        assert [len(part) for part in group.split(np.zeros((4, 2)))] == [3, 1]
        assert len(group) == 2
    with pytest.raises(ValueError, match="read-only"):
        back.behavior_log_probs[0] = 0
    with pytest.raises(IndexError):
        back.response(2)
    with pytest.raises(ValueError, match="expected 4"):
        back.split(np.zeros(5))


def test_payload_is_counted_as_it_travels() -> None:
    group = RolloutGroup.from_arrays(**arguments(columns={"routes": np.zeros((4, 3), np.int16), "uri": b"abc"}))
    assert group.nbytes == 2 * 4 + 4 * 4 + 4 * 4 + 24 + 3


def test_a_sampled_group_knows_how_it_was_sampled() -> None:
    message = RolloutGroup.from_arrays(**arguments()).to_proto()
    sampled = RolloutGroup.from_proto(message, age_steps=2, times_sampled=1, probability=0.25)
    assert (sampled.age_steps, sampled.times_sampled, sampled.probability) == (2, 1, 0.25)
    assert RolloutGroup.from_proto(message).age_steps is None


def test_tensors_and_the_masks_of_trainers_are_taken() -> None:
    torch = pytest.importorskip("torch")
    group = RolloutGroup.from_arrays(
        **arguments(
            response_token_ids=[torch.tensor([1, 2, 3]), torch.tensor([4])],
            loss_masks=[torch.tensor([1.0, 0.0, 1.0]), torch.tensor([True])],
        )
    )
    assert group.response_token_ids.tolist() == [1, 2, 3, 4]
    assert group.mask(0).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_id": 5}, "prompt_id: expected text, got 5"),
        ({"prompt_id": "\ud800"}, "prompt_id: expected text that UTF-8 can hold"),
        ({"group_id": 5}, "group_id: expected text, got 5"),
        ({"policy_version": 2.5}, "policy_version: expected a whole number, got 2.5"),
        ({"policy_version": "3"}, "policy_version: expected a whole number, got '3'"),
        ({"policy_version": 2**63}, "policy_version: expected a whole number that fits into 64 bits"),
        ({"response_token_ids": 5}, "response_token_ids: expected a list of arrays, got 5"),
        ({"behavior_log_probs": None}, "behavior_log_probs: expected a list of arrays, got None"),
        ({"loss_masks": [[1, None, 1], [1]]}, "loss_masks[0]: expected only 0 and 1, got [1, None, 1]"),
        ({"rewards": [[1.0], [2.0, 3.0]]}, "rewards: expected a one-dimensional array, got [[1.0], [2.0, 3.0]]"),
        ({"statuses": 5}, "statuses: expected a list of statuses, got 5"),
        ({"sampling": {"temperature": True}}, "sampling.temperature: expected a number, got True"),
        ({"sampling": {"top_k": 1.5}}, "sampling.top_k: expected a whole number, got 1.5"),
        ({"sampling": {5: 1}}, "sampling.5: no such field"),
        ({"columns": 5}, "columns: expected a mapping name -> content, got 5"),
        ({"columns": {5: b"x"}}, "columns[0].name: expected text, got 5"),
        ({"columns": {"x": [[[1], [1, 2]], [[1]]]}}, "columns.x[0]: expected an array, got [[1], [1, 2]]"),
        ({"columns": {"x": column(shape=(1.5,))}}, "columns.x.shape[0]: expected a whole number, got 1.5"),
        ({"columns": {"x": column(data="a")}}, "columns.x.data: expected bytes, got 'a'"),
        ({"response_token_ids": []}, "response_token_ids: expected at least one rollout"),
        ({"response_token_ids": [[1], []], "behavior_log_probs": [[0], []]}, "lengths[1]: expected at least one"),
        ({"response_token_ids": [[1, 2, 3], [[4]]]}, "response_token_ids[1]: expected a one-dimensional array"),
        ({"response_token_ids": [[1, 2, 3], [[4], [5, 6]]]}, "response_token_ids[1]: expected a one-dimensional array"),
        ({"response_token_ids": [[1, 2, 3], [0.5]]}, "response_token_ids[1]: expected integers, got float64"),
        ({"response_token_ids": [[1, 2, 3], [2**31]]}, "response_token_ids[1]: expected 32-bit integers"),
        (
            {"response_token_ids": [[1, 2, -3], [4]]},
            "response_token_ids[0][2]: expected a token id >= 0, got -3 (prompt 'p')",
        ),
        (
            {"response_token_ids": [[-1, 2, 3], [-4]], "loss_masks": [[0, 1, 1], [1]]},
            "response_token_ids[1][0]: expected a token id >= 0 where the mask is 1, got -4 (prompt 'p')",
        ),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids[1]: expected a token id >= 0, got -1 (prompt 'p')"),
        ({"prompt_token_ids": [2**40]}, "prompt_token_ids: expected 32-bit integers"),
        ({"behavior_log_probs": [[0, 0, 0]]}, "behavior_log_probs: expected one array per rollout (2), got 1"),
        ({"behavior_log_probs": [[0, 0, 0], [0, 0]]}, "[1]: expected 1 values as in response_token_ids[1], got 2"),
        ({"behavior_log_probs": [[0, 0, 0], ["x"]]}, "behavior_log_probs[1]: expected numbers"),
        ({"loss_masks": [[1, 1, 1]]}, "loss_masks: expected one array per rollout (2), got 1"),
        ({"loss_masks": [[1, 1], [1]]}, "loss_masks[0]: expected 3 values"),
        ({"loss_masks": [[1, 2, 1], [1]]}, "loss_masks[0]: expected only 0 and 1"),
        ({"rewards": [1.0]}, "rewards: expected shape (2,), got (1,)"),
        ({"outcomes": [[1.0, 0.0]]}, "outcomes: expected a one-dimensional array"),
        ({"statuses": ["COMPLETED"]}, "statuses: expected none or one per rollout (2), got 1"),
        ({"statuses": ["COMPLETED", "TRUNCATE"]}, "statuses[1]: expected one of"),
        ({"sampling": {"temprature": 1.0}}, "sampling.temprature: no such field (did you mean 'temperature'?)"),
        ({"sampling": {"log_prob_mode": "raws"}}, "sampling.log_prob_mode: expected one of RAW, PROCESSED"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature: expected a number, got 'hot'"),
        ({"sampling": 1.0}, "sampling: expected a mapping"),
        ({"columns": {"x": [np.zeros(1)]}}, "columns.x: expected one entry per rollout (2), got 1"),
        ({"columns": {"x": [np.zeros(1), np.zeros(1, np.int8)]}}, "columns.x[1]: expected float64"),
        ({"columns": {"x": [np.zeros((1, 2)), np.zeros((1, 3))]}}, "columns.x[1]: expected float64 of shape (*, 2)"),
        ({"columns": {"x": [np.float32(1), np.float32(2)]}}, "columns.x[0]: expected an array with at least one axis"),
        ({"columns": {"x": np.array(["a"])}}, "columns.x: expected numbers or bytes"),
        ({"columns": {"x": np.array([None])}}, "columns.x: expected numbers or bytes"),
        ({"columns": {"x": np.zeros(2, [("a", "i4")])}}, "columns.x: expected numbers or bytes"),
        ({"columns": {"x": Column("int8", (3,), b"abc", (1, 1))}}, "columns.x.lengths: expected a sum of 3"),
        ({"columns": {"x": Column("int8", (3,), b"abc", (3,))}}, "columns.x.lengths: expected one per rollout (2)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RolloutGroup.from_arrays(**arguments(**changes))
    assert message in str(caught.value)


def test_sampling_settings_from_a_mapping() -> None:
    group = RolloutGroup.from_arrays(**arguments(sampling={"temperature": 1, "log_prob_mode": "log_prob_mode_raw"}))
    assert group.sampling == SamplingSettings(temperature=1, log_prob_mode="RAW")
    assert group.to_proto().sampling == run_pb2.SamplingSettings(temperature=1.0, log_prob_mode="LOG_PROB_MODE_RAW")


def test_columns_of_other_senders_come_back_even_when_numpy_cannot_read_them() -> None:
    message = RolloutGroup.from_arrays(**arguments()).to_proto()
    message.columns.add(name="routes", dtype="bfloat17", shape=[1], data=b"\x80\x3f")
    message.columns.add(name="blob", dtype="bytes", data=b"xyz", lengths=[1, 2])
    back = RolloutGroup.from_proto(message)
    with pytest.raises(ValueError, match="bfloat17"):
        back.column("routes")
    with pytest.raises(ValueError, match="not split"):
        back.column("routes", 0)
    with pytest.raises(KeyError):
        back.column("nothing")
    assert back.columns["routes"].data == b"\x80\x3f"
    assert [back.column("blob", index) for index in (0, 1)] == [b"x", b"yz"]
    assert back.to_proto() == message


def test_a_message_that_does_not_add_up_is_refused() -> None:
    message = RolloutGroup.from_arrays(**arguments()).to_proto()
    message.lengths[0] = 7
    with pytest.raises(ValueError, match="response_token_ids: expected shape"):
        RolloutGroup.from_proto(message)
