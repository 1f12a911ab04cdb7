"""Embeds every text once: what the store knows by content hash is never embedded again, also after a restart.

Unknown texts are embedded longest first in chunks of ``CHUNK_TEXTS``, and each chunk is durable before the next begins.
A registration that is cancelled or killed therefore goes on where it stopped when it is sent again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from selector.embedding.encoder import Cancelled, Encoder, Progress
from selector.embedding.errors import EmbeddingCancelled, InvalidEmbeddingError, NoEncoderError
from selector.embedding.hashing import embedding_hashes, text_hash
from selector.embedding.store import EmbeddingSpace, EmbeddingStore

CHUNK_TEXTS = 64
LOG_EVERY_S = 5.0
_CLIENT = "client width:"

_log = logging.getLogger("selector.embedding")


def is_client_space(key: str) -> bool:
    """Whether the space with this key is one of ready embeddings, whoever made them."""
    return key.startswith(_CLIENT)


class Embedder:
    """An encoder together with the store that keeps its embeddings. Threads may share it.

    Attributes:
        encoder: None = texts cannot be embedded.
        space: where the embeddings of texts are kept; None without an encoder.
        embedded: texts embedded since this object was made.
        reused: texts whose embedding was known, or that occurred earlier in the same call.
        seconds: spent in the encoder.
        pending: texts that calls in progress still have to embed.
    """

    def __init__(
        self, encoder: Encoder | None, store: EmbeddingStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.encoder = encoder
        self.space = None if encoder is None else store.space(encoder.key, encoder.width)
        self.embedded = 0
        self.reused = 0
        self.seconds = 0.0
        self.pending = 0
        self._store = store
        self._clock = clock
        self._counting = threading.Lock()

    def client_space(self, width: int) -> EmbeddingSpace:
        """The space of ready embeddings of this width, whoever sent them."""
        return self._store.space(f"{_CLIENT}{width}", width)

    def keep(self, vectors: np.ndarray) -> np.ndarray:
        """Stores ready embeddings (M, w) float32 durably; returns their (M,) int64 rows in ``client_space(w)``.

        Raises:
            InvalidEmbeddingError, EmbeddingStorageError: as ``EmbeddingSpace.append``.
        """
        if vectors.ndim != 2:
            raise InvalidEmbeddingError(f"expected embeddings of shape (M, w), got {tuple(vectors.shape)}")
        return self.client_space(vectors.shape[1]).append(embedding_hashes(vectors), vectors)

    def damaged(self, space: str, rows: np.ndarray) -> np.ndarray:
        """(M,) bool: which of (M,) rows of a space, -1 = none, are damaged."""
        return self._store.damaged(space, rows)

    def repair(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        """Embed texts again whose rows in ``space`` are damaged.

        Raises:
            NoEncoderError: there is no encoder.
            EncoderError, EmbeddingStorageError: some rows may be repaired.
        """
        if self.encoder is None or self.space is None:
            raise NoEncoderError("texts cannot be embedded: there is no encoder")
        for start in range(0, len(texts), CHUNK_TEXTS):
            chunk = texts[start : start + CHUNK_TEXTS]
            vectors = self.encoder.encode(list(chunk))
            self.space.repair(rows[start : start + CHUNK_TEXTS], [text_hash(text) for text in chunk], vectors)

    def embed(
        self, texts: Sequence[str], progress: Progress | None = None, cancelled: Cancelled | None = None
    ) -> np.ndarray:
        """Rows of the texts in ``space``, (N,) int64; embeds and stores those that are unknown.

        Args:
            texts: N texts, equal ones allowed.
            progress: called with (embedded so far, texts to embed); never when all are known.
            cancelled: asked before every batch.

        Raises:
            NoEncoderError: there is no encoder.
            EmbeddingCancelled: ``cancelled`` said so; finished chunks stay stored.
            EncoderError, EmbeddingStorageError: finished chunks stay stored.
        """
        if self.encoder is None or self.space is None:
            raise NoEncoderError("texts cannot be embedded: there is no encoder")
        hashes = [text_hash(text) for text in texts]
        known = self.space.rows(hashes) >= 0
        unknown = {content: text for content, text, seen in zip(hashes, texts, known, strict=True) if not seen}
        with self._counting:
            self.reused += len(texts) - len(unknown)
            self.pending += len(unknown)
        left = len(unknown)

        def advance(done: int, total: int) -> None:
            nonlocal left
            with self._counting:
                self.pending -= left - (total - done)
            left = total - done
            if progress is not None:
                progress(done, total)

        try:
            self._embed_unknown(self.encoder, self.space, unknown, advance, cancelled)
        finally:
            with self._counting:
                self.pending -= left
        return self.space.rows(hashes)

    def _embed_unknown(
        self,
        encoder: Encoder,
        space: EmbeddingSpace,
        unknown: dict[bytes, str],
        progress: Progress,
        cancelled: Cancelled | None,
    ) -> None:
        total = len(unknown)
        order = sorted(unknown, key=lambda content: -len(unknown[content]))
        began = logged = self._clock()
        for start in range(0, total, CHUNK_TEXTS):
            if cancelled is not None and cancelled():
                raise EmbeddingCancelled(f"stopped after {start} of {total} texts")
            chunk = order[start : start + CHUNK_TEXTS]
            # Another call may have stored the same texts meanwhile: a client that sends a registration again, say.
            absent = [content for content, row in zip(chunk, space.rows(chunk), strict=True) if row < 0]
            self._embed_chunk(encoder, space, absent, unknown, cancelled)
            with self._counting:
                self.reused += len(chunk) - len(absent)
            done = start + len(chunk)
            progress(done, total)
            now = self._clock()
            if now - logged >= LOG_EVERY_S or (done == total and logged > began):
                logged = now
                _log.info("embedded %d of %d texts, %.1f per second", done, total, done / (now - began))

    def _embed_chunk(
        self,
        encoder: Encoder,
        space: EmbeddingSpace,
        absent: list[bytes],
        unknown: dict[bytes, str],
        cancelled: Cancelled | None,
    ) -> None:
        if not absent:
            return
        began = self._clock()
        vectors = encoder.encode([unknown[content] for content in absent], cancelled=cancelled)
        elapsed = self._clock() - began
        space.append(absent, vectors)
        with self._counting:
            self.embedded += len(absent)
            self.seconds += elapsed
