"""What a registered prompt is: the question (text and embedding), and what is said about it (domain, length, prior)."""

from __future__ import annotations

import hashlib
import math

import numpy as np


def content_hash(
    text: str, embedding: np.ndarray | None, domain: str, token_count: int, prior_rate: float, prior_trials: int
) -> bytes:
    """(32 bytes) of everything that makes two registrations of a prompt the same.

    Args:
        embedding: (w,) as it was sent, None = none was.
        prior_rate: NaN = no prior.
    """
    sent = b"" if embedding is None else embedding.astype("<f4", copy=False).tobytes()
    prior = "" if math.isnan(prior_rate) else f"{prior_rate!r}/{prior_trials}"
    framed = []
    for part in (text.encode(), sent, domain.encode(), str(token_count).encode(), prior.encode()):
        framed.append(len(part).to_bytes(8, "little"))
        framed.append(part)
    return hashlib.sha256(b"".join(framed)).digest()
