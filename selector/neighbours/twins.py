"""Twins: prompts that are the same question under several ids, found when they are registered.

A prompt is a twin of an earlier one when

* both texts are the same but for white space, and both have the same embedding or none; or
* the symbols and words of both texts agree (``wording``) and the cosine of their embeddings is at least ``similarity``.

Twins form groups, which have numbers: a prompt takes the number of the most similar earlier twin's group, or one of its
own. The number is kept with the prompt, so nothing is searched for again at a start, a prompt whose content is replaced
leaves its group without a trace, and the group goes on without it. Prompts without a number are left out: those that
were registered before twins were looked for.

Equal texts alone make no twins where embeddings are unlike: a caller may embed an image along with a question.
Only prompts whose symbols and words agree are compared at all, so the search is small however large the pool is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selector.embedding.errors import EmbeddingDamagedError
from selector.neighbours.search import CPU, nearest, normalised
from selector.neighbours.wording import signature
from selector.pool import Pool, PromptRecord

_TILE = 2048
Gather = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Keys:
    """What a prompt is found by.

    Attributes:
        content: the same for prompts of equal text and embedding, b"" where there is nothing to compare.
        wording: the same for prompts whose texts agree in symbols and words, b"" without text or embedding.
    """

    content: bytes
    wording: bytes


class TwinIndex:
    """Finds the twins of prompts that are about to be put into a pool; follows what is put there by itself."""

    def __init__(self, similarity: float, device: str = CPU) -> None:
        """
        Args:
            similarity: smallest cosine of twins, in (0, 1]; 0 = prompts have no twins.
            device: see ``selector.neighbours.search``.
        """
        self._similarity = similarity
        self._device = device
        self._keys: list[_Keys] = []
        # Indices by either key; those whose key has changed since are passed over.
        self._by_content: dict[bytes, list[int]] = {}
        self._by_wording: dict[bytes, list[int]] = {}
        # What the last request puts into the pool, if it goes through.
        self._asked: dict[int, tuple[PromptRecord, _Keys]] = {}

    def groups(self, pool: Pool, placed: Sequence[tuple[int, PromptRecord]], gather: Gather | None) -> list[int]:
        """The group number of each prompt that is about to be put into the pool, which does not change.

        A prompt that is the same question as before keeps its number.

        Args:
            placed: index in the pool and record of each; new ones have the indices that follow.
            gather: embedding rows (n,) -> vectors (n, w) float32; None when the run has no embeddings.
        """
        if self._similarity == 0.0:
            return [0] * len(placed)
        self._follow(pool)
        asked = {at: record for at, record in placed if not _unchanged(pool, at, record)}
        keys = {at: _keys_of(record.text, record.embedding_row) for at, record in asked.items()}
        self._asked = {at: (record, keys[at]) for at, record in asked.items()}

        twin: dict[int, int] = {}
        standing: dict[bytes, int] = {}
        blocks: dict[bytes, list[int]] = {}
        for at, key in keys.items():
            equal = standing.get(key.content)
            if equal is None:
                equal = next((j for j in self._by_content.get(key.content, ()) if self._has(j, key, asked)), None)
            if equal is not None:
                twin[at] = equal
                continue
            if key.content:
                standing[key.content] = at
            if key.wording:
                blocks.setdefault(key.wording, []).append(at)
        if gather is not None:
            twin.update(self._similar(pool, asked, blocks, gather))

        found: dict[int, int] = {}
        for at, record in asked.items():
            if at not in twin:
                found[at] = _own_number(at, record)
            else:
                found[at] = found[twin[at]] if twin[at] in asked else int(pool.twin_group[twin[at]])
        return [found[at] if at in found else int(pool.twin_group[at]) for at, _ in placed]

    def _follow(self, pool: Pool) -> None:
        """Take in what was registered and replaced since."""
        replaced = [at for at in self._asked if at < len(self._keys)]
        for at in [*replaced, *range(len(self._keys), len(pool))]:
            keys = self._keys_at(pool, at)
            if at == len(self._keys):
                self._keys.append(_Keys(b"", b""))
            for index, key, held in (
                (self._by_content, keys.content, self._keys[at].content),
                (self._by_wording, keys.wording, self._keys[at].wording),
            ):
                if key and key != held:
                    index.setdefault(key, []).append(at)
            self._keys[at] = keys
        self._asked = {}

    def _keys_at(self, pool: Pool, at: int) -> _Keys:
        # Prompts that are older than the search for twins have no number, and are never found.
        if pool.twin_group[at] == 0:
            return _Keys(b"", b"")
        record, keys = self._asked.get(at, (None, _Keys(b"", b"")))
        if record is not None and _unchanged(pool, at, record):
            return keys
        return _keys_of(pool.texts[at], int(pool.embedding_row[at]))

    def _has(self, at: int, key: _Keys, asked: Mapping[int, PromptRecord]) -> bool:
        return at not in asked and self._keys[at].content == key.content

    def _similar(
        self, pool: Pool, asked: Mapping[int, PromptRecord], blocks: Mapping[bytes, Sequence[int]], gather: Gather
    ) -> dict[int, int]:
        """The nearest earlier prompt of the same wording, where it is near enough.

        Args:
            blocks: the prompts to search for, in order, by their wording.
        """
        known = {
            wording: [
                j for j in self._by_wording.get(wording, ()) if j not in asked and self._keys[j].wording == wording
            ]
            for wording in blocks
        }
        compared = {wording: [*known[wording], *block] for wording, block in blocks.items()}
        compared = {wording: members for wording, members in compared.items() if len(members) > 1}
        members = [at for block in compared.values() for at in block]
        rows = [asked[at].embedding_row if at in asked else int(pool.embedding_row[at]) for at in members]
        vectors = _gathered(gather, np.array(rows, dtype=np.int64))
        twin: dict[int, int] = {}
        end = 0
        for wording, block in compared.items():
            start, end = end, end + len(block)
            old = len(known[wording])
            for query, candidate in self._near(vectors[start:end], old):
                twin[block[query]] = block[candidate]
        return twin

    def _near(self, vectors: np.ndarray, old: int) -> Iterator[tuple[int, int]]:
        """Rows from ``old`` on with their most similar earlier row, where it is similar enough."""
        vectors = normalised(vectors)
        for start in range(old, len(vectors), _TILE):
            tile = vectors[start : start + _TILE]
            within = tile @ tile.T
            within[np.triu_indices(len(tile))] = -np.inf
            row = within.argmax(axis=1)
            cosine = np.take_along_axis(within, row[:, None], axis=1)[:, 0]
            row += start
            if start:
                before, nearest_before = nearest(tile, vectors[:start], 1, self._device)
                earlier = before[:, 0] >= cosine
                row = np.where(earlier, nearest_before[:, 0], row)
                cosine = np.where(earlier, before[:, 0], cosine)
            for at in np.flatnonzero(cosine >= self._similarity).tolist():
                yield start + at, int(row[at])


def _unchanged(pool: Pool, at: int, record: PromptRecord) -> bool:
    return at < len(pool) and record.text == pool.texts[at] and record.embedding_row == pool.embedding_row[at]


def _keys_of(text: str, embedding_row: int) -> _Keys:
    if not text:
        # What an embedding alone stands for, and whether it is one at all, is the caller's affair.
        return _Keys(b"", b"")
    content = hashlib.sha256(b"%d %b" % (embedding_row, " ".join(text.split()).encode())).digest()[:16]
    if embedding_row < 0:
        return _Keys(content, b"")
    return _Keys(content, signature(text))


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
