"""The paper's trained adapter, forward only, in numpy.

Two projections, one for the prompt asked about (query) and one for the reference prompts, each
``LayerNorm -> Linear -> GELU -> Linear -> GELU -> Linear -> LayerNorm`` onto width h, and a calibration head
``(w, b) = MLP([mean(d), std(d)])`` with ``d_cal = sigmoid(softplus(w) logit(d) + tanh(b))`` (arXiv 2506.05316,
section 4.1 and appendix). Dropout acts in training only and is absent here. Normalisation uses eps = 1e-5 and GELU is
the exact one, as in torch.nn. ``std`` is the population standard deviation, which is defined for one reference too.

File format: safetensors with float32 tensors in torch's layout, weights (out, in), and string metadata ``encoder``,
``encoder_hash`` and ``width`` (h); ``training``, a JSON object of facts for people, may be there too. With w the
encoder's width:

    {query,reference}.norm_in.{weight,bias}     (w,)
    {query,reference}.linear_0.{weight,bias}    (h, w), (h,)
    {query,reference}.linear_1.{weight,bias}    (h, h), (h,)
    {query,reference}.linear_2.{weight,bias}    (h, h), (h,)
    {query,reference}.norm_out.{weight,bias}    (h,)
    head.linear_0.{weight,bias}                 (10, 2), (10,)
    head.linear_1.{weight,bias}                 (2, 10), (2,)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.special import erf, expit, logit

_EPS = np.float32(1e-5)
_HEAD_WIDTH = 10
_SMALLEST_DIFFICULTY = 1e-4
_SIDES = ("query", "reference")


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation of each row over its columns, then scale and shift, both (width,) float32."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", centred, centred)[:, None] / np.float32(rows.shape[1])
        centred /= np.sqrt(variance + _EPS)
        return centred * self.weight + self.bias

    @property
    def largest_norm(self) -> float:
        """Bound of the Euclidean norm of any output row: normalised rows have norm at most sqrt(width)."""
        return float(np.abs(self.weight).max() * np.sqrt(len(self.weight)) + np.linalg.norm(self.bias))


@dataclass(frozen=True)
class Linear:
    """Affine map with weight (out, in) and bias (out,), float32."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return rows @ self.weight.T + self.bias


def _gelu(values: np.ndarray) -> np.ndarray:
    return values * (np.float32(0.5) * (np.float32(1.0) + erf(values * np.float32(0.5**0.5))))


@dataclass(frozen=True)
class Projection:
    """One side of the adapter: (n, w) float32 rows to (n, h). Without linear layers it is the first norm alone."""

    norm_in: LayerNorm
    layers: tuple[Linear, ...]
    norm_out: LayerNorm

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        projected = self.norm_in(rows)
        if not self.layers:
            return projected
        for layer in self.layers[:-1]:
            projected = _gelu(layer(projected))
        return self.norm_out(self.layers[-1](projected))


