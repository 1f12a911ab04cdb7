"""The binary form of states: exact, and refused when it is not what was written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from selector.state_codec import decode, encode

_ARRAYS = st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
)
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), _ARRAYS)
_KEYS = st.text().filter(lambda key: not key.startswith("$"))
_TREES = st.dictionaries(
    _KEYS,
    st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=8),
    max_size=4,
)

EXAMPLE = {"a": np.arange(3.0), "b": b"bytes", "c": [1, {"d": 0.5}]}


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


@given(_TREES)
def test_what_was_encoded_comes_back_bit_for_bit(tree: dict[str, Any]) -> None:
    assert _same(decode(encode(tree)), tree)


@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    raw = encode(EXAMPLE)
    at = data.draw(st.integers(0, len(raw) - 1))
    harmed = bytearray(raw)
    harmed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="state's binary form"):
        decode(bytes(harmed))
    with pytest.raises(ValueError, match="state's binary form"):
        decode(raw[:at])


@given(st.binary())
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="state's binary form"):
        decode(raw)


@pytest.mark.parametrize(
    "tree",
    [
        {"x": np.array([object()])},
        {"x": np.array(["text"])},
        {"x": np.float64(1.0)},
        {"x": {1: 2}},
        {"$array": 1},
        {"x": {1, 2}},
    ],
)
def test_what_could_not_come_back_alike_is_not_encoded(tree: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="expected"):
        encode(tree)
