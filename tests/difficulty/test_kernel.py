"""Attention's arithmetic with torch: numpy's figures, the same bits each time, whatever the pool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from selector.difficulty import Adapter, kernel
from selector.difficulty.estimate import Estimate, Estimator, PoolFeatures
from selector.difficulty.kernel import NUMPY, TOLERANCE, DeviceUnavailable, Kernel, make_kernel
from selector.difficulty.registry import make_estimator
from tests.difficulty.adapters import random_adapter
from tests.difficulty.simulation import batch_of, features_of

# Two tiles, the second one mostly padding.
_SIZE, _WIDTH, _REFERENCES = 2100, 48, 300

DEVICES = [
    "torch-cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="NOT CHECKED on a GPU: torch sees none; it ran on the CPU only"
        ),
    ),
]


@pytest.fixture(params=DEVICES)
def made(request: pytest.FixtureRequest) -> Callable[[], Kernel]:
    """Makes kernels of one device."""
    return lambda: make_kernel(request.param)


def _embeddings(count: int, seed: int = 0) -> np.ndarray:
    embeddings = np.random.default_rng(seed).normal(size=(count, _WIDTH)).astype(np.float32)
    embeddings[7::50] = 0.0
    return embeddings


def _louder(adapter: Adapter, scale: float) -> Adapter:
    norm = replace(adapter.query.norm_out, weight=adapter.query.norm_out.weight * np.float32(scale))
    return replace(adapter, query=replace(adapter.query, norm_out=norm))


def _estimator(name: str, adapter: Adapter | None, used: Kernel, shortlist: int = 0) -> Estimator:
    made = make_estimator(
        name,
        adapter=adapter,
        reference_mode="IN_BATCH",
        reference_size=_REFERENCES,
        tracker_decay=0.7,
        embedding_components=8,
        shortlist=shortlist,
        kernel=used,
    )
    random = np.random.default_rng(3)
    prompts = np.sort(random.choice(2000, _REFERENCES, replace=False))
    made.observe(batch_of(0, prompts, random.integers(0, 9, _REFERENCES)))
    return made


def _pool(size: int = _SIZE) -> PoolFeatures:
    return replace(features_of(size, embeddings=_embeddings(3000)[:size]), version=size)


def _distance(found: Estimate, expected: Estimate) -> float:
    np.testing.assert_array_equal(found.basis, expected.basis)
    names = ("difficulty", "standard_error", "own_weight", "population")
    return max(float(np.abs(getattr(found, name) - getattr(expected, name)).max()) for name in names)


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("ATTENTION", None),
        ("ATTENTION", random_adapter(0, _WIDTH, 32)),
        # Scores whose exponentials would overflow.
        ("ATTENTION", _louder(random_adapter(0, _WIDTH, 32), 40.0)),
        ("FUSED", random_adapter(0, _WIDTH, 32)),
    ],
    ids=["untrained", "trained", "large scores", "fused"],
)
@pytest.mark.parametrize("block", [4096, 37])
def test_figures_are_those_of_numpy(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], Kernel], name: str, adapter: Adapter | None, block: int
) -> None:
    monkeypatch.setattr(kernel, "BLOCK", block)
    expected = _estimator(name, adapter, NUMPY).estimate(_pool(), 1)
    found = _estimator(name, adapter, made()).estimate(_pool(), 1)
    assert np.ptp(expected.difficulty) > 0.01
    assert _distance(found, expected) < TOLERANCE


def test_the_strongest_references_and_a_shortlist_are_those_of_numpy(made: Callable[[], Kernel]) -> None:
    adapter = random_adapter(0, _WIDTH, 32)
    for shortlist in (0, 20):
        expected, found = (_estimator("ATTENTION", adapter, each, shortlist) for each in (NUMPY, made()))
        assert _distance(found.estimate(_pool(), 1), expected.estimate(_pool(), 1)) < TOLERANCE
        # Of a prompt of the second tile.
        shown, wanted = (each.references(_pool(), 1, 2060, 5) for each in (found, expected))
        assert [row[0] for row in shown] == [row[0] for row in wanted]
        np.testing.assert_allclose([row[1] for row in shown], [row[1] for row in wanted], rtol=1e-3)


def test_neither_a_larger_pool_nor_a_new_kernel_changes_a_bit(made: Callable[[], Kernel]) -> None:
    adapter = random_adapter(0, _WIDTH, 32)
    once = _estimator("ATTENTION", adapter, made())
    small = once.estimate(_pool(), 1)
    # Grown, in the estimator that has the small pool's projections, and anew.
    for estimator in (once, _estimator("ATTENTION", adapter, made())):
        grown = estimator.estimate(_pool(3000), 1)
        np.testing.assert_array_equal(grown.difficulty[:_SIZE], small.difficulty)
    np.testing.assert_array_equal(once.copy().estimate(_pool(), 1).difficulty, small.difficulty)


def test_projections_stay_where_they_were_made_and_are_made_once(made: Callable[[], Kernel]) -> None:
    used, projected = made(), []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(used, name)

        def projection(self, side: object) -> Callable[[np.ndarray], object]:
            project = used.projection(side)  # type: ignore[arg-type]

            def noted(rows: np.ndarray) -> object:
                projected.append(len(rows))
                return project(rows)

            return noted

    estimator = _estimator("ATTENTION", random_adapter(0, _WIDTH, 32), Counting())  # type: ignore[arg-type]
    estimator.estimate(_pool(), 1)
    # The two tiles, and the references that have an embedding.
    assert sorted(projected)[1:] == [2048, 2048]
    assert projected[-1] < _REFERENCES
    before = len(projected)
    estimator.estimate(_pool(), 2)
    assert len(projected) == before


def test_products_are_float32_whatever_was_said_before(made: Callable[[], Kernel]) -> None:
    torch.set_float32_matmul_precision("medium")
    made()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_on_the_cpu_it_is_numpy_and_torch_is_not_imported() -> None:
    probe = (
        "import sys\n"
        "from selector.difficulty.kernel import NUMPY, make_kernel\n"
        "import selector.predictor.child, selector.service.server\n"
        "assert make_kernel('cpu') is NUMPY\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:", "cuda:x", "cpu:0", "mps"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(DeviceUnavailable, match="expected cpu, torch-cpu, cuda or cuda:N"):
        make_kernel(device)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match=r"cuda:99 (needs|is not there)"):
        make_kernel("cuda:99")
