"""The groups that are pushed: ragged rollouts, as arrays. Needs numpy alone, since all stores' environments read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROLLOUTS = 8
PROMPT_TOKENS = 256
# 64 KiB a group, together with the prompt.
RESPONSE_TOKENS = 7168


@dataclass(frozen=True)
class Arrays:
    """One group; T response tokens in all.

    Attributes:
        lengths: (8,) int32, summing to T.
        rewards: (8,) float64.
        prompt: (256,) int32.
        tokens: (T,) int32; the first is the group's number, so that what comes back can be told.
        log_probs: (T,) float32.
        mask: (T,) uint8.
    """

    lengths: np.ndarray
    rewards: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray
    mask: np.ndarray

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """All arrays."""
        return self.lengths, self.rewards, self.prompt, self.tokens, self.log_probs, self.mask


def group_bytes(tokens: int) -> int:
    """Payload of a group: prompt, tokens, log-probs and mask."""
    return 4 * PROMPT_TOKENS + 9 * tokens


def made(count: int, tokens: int) -> list[Arrays]:
    """Groups of ``tokens`` response tokens each, the same in every process."""
    random = np.random.default_rng(0)
    groups = []
    for number in range(count):
        cuts = np.sort(random.choice(np.arange(1, tokens), ROLLOUTS - 1, replace=False))
        response = random.integers(0, 150_000, tokens, dtype=np.int32)
        response[0] = number
        groups.append(
            Arrays(
                lengths=np.diff(cuts, prepend=0, append=tokens).astype(np.int32),
                rewards=np.where(np.arange(ROLLOUTS) <= number % (ROLLOUTS - 1), 1.0, 0.0),
                prompt=random.integers(0, 150_000, PROMPT_TOKENS, dtype=np.int32),
                tokens=response,
                log_probs=-random.random(tokens, dtype=np.float32),
                mask=(random.random(tokens, dtype=np.float32) < 0.9).astype(np.uint8),
            )
        )
    return groups


def packed(group: Arrays) -> bytes:
    """A group's arrays, one after the other."""
    return b"".join([array.data for array in group.columns])


def unpacked(data: bytes | memoryview, like: Arrays) -> Arrays:
    """Views of a packed group, of the same size as ``like``."""
    views, start = [], 0
    for array in like.columns:
        views.append(np.frombuffer(data, array.dtype, len(array), start))
        start += array.nbytes
    return Arrays(*views)


def check(sampled: Sequence[Arrays], pushed: Sequence[Arrays], count: int) -> None:
    """What came back is what was pushed; a few groups are looked at.

    Raises:
        ValueError: it is not.
    """
    if len(sampled) != count:
        raise ValueError(f"expected {count} groups; got {len(sampled)}")
    for group in sampled[:: max(1, count // 4)]:
        original = pushed[int(group.tokens[0])]
        for got, expected in zip(group.columns, original.columns, strict=True):
            if got.dtype != expected.dtype or not np.array_equal(got, expected):
                raise ValueError("a group came back changed")
