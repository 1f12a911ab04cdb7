"""Embeddings of prompts: an encoder that makes them once, and a store that keeps them by content.

``embedder.Embedder`` is what the service uses; ``store`` and ``encoder`` are its two halves. Importing this package
loads neither torch nor sentence-transformers; ``encoder.load_encoder`` does.
"""

from __future__ import annotations

from selector.embedding.embedder import Embedder
from selector.embedding.encoder import Encoder, load_encoder
from selector.embedding.errors import (
    EmbeddingCancelled,
    EmbeddingError,
    EmbeddingStorageError,
    EncoderError,
    InvalidEmbeddingError,
    NoEncoderError,
    SpaceMismatchError,
)
from selector.embedding.hashing import embedding_hashes, text_hash
from selector.embedding.store import EmbeddingSpace, EmbeddingStore

__all__ = [
    "Embedder",
    "EmbeddingCancelled",
    "EmbeddingError",
    "EmbeddingSpace",
    "EmbeddingStorageError",
    "EmbeddingStore",
    "Encoder",
    "EncoderError",
    "InvalidEmbeddingError",
    "NoEncoderError",
    "SpaceMismatchError",
    "embedding_hashes",
    "load_encoder",
    "text_hash",
]