@dataclass(frozen=True)
class CalibrationHead:
    """Scale and shift of the attention's difficulty in logit space, from the reference set's mean and spread."""

    hidden: Linear
    output: Linear

    def __call__(self, difficulty: ArrayLike, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
        """Calibrated difficulty, float64; ``mean`` and ``std`` of the reference difficulties broadcast against it."""
        moments = np.stack(np.broadcast_arrays(mean, std), axis=-1).astype(np.float64)
        hidden = np.maximum(moments @ self.hidden.weight.T.astype(np.float64) + self.hidden.bias, 0.0)
        output = hidden @ self.output.weight.T.astype(np.float64) + self.output.bias
        scale, shift = np.logaddexp(0.0, output[..., 0]), np.tanh(output[..., 1])
        clipped = np.clip(difficulty, _SMALLEST_DIFFICULTY, 1.0 - _SMALLEST_DIFFICULTY)
        return expit(scale * logit(clipped) + shift)


@dataclass(frozen=True)
class Adapter:
    """Both projections and the head.

    Attributes:
        head: None = identity.
        encoder: name of the encoder whose embeddings it takes; empty = any.
        encoder_hash: ``Encoder.key``, which identifies the encoder's weights and pooling; empty = any.
    """

    query: Projection
    reference: Projection
    head: CalibrationHead | None
    encoder: str
    encoder_hash: str

    @property
    def input_width(self) -> int:
        """Width w of the embeddings it takes."""
        return len(self.query.norm_in.weight)

    @property
    def width(self) -> int:
        """Width h of the projected embeddings."""
        return len(self.query.norm_out.weight)

    @property
    def largest_score(self) -> float:
        """Bound of |z_q . z_i| / sqrt(h) over all possible embeddings; a property of the weights alone."""
        query = self.query.norm_out.largest_norm
        return query * self.reference.norm_out.largest_norm / float(np.sqrt(self.width))

    def takes(self, encoder_key: str) -> bool:
        """Whether embeddings of the encoder with this key are what it was trained on."""
        return not self.encoder_hash or encoder_key == self.encoder_hash

    @classmethod
    def untrained(cls, width: int) -> Adapter:
        """Layer norm only on both sides, identity head: attention on the raw embeddings."""
        norm = LayerNorm(np.ones(width, np.float32), np.zeros(width, np.float32))
        side = Projection(norm, (), norm)
        return cls(query=side, reference=side, head=None, encoder="", encoder_hash="")

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read a trained adapter.

        Raises:
            ValueError: not a safetensors file, metadata or tensor missing, wrong shape or type, not finite.
            OSError: the file cannot be read.
        """
        try:
            with safe_open(str(path), framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except SafetensorError as error:
            raise ValueError(f"adapter {path}: not a readable safetensors file: {error}") from error
        try:
            return _from_tensors(tensors, metadata)
        except ValueError as error:
            raise ValueError(f"adapter {path}: {error}") from error

    def save(self, path: str | Path, training: Mapping[str, Any] | None = None) -> None:
        """Write a trained adapter.

        Args:
            training: how it was trained, as JSON values; for people, nothing reads it.

        Raises:
            ValueError: it is untrained and has nothing to write.
        """
        if self.head is None or not self.query.layers:
            raise ValueError("an untrained adapter has no weights to save")
        tensors: dict[str, np.ndarray] = {}
        for name, side in zip(_SIDES, (self.query, self.reference), strict=True):
            _put(tensors, f"{name}.norm_in", side.norm_in)
            for index, layer in enumerate(side.layers):
                _put(tensors, f"{name}.linear_{index}", layer)
            _put(tensors, f"{name}.norm_out", side.norm_out)
        _put(tensors, "head.linear_0", self.head.hidden)
        _put(tensors, "head.linear_1", self.head.output)
        metadata = {"encoder": self.encoder, "encoder_hash": self.encoder_hash, "width": str(self.width)}
        if training is not None:
            metadata["training"] = json.dumps(training)
        save_file(tensors, str(path), metadata=metadata)


def _put(tensors: dict[str, np.ndarray], name: str, layer: LayerNorm | Linear) -> None:
    tensors[f"{name}.weight"] = np.ascontiguousarray(layer.weight)
    tensors[f"{name}.bias"] = np.ascontiguousarray(layer.bias)


def _take(tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors:
        raise ValueError(f"tensor {name} is missing")
    tensor = tensors[name]
    if tensor.dtype != np.float32:
        raise ValueError(f"tensor {name}: expected float32, got {tensor.dtype}")
    if tensor.shape != shape:
        raise ValueError(f"tensor {name}: expected shape {shape}, got {tensor.shape}")
    if not np.isfinite(tensor).all():
        raise ValueError(f"tensor {name} holds NaN or infinite values")
    return tensor


def _from_tensors(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Adapter:
    for key in ("encoder", "encoder_hash", "width"):
        if key not in metadata:
            raise ValueError(f"metadata {key} is missing")
    if not metadata["width"].isdecimal() or int(metadata["width"]) == 0:
        raise ValueError(f"metadata width: expected a positive integer, got {metadata['width']!r}")
    width = int(metadata["width"])
    first = tensors.get("query.norm_in.weight")
    if first is None or first.ndim != 1 or not len(first):
        raise ValueError("tensor query.norm_in.weight is missing or not a vector")

    def norm(name: str, size: int) -> LayerNorm:
        return LayerNorm(_take(tensors, f"{name}.weight", (size,)), _take(tensors, f"{name}.bias", (size,)))

    def linear(name: str, out: int, inner: int) -> Linear:
        return Linear(_take(tensors, f"{name}.weight", (out, inner)), _take(tensors, f"{name}.bias", (out,)))

    def side(name: str) -> Projection:
        inner = (len(first), width, width)
        layers = tuple(linear(f"{name}.linear_{index}", width, size) for index, size in enumerate(inner))
        return Projection(norm(f"{name}.norm_in", len(first)), layers, norm(f"{name}.norm_out", width))

    head = CalibrationHead(linear("head.linear_0", _HEAD_WIDTH, 2), linear("head.linear_1", 2, _HEAD_WIDTH))
    return Adapter(side("query"), side("reference"), head, metadata["encoder"], metadata["encoder_hash"])
