"""Embeddings of texts, kept in a cache directory by content hash, so that a second evaluation has them at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.difficulty.adapter import Adapter
from selector.embedding import Embedder, EmbeddingStore, load_encoder
from selector.embedding.encoder import Progress
from selector.evaluation.errors import OptionError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Embedded:
    """Embeddings of N texts, and what made them.

    Attributes:
        vectors: (N, w) float32, a row of zeros for an empty text.
        encoder: name, empty for ready embeddings.
        encoder_key: identity of the encoder's content, empty for ready embeddings.
    """

    vectors: np.ndarray
    encoder: str
    encoder_key: str


@dataclass(frozen=True)
class EncoderChoice:
    """What embeds texts.

    Attributes:
        spec: as ``selector serve --encoder``.
        device: torch device.
        threads: of torch's CPU operators, 0 = torch's choice.
        cache: directory that keeps the embeddings.
    """

    spec: str
    device: str
    threads: int
    cache: Path


def default_cache() -> Path:
    """``curriculum-selector`` in the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "curriculum-selector" / "embeddings"


def embed(texts: Sequence[str] | None, choice: EncoderChoice, progress: Progress, say: Say) -> Embedded | None:
    """Embed as the service does; None without an encoder or without any text.

    Args:
        progress: called with (embedded so far, texts to embed); never when all are known.
        say: told when another process has the cache.

    Raises:
        EncoderError: the encoder cannot be loaded.
        EmbeddingStorageError: the cache cannot be written.
        OSError: the cache directory cannot be made.
    """
    if texts is None or choice.spec == "none" or not any(texts):
        return None
    model = load_encoder(choice.spec, choice.device, choice.threads or None)
    if model is None:
        return None
    with _locked(choice.cache, say):
        embedder = Embedder(model, EmbeddingStore(choice.cache))
        rows = embedder.embed([text for text in texts if text], progress)
        vectors = np.zeros((len(texts), model.width), dtype=np.float32)
        if embedder.space is not None:
            vectors[[bool(text) for text in texts]] = embedder.space.gather(rows)
    return Embedded(vectors, model.name, model.key)


def load_adapter(path: Path | None, embedded: Embedded | None) -> Adapter | None:
    """The adapter, checked against what made the embeddings.

    Raises:
        OptionError: it cannot be read, or is for other embeddings.
    """
    if path is None:
        return None
    try:
        adapter = Adapter.load(path)
    except (ValueError, OSError) as error:
        raise OptionError("--adapter", str(error)) from error
    if embedded is None:
        raise OptionError("--adapter", "there are no embeddings that an adapter could take")
    width = embedded.vectors.shape[1]
    if adapter.input_width != width:
        raise OptionError("--adapter", f"{path} takes embeddings of width {adapter.input_width}; these have {width}")
    if adapter.encoder_hash and embedded.encoder_key and not embedded.encoder_key.endswith(adapter.encoder_hash):
        raise OptionError(
            "--adapter", f"{path} was trained on encoder {adapter.encoder!r}; the embeddings are {embedded.encoder!r}'s"
        )
    return adapter


@contextmanager
def _locked(cache: Path, say: Say) -> Iterator[None]:
    """One process at a time: the store is written by one only."""
    cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is embedding into {cache}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
