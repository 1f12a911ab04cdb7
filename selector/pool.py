"""The prompts of a run: content and status as columns, in order of registration.

A prompt's index is its place in the order of registration; it never changes, and noise, ties and storage refer to it.
Content columns change only by registration; ``version`` then grows, so that what is derived from them can be cached.
``content_bytes`` is what ids, texts and domains take.
What happened to prompts at steps (selections, leases, outcomes) is not here but in ``selector.state``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from selector.content import content_hash
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.surface import SURFACE_FEATURES, surface_features
from selector.embedding.errors import EmbeddingDamagedError
from selector.neighbours.groups import first_members
from selector.predictor import memory

ACTIVE, RETIRED, INELIGIBLE = 1, 2, 3

_GATHERED_AT_ONCE = 65_536

# Fields of records by the columns of the pool that hold them as arrays.
_NUMBERS = {
    "status": "status",
    "embedding_row": "embedding_row",
    "token_count": "token_count",
    "twin_group": "twin_group",
    "prior_rate": "_prior_rate",
    "prior_trials": "_prior_trials",
}


class PromptRecord(NamedTuple):
    """One prompt as registered; a tuple, since there are millions of them.

    Attributes:
        content_hash: (32 bytes) of everything that makes two registrations the same.
        embedding_row: row in the run's embedding space, -1 = none.
        prior_rate: another model's success rate, NaN = none.
        prior_trials: its number of trials, 0 = none.
        twin_group: the same number for all prompts that are near-duplicates of each other, 0 = not looked for.
    """

    prompt_id: str
    content_hash: bytes
    text: str
    embedding_row: int
    domain: str
    token_count: int
    prior_rate: float
    prior_trials: int
    status: int
    status_reason: str = ""
    twin_group: int = 0


class PromptColumns(NamedTuple):
    """Prompts as registered, field by field; see ``PromptRecord``."""

    prompt_id: Sequence[str]
    content_hash: Sequence[bytes]
    text: Sequence[str]
    embedding_row: Sequence[int]
    domain: Sequence[str]
    token_count: Sequence[int]
    prior_rate: Sequence[float]
    prior_trials: Sequence[int]
    status: Sequence[int]
    status_reason: Sequence[str]
    twin_group: Sequence[int]


class Pool:
    """The prompts of one run."""

    def __init__(self) -> None:
        self.version = 0
        self.content_bytes = 0
        self.prompt_ids: list[str] = []
        self.index: dict[str, int] = {}
        self.content_hashes: list[bytes] = []
        self.texts: list[str] = []
        self.domain_names: list[str] = []
        self.status = np.zeros(0, dtype=np.uint8)
        self.status_reasons: list[str] = []
        self.embedding_row = np.zeros(0, dtype=np.int64)
        self.token_count = np.zeros(0, dtype=np.int64)
        self.twin_group = np.zeros(0, dtype=np.int64)
        self.surface = np.zeros((0, len(SURFACE_FEATURES)), dtype=np.float32)
        self._first_twins: tuple[np.ndarray | None] | None = None
        self._domain_codes: np.ndarray | None = None
        self._prior_rate = np.zeros(0)
        self._prior_trials = np.zeros(0)
        self._features: PoolFeatures | None = None

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def put(self, records: Sequence[PromptRecord]) -> None:
        """Add prompts, or replace the content of those that exist; replaced prompts keep index and selections."""
        if not records:
            return
        known = [r for r in records if r.prompt_id in self.index]
        new = [r for r in records if r.prompt_id not in self.index] if known else records
        if new:
            self._add([PromptColumns(*zip(*new, strict=True))])
        self.describe()
        self._replace(known)
        self._touch()

    def load(self, pages: Iterable[PromptColumns]) -> None:
        """Take in a pool that was stored, some prompts at a time; ``describe`` completes it."""
        self._add(pages)
        self._touch()

    def describe(self, known: np.ndarray | None = None) -> None:
        """Compute the surface features of texts that have none yet.

        Args:
            known: (n, 9) float32, those of the first n prompts; None = none are known.
        """
        if known is not None:
            self.surface = known
        texts = self.texts[len(self.surface) :]
        self.surface = np.concatenate([self.surface, surface_features([text or None for text in texts])])

    def bytes_with(self, new: Sequence[PromptRecord], changed: Sequence[tuple[int, PromptRecord]]) -> int:
        """``content_bytes`` as ``put`` will make it."""
        replaced = sum(content_bytes(record) - self._content_bytes_at(at) for at, record in changed)
        return self.content_bytes + sum(map(content_bytes, new)) + replaced

    def same_question(self, at: int, text: str, embedding: np.ndarray | None) -> bool:
        """Whether a prompt was registered with this text and embedding as sent, whatever else was said about it."""
        content = content_hash(text, embedding, self.domain_names[at], int(self.token_count[at]), *self.prior(at))
        return content == self.content_hashes[at]

    def prior(self, at: int) -> tuple[float, int]:
        """Success rate (NaN = none) and trials that a prompt was registered with."""
        return float(self._prior_rate[at]), int(self._prior_trials[at])

    def retire(self, prompts: np.ndarray) -> None:
        """Take prompts out of selection."""
        self.status[prompts] = RETIRED

    def features(self, gather: Callable[[np.ndarray], np.ndarray] | None) -> PoolFeatures:
        """Read-only columns for the estimators, without signals; the same object until the content changes.

        Args:
            gather: embedding rows (n,) -> vectors (n, w) float32; None when the run has no embeddings.
        """
        if self._features is None:
            self._features = PoolFeatures(
                version=self.version,
                embeddings=None if gather is None else self._embeddings(gather),
                surface=self.surface.copy(),
                prior_rate=self._prior_rate.copy(),
                prior_trials=self._prior_trials.copy(),
                domain=self.domain_codes(),
                signals={},
                first_twin=self.first_twins(),
            )
        return self._features

    def _embeddings(self, gather: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """In memory that the predictor's process can map, so that there is one copy of them."""
        rows = np.maximum(self.embedding_row, 0)
        try:
            vectors = memory.empty((len(rows), gather(rows[:1]).shape[1]), np.float32)
            for start in range(0, len(rows), _GATHERED_AT_ONCE):
                vectors[start : start + _GATHERED_AT_ONCE] = gather(rows[start : start + _GATHERED_AT_ONCE])
        except EmbeddingDamagedError:
            # Of all that are damaged, not of these alone.
            gather(rows)
            raise
        vectors[self.embedding_row < 0] = 0.0
        return vectors

    def active(self) -> np.ndarray:
        """(N,) bool: can be selected."""
        return self.status == ACTIVE

    def first_twins(self) -> np.ndarray | None:
        """(N,) int64 index of the first prompt that each one is a twin of, itself if of none; None without twins."""
        if self._first_twins is None:
            self._first_twins = (first_members(self.twin_group),)
        return self._first_twins[0]

    def domain_codes(self) -> np.ndarray:
        """(N,) int32 code of each prompt's domain, in order of first appearance, -1 = none."""
        if self._domain_codes is None:
            codes: dict[str, int] = {}
            numbers = [codes.setdefault(name, len(codes)) if name else -1 for name in self.domain_names]
            self._domain_codes = np.array(numbers, dtype=np.int32)
        return self._domain_codes

    def _add(self, pages: Iterable[PromptColumns]) -> None:
        prompt_ids: list[str] = []
        numbers = {field: [getattr(self, column)] for field, column in _NUMBERS.items()}
        for new in pages:
            prompt_ids += new.prompt_id
            self.content_bytes += _size("".join((*new.prompt_id, *new.text, *new.domain)))
            self.content_hashes += new.content_hash
            self.texts += new.text
            self.domain_names += new.domain
            self.status_reasons += new.status_reason
            for field, parts in numbers.items():
                parts.append(np.array(getattr(new, field), dtype=parts[0].dtype))
        for field, column in _NUMBERS.items():
            setattr(self, column, np.concatenate(numbers[field]))
        # Last: from then on other threads find the prompts.
        first = len(self)
        self.prompt_ids += prompt_ids
        self.index.update(zip(prompt_ids, range(first, len(self)), strict=True))

    def _replace(self, known: Sequence[PromptRecord]) -> None:
        surface = surface_features([r.text or None for r in known])
        for record, row in zip(known, surface, strict=True):
            at = self.index[record.prompt_id]
            self.content_bytes += content_bytes(record) - self._content_bytes_at(at)
            # Registrations look prompts up from other threads: none has this content until all of it is in place.
            self.content_hashes[at] = b""
            self.texts[at] = record.text
            self.domain_names[at] = record.domain
            self.status[at] = record.status
            self.status_reasons[at] = record.status_reason
            self.embedding_row[at] = record.embedding_row
            self.token_count[at] = record.token_count
            self.twin_group[at] = record.twin_group
            self._prior_rate[at] = record.prior_rate
            self._prior_trials[at] = record.prior_trials
            self.surface[at] = row
            self.content_hashes[at] = record.content_hash

    def _touch(self) -> None:
        self.version += 1
        self._features = None
        self._domain_codes = None
        self._first_twins = None

    def _content_bytes_at(self, at: int) -> int:
        return _size(self.prompt_ids[at] + self.texts[at] + self.domain_names[at])


def content_bytes(record: PromptRecord) -> int:
    """Bytes of what identifies and describes a prompt, embeddings aside."""
    return _size(record.prompt_id + record.text + record.domain)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def extended(column: np.ndarray, count: int, fill: float) -> np.ndarray:
    """The column with ``count`` more entries."""
    return np.concatenate([column, np.full(count, fill, dtype=column.dtype)])
