"""Counter-based random numbers: the value at a counter depends on the key and the counter alone.

A prompt's noise in a selection is therefore the same whichever shard of the pool it is computed in, and whatever else
was drawn before. The generator is Philox-4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
as shipped by numpy, whose raw output is stable across numpy releases.
"""

from __future__ import annotations

import hashlib

import numpy as np

# Philox emits four 64-bit words per increment of its counter.
_WORDS = 4
# Counters closer together than this are drawn as one contiguous stretch.
_BLOCK = 4096


def noise_key(seed: int, *parts: str | int) -> np.ndarray:
    """Key of one independent stream.

    Args:
        seed: the run's seed.
        parts: what the stream is for, such as ``("select", step, purpose, round)``.

    Returns:
        (2,) uint64.
    """
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in parts)])
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), dtype="<u8").astype(np.uint64)


def raw(key: np.ndarray, start: int, count: int) -> np.ndarray:
    """The generator's words at counters ``start .. start + count - 1``: (count,) uint64.

    ``uniforms_of`` and ``gumbels_of`` make noise of them; both keep their order.
    """
    generator = np.random.Philox(key=key)
    generator.advance(start // _WORDS)
    skip = start % _WORDS
    return generator.random_raw(count + skip)[skip:]


def uniforms(key: np.ndarray, start: int, count: int) -> np.ndarray:
    """53-bit uniforms at counters ``start .. start + count - 1``.

    Returns:
        (count,) float64, strictly inside (0, 1): 0 would make a Gumbel infinite.
    """
    return uniforms_of(raw(key, start, count))


def uniforms_of(words: np.ndarray) -> np.ndarray:
    """53-bit uniforms from words of ``raw``, as ``uniforms`` gives them."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def uniforms_at(key: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """53-bit uniforms at arbitrary counters.

    Args:
        counters: (n,) non-negative integers, in any order.

    Returns:
        (n,) float64 in (0, 1); equal to ``uniforms(key, c, 1)`` for each counter c.
    """
    counters = np.asarray(counters, dtype=np.int64)
    result = np.empty(counters.shape, dtype=np.float64)
    order = np.argsort(counters, kind="stable")
    ordered = counters[order]
    first = 0
    while first < len(ordered):
        start = int(ordered[first])
        last = int(np.searchsorted(ordered, start + _BLOCK, side="left"))
        stretch = uniforms(key, start, int(ordered[last - 1]) - start + 1)
        result[order[first:last]] = stretch[ordered[first:last] - start]
        first = last
    return result


def gumbels(key: np.ndarray, start: int, count: int) -> np.ndarray:
    """Standard Gumbel noise at counters ``start .. start + count - 1``: (count,) float64."""
    return gumbels_of(raw(key, start, count))


def gumbels_of(words: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise from words of ``raw``, as ``gumbels`` gives it."""
    return -np.log(-np.log(uniforms_of(words)))
