"""Content hashes: 32-byte SHA-256 digests under which embeddings are kept."""

from __future__ import annotations

import hashlib

import numpy as np

HASH_BYTES = 32


def text_hash(text: str) -> bytes:
    """Digest of the UTF-8 bytes of a prompt's text."""
    return hashlib.sha256(text.encode("utf-8")).digest()


def embedding_hashes(vectors: np.ndarray) -> list[bytes]:
    """Digests of ready embeddings, one per row of (M, w): of the row's little-endian float32 bytes."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return [hashlib.sha256(row.tobytes()).digest() for row in rows]
