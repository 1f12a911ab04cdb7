"""What can go wrong while prompts are embedded and while their embeddings are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EmbeddingError(Exception):
    """Root of the errors of ``selector.embedding``."""


class EncoderError(EmbeddingError):
    """The encoder cannot be loaded, or it answered with something that is no embedding."""


class NoEncoderError(EncoderError):
    """A text was to be embedded, but there is no encoder."""


class EmbeddingCancelled(EmbeddingError):
    """Embedding was stopped between two batches, as asked; what had been stored by then stays stored."""


class InvalidEmbeddingError(EmbeddingError, ValueError):
    """Vectors or hashes that a space cannot take: wrong shape, width or type, NaN or infinite."""


class SpaceMismatchError(EmbeddingError):
    """The directory of a space holds something else: another width, another key or another format."""


class EmbeddingQuotaExceeded(EmbeddingError):
    """Embeddings would take more bytes than they may, all spaces together; nothing was stored."""

    def __init__(self, max_bytes: int, wanted: int) -> None:
        super().__init__(f"embeddings may take {max_bytes} bytes in all; this would make {wanted}")
        self.max_bytes = max_bytes
        self.wanted = wanted


class EmbeddingStorageError(EmbeddingError):
    """The files of a space could not be read or written. What was acknowledged before is unchanged."""


class EmbeddingDamagedError(EmbeddingError):
    """Rows that were acknowledged are missing or no longer match their checksum.

    Attributes:
        rows: those of them that were asked for, ascending.
    """

    def __init__(self, directory: Path, rows: Sequence[int]) -> None:
        super().__init__(f"{len(rows)} embedding(s) in {directory} are damaged or missing")
        self.directory = directory
        self.rows = tuple(rows)
