"""The adapter's forward pass against torch, and its file format."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn import functional

from selector.difficulty import Adapter
from tests.difficulty.adapters import adapter_of, random_adapter, torch_head, torch_projection

WIDTH, HIDDEN = 24, 16
METADATA = {"encoder": "e", "encoder_hash": "h", "width": str(HIDDEN)}


def test_forward_equals_torch() -> None:
    torch.manual_seed(3)
    query, reference, head = torch_projection(WIDTH, HIDDEN), torch_projection(WIDTH, HIDDEN), torch_head()
    adapter = adapter_of(query, reference, head)
    rows = 3.0 * torch.randn(50, WIDTH) + 1.0
    with torch.no_grad():
        np.testing.assert_allclose(adapter.query(rows.numpy()), query(rows), atol=2e-5)
        np.testing.assert_allclose(adapter.reference(rows.numpy()), reference(rows), atol=2e-5)

        difficulty = torch.linspace(0, 1, 11, dtype=torch.float64)
        w, b = head(torch.tensor([0.4, 0.3])).double()
        logit = torch.logit(difficulty.clamp(1e-4, 1 - 1e-4))
        expected = torch.sigmoid(functional.softplus(w) * logit + torch.tanh(b))
    assert adapter.head is not None
    actual = adapter.head(difficulty.numpy(), 0.4, 0.3)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert (adapter.input_width, adapter.width) == (WIDTH, HIDDEN)


def test_largest_score_bounds_every_score() -> None:
    adapter = random_adapter(1, WIDTH, HIDDEN)
    rows = np.random.default_rng(0).normal(scale=10.0, size=(500, WIDTH)).astype(np.float32)
    scores = adapter.query(rows) @ adapter.reference(rows).T / np.sqrt(HIDDEN)
    assert np.abs(scores).max() <= adapter.largest_score


def test_untrained_is_layer_norm_alone() -> None:
    adapter = Adapter.untrained(WIDTH)
    rows = torch.randn(20, WIDTH)
    np.testing.assert_allclose(adapter.query(rows.numpy()), functional.layer_norm(rows, (WIDTH,)), atol=1e-5)
    assert adapter.head is None and adapter.width == adapter.input_width == WIDTH
    with pytest.raises(ValueError, match="untrained"):
        adapter.save("nowhere")


def test_saved_adapter_loads_as_it_was(tmp_path: Path) -> None:
    adapter = random_adapter(2, WIDTH, HIDDEN)
    adapter.save(tmp_path / "a.safetensors")
    loaded = Adapter.load(tmp_path / "a.safetensors")
    rows = np.random.default_rng(0).normal(size=(30, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(loaded.query(rows), adapter.query(rows))
    np.testing.assert_array_equal(loaded.reference(rows), adapter.reference(rows))
    assert (loaded.encoder, loaded.encoder_hash) == ("an-encoder", "abc")


@pytest.mark.parametrize(
    ("name", "replacement", "message"),
    [
        ("reference.linear_1.bias", None, r"reference\.linear_1\.bias is missing"),
        ("query.norm_in.weight", None, r"query\.norm_in\.weight is missing"),
        ("head.linear_0.weight", np.zeros((9, 2), np.float32), r"expected shape \(10, 2\), got \(9, 2\)"),
        ("query.linear_0.weight", np.zeros((HIDDEN, WIDTH + 1), np.float32), "query.linear_0.weight: expected shape"),
        ("query.linear_2.bias", np.full(HIDDEN, np.nan, np.float32), "NaN"),
        ("query.norm_out.bias", np.full(HIDDEN, np.inf, np.float32), "infinite"),
        ("query.norm_out.bias", np.zeros(HIDDEN, np.float64), "float32"),
    ],
)
def test_a_damaged_tensor_is_named(tmp_path: Path, name: str, replacement: np.ndarray | None, message: str) -> None:
    path = tmp_path / "a.safetensors"
    random_adapter(2, WIDTH, HIDDEN).save(path)
    tensors = load_file(path)
    if replacement is None:
        del tensors[name]
    else:
        tensors[name] = replacement
    save_file(tensors, path, metadata=METADATA)
    with pytest.raises(ValueError, match=message):
        Adapter.load(path)


@pytest.mark.parametrize("key", ["encoder", "encoder_hash", "width"])
def test_missing_metadata_is_named(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.safetensors"
    random_adapter(2, WIDTH, HIDDEN).save(path)
    save_file(load_file(path), path, metadata={k: v for k, v in METADATA.items() if k != key})
    with pytest.raises(ValueError, match=f"metadata {key} is missing"):
        Adapter.load(path)


def test_width_that_is_no_number_and_files_that_are_no_adapter(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    random_adapter(2, WIDTH, HIDDEN).save(path)
    save_file(load_file(path), path, metadata=METADATA | {"width": "wide"})
    with pytest.raises(ValueError, match="positive integer"):
        Adapter.load(path)
    path.write_bytes(b"not an adapter at all")
    with pytest.raises(ValueError, match="safetensors"):
        Adapter.load(path)
    with pytest.raises(OSError, match=r"missing\.safetensors"):
        Adapter.load(tmp_path / "missing.safetensors")
