"""The search is exact, and a device that is not there says what to do."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest

from selector.neighbours.search import NeighboursUnavailable, check_device, nearest, normalised


def test_nearest_are_the_largest_inner_products() -> None:
    random = np.random.default_rng(0)
    queries, base = (random.normal(size=(n, 24)).astype(np.float32) for n in (50, 300))
    products, rows = nearest(queries, base, 7)
    every = queries @ base.T
    np.testing.assert_array_equal(rows, np.argsort(-every, axis=1)[:, :7])
    np.testing.assert_allclose(products, np.take_along_axis(every, rows, axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("queries", "base", "shape"), [(0, 5, (0, 3)), (4, 0, (4, 0)), (4, 2, (4, 2))])
def test_fewer_than_asked_for_are_fewer(queries: int, base: int, shape: tuple[int, int]) -> None:
    products, rows = nearest(np.ones((queries, 8), np.float32), np.ones((base, 8), np.float32), 3)
    assert products.shape == rows.shape == shape


def test_normalised_rows_have_length_one_and_zeros_stay() -> None:
    rows = normalised(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, 0.0]])


def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeighboursUnavailable, match="expected cpu or cuda; got 'tpu'"):
        check_device("tpu")
    if hasattr(faiss, "StandardGpuResources"):
        monkeypatch.delattr(faiss, "StandardGpuResources")
    arguments: Any = (np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), 1, "cuda")
    with pytest.raises(NeighboursUnavailable, match=r"curriculum-selector\[gpu\]"):
        nearest(*arguments)
