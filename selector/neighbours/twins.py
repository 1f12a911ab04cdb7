"""Twins: prompts that are the same question under several ids, found when they are registered.

A prompt is a twin of an earlier one when

* both texts are the same but for white space, and both have the same embedding or none; or
* both texts are the same but for the ways to put a question (``wording``), and the cosine of their embeddings is at
  least ``similarity``. Of one wording, the first 1,024 prompts are compared with.

Twins form groups, which have numbers: a prompt takes the number of the most similar earlier twin's group, or one of its
own. The number is kept with the prompt, so nothing is searched for again at a start, a prompt whose content is replaced
leaves its group without a trace, and the group goes on without it. Prompts without a number are left out: those that
were registered before twins were looked for.

Equal texts alone make no twins where embeddings are unlike: a caller may embed an image along with a question.
Only prompts whose texts have the same checksum are read and compared at all, so the search is small however large the
pool is.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from selector.embedding.errors import EmbeddingDamagedError
from selector.neighbours.search import normalised
from selector.neighbours.wording import checksum, plain, signature
from selector.pool import Pool, PromptRecord

_COMPARED = 1024
_TILE = 2048
# Of a cosine: the last bits of equal products depend on the number of rows that are multiplied at once.
_DECIMALS = 6
Gather = Callable[[np.ndarray], np.ndarray]


class TwinIndex:
    """Finds the twins of prompts that are about to be put into a pool; follows what is put there by itself."""

    def __init__(self, similarity: float) -> None:
        """
        Args:
            similarity: smallest cosine of twins, in (0, 1]; 0 = prompts have no twins.
        """
        self._similarity = similarity
        # Of each prompt's text; and the prompts of each, in order of their indices.
        self._checksums: list[int] = []
        self._with_checksum: dict[int, list[int]] = {}
        # What the last request puts into the pool, if it goes through.
        self._asked: list[int] = []

    def groups(self, pool: Pool, placed: Sequence[tuple[int, PromptRecord]], gather: Gather | None) -> list[int]:
        """The group number of each prompt that is about to be put into the pool, which does not change.

        A prompt that is the same question as before keeps its number.

        Args:
            placed: index in the pool and record of each; new ones have the indices that follow.
            gather: embedding rows (n,) -> vectors (n, w) float32; None when the run has no embeddings.
        """
        if self._similarity == 0.0:
            return [0] * len(placed)
        asked = {at: record for at, record in placed if not _unchanged(pool, at, record)}
        if not asked:
            return [int(pool.twin_group[at]) for at, _ in placed]
        self._follow(pool)
        self._asked = list(asked)

        equal: dict[int, int] = {}
        blocks: list[tuple[list[int], list[int]]] = []
        for known, new in self._alike(pool, asked):
            equal.update(_equal(pool, asked, known, new))
            if gather is not None:
                blocks += _blocks(pool, asked, known, new)
        similar = self._similar(pool, asked, blocks, gather) if gather is not None and blocks else {}
        twin = similar | equal

        found: dict[int, int] = {}
        for at, record in asked.items():
            if at not in twin:
                found[at] = _own_number(at, record)
            else:
                found[at] = found[twin[at]] if twin[at] in asked else int(pool.twin_group[twin[at]])
        return [found[at] if at in found else int(pool.twin_group[at]) for at, _ in placed]

    def _follow(self, pool: Pool) -> None:
        """Take in what was registered and replaced since."""
        known = len(self._checksums)
        for at in self._asked:
            if at < known and (number := checksum(pool.texts[at])) != self._checksums[at]:
                self._with_checksum[self._checksums[at]].remove(at)
                bisect.insort(self._with_checksum.setdefault(number, []), at)
                self._checksums[at] = number
        for at in range(known, len(pool)):
            self._checksums.append(checksum(pool.texts[at]))
            self._with_checksum.setdefault(self._checksums[at], []).append(at)
        self._asked = []

    def _alike(self, pool: Pool, asked: Mapping[int, PromptRecord]) -> Iterator[tuple[list[int], list[int]]]:
        """Prompts of the pool, and those asked for, whose texts have the same checksum; at least two together."""
        alike: dict[int, list[int]] = {}
        for at, record in asked.items():
            # What an embedding alone stands for, and whether it is one at all, is the caller's affair.
            if record.text:
                alike.setdefault(checksum(record.text), []).append(at)
        for number, new in alike.items():
            # Prompts that are older than the search for twins have no number, and are never found.
            known = [
                j
                for j in self._with_checksum.get(number, ())
                if j not in asked and pool.twin_group[j] and pool.texts[j]
            ]
            if len(known) + len(new) > 1:
                yield known, new

    def _similar(
        self,
        pool: Pool,
        asked: Mapping[int, PromptRecord],
        blocks: Sequence[tuple[list[int], list[int]]],
        gather: Gather,
    ) -> dict[int, int]:
        """The nearest earlier prompt of the same wording, where it is near enough.

        Args:
            blocks: prompts of one wording: those in the pool to compare with, and those to search for, in order.
        """
        members = [at for known, new in blocks for at in (*known, *new)]
        rows = [asked[at].embedding_row if at in asked else int(pool.embedding_row[at]) for at in members]
        vectors = _gathered(gather, np.array(rows, dtype=np.int64))
        twin: dict[int, int] = {}
        end = 0
        for known, new in blocks:
            block = [*known, *new]
            start, end = end, end + len(block)
            for query, candidate in self._near(vectors[start:end], len(known)):
                twin[block[query]] = block[candidate]
        return twin

    def _near(self, vectors: np.ndarray, known: int) -> Iterator[tuple[int, int]]:
        """Rows from ``known`` on with the most similar row before them, the first such, where it is similar enough."""
        vectors = normalised(vectors)
        compared = vectors[:_COMPARED]
        for start in range(known, len(vectors), _TILE):
            tile = vectors[start : start + _TILE]
            cosine = np.round(tile @ compared.T, _DECIMALS)
            cosine[np.arange(len(compared)) >= np.arange(start, start + len(tile))[:, None]] = -np.inf
            nearest = cosine.argmax(axis=1)
            for at in np.flatnonzero(cosine.max(axis=1) >= self._similarity).tolist():
                yield start + at, int(nearest[at])


def _equal(
    pool: Pool, asked: Mapping[int, PromptRecord], known: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Prompts asked for with the first one before them of the same text and embedding."""
    read = functools.cache(plain)
    first: dict[tuple[str, int], int] = {}
    for at in known:
        first.setdefault((read(pool.texts[at]), int(pool.embedding_row[at])), at)
    for at in new:
        equal = first.setdefault((read(asked[at].text), asked[at].embedding_row), at)
        if equal != at:
            yield at, equal


