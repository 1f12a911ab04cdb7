"""What can be wrong with the data an adapter is to be trained on."""

from __future__ import annotations


class TrainingDataError(ValueError):
    """The pass rates cannot train an adapter; the message says which and why."""
