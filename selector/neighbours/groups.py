"""Twin groups as a column: prompts that are the same question under several ids.

``first`` is (N,) int64, the index of the first prompt of each prompt's group, its own where it has no twin. ``None``
stands for a pool without twins, so that nothing is computed there.
"""

from __future__ import annotations

import numpy as np


def first_members(groups: np.ndarray) -> np.ndarray | None:
    """``first`` from the prompts' group numbers, (N,) int64, 0 = none; None where no two prompts share one."""
    numbered = np.flatnonzero(groups)
    _, places, inverse = np.unique(groups[numbered], return_index=True, return_inverse=True)
    if len(places) == len(numbered):
        return None
    first = np.arange(len(groups))
    first[numbered] = numbered[places][inverse.reshape(-1)]
    return first


def twins_of(first: np.ndarray | None, prompt: int) -> np.ndarray:
    """Indices of the other prompts of a prompt's group."""
    if first is None:
        return np.zeros(0, dtype=np.int64)
    members = np.flatnonzero(first == first[prompt])
    return members[members != prompt]


def count_twins(first: np.ndarray | None) -> int:
    """Prompts that are a twin of one before them."""
    return 0 if first is None else int((first != np.arange(len(first))).sum())


def of_any_member(mask: np.ndarray, first: np.ndarray | None) -> np.ndarray:
    """(N,) bool: whether the (N,) mask holds for any prompt of the group."""
    if first is None:
        return mask
    held = np.zeros(len(mask), dtype=bool)
    held[first[mask]] = True
    return held[first]


def one_each(eligible: np.ndarray, first: np.ndarray | None, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """One eligible prompt per group, each with the same chance: the one with the largest noise.

    Args:
        eligible: (N,) bool.
        noise: (N,) float64 in (0, 1).

    Returns:
        (N,) bool, the prompts that stand for their groups; and (N,) int64, how many each was drawn from, None = 1 each.
    """
    if first is None:
        return eligible, None
    candidates = np.flatnonzero(eligible)
    group = first[candidates]
    by_noise = np.lexsort((-noise[candidates], group))
    leads = np.ones(len(by_noise), dtype=bool)
    leads[1:] = group[by_noise][1:] != group[by_noise][:-1]
    chosen = np.zeros(len(eligible), dtype=bool)
    chosen[candidates[by_noise[leads]]] = True
    return chosen, np.bincount(group, minlength=len(eligible))[first]
