"""The search for twins itself: what it reads, ties, and that it finds the same however prompts arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from selector.neighbours import twins
from selector.neighbours.twins import TwinIndex
from selector.pool import ACTIVE, Pool, PromptRecord


class _Texts(list[str]):
    """Texts that count how often one is read."""

    read = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        self.read += 1
        return super().__getitem__(at)


def _record(at: int, text: str, row: int, version: int = 0) -> PromptRecord:
    content = bytes([version]) + at.to_bytes(31, "little")
    return PromptRecord(f"p{at}", content, text, row, "", 0, float("nan"), 0, ACTIVE)


def _put(pool: Pool, index: TwinIndex, placed: Sequence[tuple[int, PromptRecord]], vectors: np.ndarray) -> list[int]:
    groups = index.groups(pool, placed, lambda rows: vectors[rows])
    pool.put([record._replace(twin_group=group) for (_, record), group in zip(placed, groups, strict=True)])
    return groups


def test_an_unchanged_pool_is_not_read_after_a_restart() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    placed = [(i, _record(i, f"What is {i} + 1?", i)) for i in range(50)]
    pool = Pool()
    groups = _put(pool, TwinIndex(0.9), placed, vectors)
    pool.texts = counted = _Texts(pool.texts)
    assert TwinIndex(0.9).groups(pool, placed, lambda rows: vectors[rows]) == groups
    assert counted.read == 50, "each is compared with what was sent, and no more"


def test_an_index_that_followed_and_a_fresh_one_find_the_same() -> None:
    """Replacements bring prompts back in another order than that of their indices; their cosines are the same."""
    random = np.random.default_rng(1)
    # Of three directions, each a twin of the one beside it; many rows of each, so ties are everywhere.
    directions = np.array([[1, 0], [np.cos(0.3), np.sin(0.3)], [np.cos(0.6), np.sin(0.6)]])
    of = random.integers(0, 3, 400)
    vectors = directions[of].astype(np.float32)
    ways = ("What is 2 + {}?", "Find 2 + {}.", "Determine the 2 + {}", "2 + {}")
    pool, live = Pool(), TwinIndex(0.95)
    _put(pool, live, [(i, _record(i, ways[i % 4].format(i % 3), i)) for i in range(60)], vectors)
    followed = 0
    for version in range(1, 40):
        at = random.choice(60, 7, replace=False).tolist()
        placed = [
            (i, _record(i, ways[random.integers(4)].format(random.integers(3)), int(random.integers(400)), version))
            for i in at
        ]
        fresh = TwinIndex(0.95).groups(pool, placed, lambda rows: vectors[rows])
        assert _put(pool, live, placed, vectors) == fresh
        followed += len(set(fresh) & set(pool.twin_group[[i for i in range(60) if i not in at]].tolist()))
    assert followed > 100


def test_a_request_that_fails_leaves_nothing_behind() -> None:
    vectors = np.ones((3, 2), np.float32)
    pool, index = Pool(), TwinIndex(0.9)
    first = _put(pool, index, [(0, _record(0, "What is 2 + 3?", 0))], vectors)
    index.groups(
        pool, [(0, _record(0, "What is 5 + 5?", 0, 1)), (1, _record(1, "Find 7 + 7.", 1))], lambda r: vectors[r]
    )
    assert (
        _put(pool, index, [(1, _record(1, "Find 2 + 3.", 1)), (2, _record(2, "Find 7 + 7.", 2))], vectors)[0]
        == first[0]
    )
    assert pool.twin_group[2] != first[0]


@pytest.mark.parametrize("size", [1, 7, 40])
def test_of_one_wording_the_first_prompts_are_compared_with(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(twins, "_COMPARED", 10)
    monkeypatch.setattr(twins, "_TILE", 8)
    vectors = np.eye(40, dtype=np.float32)
    vectors[[15, 35]] = vectors[[5, 20]]
    vectors[[16, 17]] = vectors[9] + 0.1 * vectors[8]
    pool, index = Pool(), TwinIndex(0.9)
    for start in range(0, 40, size):
        placed = [(i, _record(i, "Which animal?", i)) for i in range(start, min(start + size, 40))]
        _put(pool, index, placed, vectors)
    first = pool.first_twins()
    assert first is not None
    # The 35th is like the 20th, which is not among the first ten.
    assert {i: int(first[i]) for i in range(40) if first[i] != i} == {15: 5, 16: 9, 17: 9}
