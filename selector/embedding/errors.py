"""What can go wrong while prompts are embedded and while their embeddings are kept."""

from __future__ import annotations


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


class EmbeddingStorageError(EmbeddingError):
    """The files of a space could not be read or written. What was acknowledged before is unchanged."""