def _blocks(
    pool: Pool, asked: Mapping[int, PromptRecord], known: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts with embeddings by wording: of the pool those to compare with, and those asked for; at least two."""
    read = functools.cache(signature)
    blocks: dict[bytes, tuple[list[int], list[int]]] = {}
    for at in new:
        if asked[at].embedding_row >= 0:
            blocks.setdefault(read(asked[at].text), ([], []))[1].append(at)
    for at in known if blocks else ():
        block = blocks.get(read(pool.texts[at]))
        if block and len(block[0]) < _COMPARED and pool.embedding_row[at] >= 0:
            block[0].append(at)
    return (block for block in blocks.values() if len(block[0]) + len(block[1]) > 1)


def _unchanged(pool: Pool, at: int, record: PromptRecord) -> bool:
    return at < len(pool) and record.text == pool.texts[at] and record.embedding_row == pool.embedding_row[at]


def _own_number(at: int, record: PromptRecord) -> int:
    """The number of the group that a prompt founds: another one for every place and content."""
    digest = hashlib.sha256(b"%d %b" % (at, record.content_hash)).digest()
    return int.from_bytes(digest[:8], "little") >> 1 or 1


def _gathered(gather: Gather, rows: np.ndarray) -> np.ndarray:
    """(n, w) vectors; zeros for damaged rows, which are near to nothing."""
    try:
        return gather(rows)
    except EmbeddingDamagedError as error:
        whole = ~np.isin(rows, error.rows)
        if not whole.any():
            return np.zeros((len(rows), 1), dtype=np.float32)
        vectors = gather(rows[whole])
        padded = np.zeros((len(rows), vectors.shape[1]), dtype=np.float32)
        padded[whole] = vectors
        return padded
