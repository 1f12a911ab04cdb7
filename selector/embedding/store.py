"""Durable embeddings by content hash: append-only spaces of float32 vectors, read through a memory map.

A *space* holds vectors that can be compared with each other: those of one encoder, or ready ones of one width. Its
directory is named after a hash of its key, so no outside string becomes a path:

    <root>/<first 32 hex digits of sha256(key)>/space.json     {"format", "key", "width"}
                                                vectors.f32    row i = width little-endian float32
                                                keys.bin       entry i = 32-byte content hash, 4-byte crc32

The crc32 is of the hash and the row. Rows never move and never change; row i of an acknowledged append is row i for
ever. Files, not the memory of one process, decide what exists:

| at open                          | what happens                                                              |
|----------------------------------|---------------------------------------------------------------------------|
| complete vectors without a key   | ignored: the append was never acknowledged                                |
| complete keys without a vector   | ignored                                                                   |
| partial last row or entry        | ignored                                                                   |
| wrong crc within the last block  | that row and all after it are ignored, and a warning says how many        |

Rows that prompts refer to are never ignored: ``hold`` says up to where they reach. All rows are checked before the
first is used. Those that are missing or have a wrong crc are damaged: they cannot be gathered, and keep their place
until the same content is appended again or ``repair`` is called.

Ignored bytes are cut off by the next append, so opening and reading need no right to write. An append writes blocks
of at most ``BLOCK_ROWS`` rows: vectors, fdatasync, keys, fdatasync. Only rows of the last block can therefore be torn,
which is why checking that many at open is enough. Rows become visible when the whole append is durable.

A space takes one appending and any number of reading threads of one process. Two processes must not append to the
same root.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import threading
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selector.embedding.errors import (
    EmbeddingDamagedError,
    EmbeddingStorageError,
    InvalidEmbeddingError,
    SpaceMismatchError,
)
from selector.embedding.hashing import HASH_BYTES
from selector.embedding.room import Room
from selector.stored_json import loads, record

FORMAT = 1
BLOCK_ROWS = 4096
MAX_WIDTH = 65536
ENTRY_BYTES = HASH_BYTES + 4
DESCRIPTION = "space.json"
_ENTRY = np.dtype([("content", "V32"), ("checksum", "<u4")])

_log = logging.getLogger("selector.embedding")


class EmbeddingSpace:
    """The vectors of one key; made by ``EmbeddingStore.space``.

    Attributes:
        key: what the vectors are of.
        width: w, numbers per vector.
    """

    def __init__(self, directory: Path, key: str, width: int, room: Room | None = None) -> None:
        """``room``: what all spaces may take; None = anything."""
        self.key = key
        self.width = width
        self._row_bytes = 4 * width
        self._directory = directory
        self._room = room
        self._vectors_path = directory / "vectors.f32"
        self._keys_path = directory / "keys.bin"
        self._writing = threading.Lock()
        self._map = np.empty((0, width), dtype="<f4")
        self._row_of: dict[bytes, int] = {}
        self._count = 0
        # Rows that are damaged, and the contents that they are known to have been of.
        self._damaged: set[int] = set()
        self._damaged_of: dict[bytes, int] = {}
        self._checked = False
        try:
            self._recover()
        except OSError as error:
            raise EmbeddingStorageError(f"cannot read embeddings in {directory}: {error}") from error

    def __len__(self) -> int:
        """Rows that are durable and can be gathered."""
        return self._count

    def rows(self, hashes: Sequence[bytes]) -> np.ndarray:
        """(M,) int64 rows of the content hashes; -1 = absent."""
        self._check()
        row_of = self._row_of
        return np.fromiter((row_of.get(content, -1) for content in hashes), dtype=np.int64, count=len(hashes))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """(M, w) float32 copy of the vectors at (M,) rows.

        Raises:
            IndexError: a row is negative or was never acknowledged.
            EmbeddingDamagedError: a row is damaged.
            EmbeddingStorageError: the file cannot be read.
        """
        wanted = np.asarray(rows, dtype=np.int64)
        if wanted.size == 0:
            return np.empty((0, self.width), dtype=np.float32)
        self._check()
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= self._count:
            raise IndexError(f"rows must lie in [0, {self._count}), got {low} to {high}")
        damaged = self.damaged(wanted)
        if damaged.any():
            raise EmbeddingDamagedError(self._directory, sorted(set(wanted[damaged].tolist())))
        return self._mapped(high + 1)[wanted].astype(np.float32, copy=False)

    def append(self, hashes: Sequence[bytes], vectors: np.ndarray) -> np.ndarray:
        """Keeps vectors durably; hashes that are present already, or twice in the call, are skipped.

        When it returns, all of them survive a crash of the process or of the machine.

        Args:
            hashes: M content hashes of 32 bytes.
            vectors: (M, w) float32, finite.

        Returns:
            (M,) int64 rows of the hashes.

        Raises:
            InvalidEmbeddingError: nothing was stored.
            EmbeddingQuotaExceeded: there is no room for them; nothing was stored.
            EmbeddingStorageError: the files could not be written; the space is as before and takes further appends.
        """
        checked = self._validated(hashes, vectors)
        self._check()
        with self._writing:
            fresh: dict[bytes, int] = {}
            for index, content in enumerate(hashes):
                if content in self._damaged_of:
                    self._repair(self._damaged_of[content], content, checked[index])
                elif content not in self._row_of:
                    fresh.setdefault(content, index)
            if fresh:
                contents = list(fresh)
                # Usually all are, and need no copy.
                chosen = checked if len(fresh) == len(hashes) else checked[list(fresh.values())]
                with self._room_for(len(contents)):
                    self._write(contents, chosen)
                first = self._count
                # Readers test rows against the count, so it moves before any of the rows can be looked up.
                self._count = first + len(contents)
                self._row_of.update(zip(contents, range(first, self._count), strict=True))
        return self.rows(hashes)

    def hold(self, count: int) -> None:
        """Rows below ``count`` are referred to: they keep their place, be it damaged. To be told before any append.

        Raises:
            EmbeddingStorageError: the files cannot be read, or not be made as long as they were.
        """
        with self._writing:
            try:
                self._lengthen(count)
            except OSError as error:
                raise EmbeddingStorageError(f"cannot read embeddings in {self._directory}: {error}") from error
        self._check()

    def damaged(self, rows: np.ndarray) -> np.ndarray:
        """(M,) bool: which of (M,) rows are damaged."""
        if not self._damaged:
            return np.zeros(len(rows), dtype=bool)
        return np.isin(rows, list(self._damaged))

    def repair(self, rows: Sequence[int], hashes: Sequence[bytes], vectors: np.ndarray) -> None:
        """Write damaged rows again, with the content that they had; durable when it returns.

        Raises:
            InvalidEmbeddingError, EmbeddingStorageError: as ``append``.
        """
        checked = self._validated(hashes, vectors)
        with self._writing:
            for row, content, vector in zip(rows, hashes, checked, strict=True):
                self._repair(row, content, vector)

    def verify(self) -> np.ndarray:
        """Rows whose bytes no longer match their checksum, (K,) int64; reads every byte of the space.

        Raises:
            EmbeddingStorageError: the files cannot be read.
        """
        count = self._count
        try:
            wrong = [
                self._mismatches(start, min(start + BLOCK_ROWS, count)) + start for start in range(0, count, BLOCK_ROWS)
            ]
        except OSError as error:
            raise EmbeddingStorageError(f"cannot read embeddings in {self._directory}: {error}") from error
        return np.concatenate(wrong) if wrong else np.empty(0, dtype=np.int64)

    def _validated(self, hashes: Sequence[bytes], vectors: np.ndarray) -> np.ndarray:
        if vectors.ndim != 2 or vectors.shape != (len(hashes), self.width):
            raise InvalidEmbeddingError(
                f"expected embeddings of shape ({len(hashes)}, {self.width}), got {tuple(vectors.shape)}"
            )
        if vectors.dtype != np.float32:
            raise InvalidEmbeddingError(f"expected float32 embeddings, got {vectors.dtype}")
        for index, content in enumerate(hashes):
            if len(content) != HASH_BYTES:
                raise InvalidEmbeddingError(f"hash {index}: expected {HASH_BYTES} bytes, got {len(content)}")
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise InvalidEmbeddingError(f"embedding {int(np.argmin(finite))} holds NaN or infinite numbers")
        return np.ascontiguousarray(vectors, dtype="<f4")

    def _mapped(self, count: int) -> np.ndarray:
        """Memory-mapped (≥ count, w) view. Older views stay valid, so growth copies nothing and stops no reader."""
        view = self._map
        if len(view) < count:
            # Read once: it may grow meanwhile, and the map must not reach beyond what is durable.
            available = self._count
            try:
                with open(self._vectors_path, "rb") as file:
                    size = available * self._row_bytes
                    if os.fstat(file.fileno()).st_size < size:
                        raise EmbeddingStorageError(f"{self._vectors_path} became shorter than {available} rows")
                    mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except OSError as error:
                raise EmbeddingStorageError(f"cannot map {self._vectors_path}: {error}") from error
            view = np.frombuffer(mapping, dtype="<f4").reshape(available, self.width)
            self._map = view
        return view

    def _write(self, contents: list[bytes], vectors: np.ndarray) -> None:
        """Adds rows after the published ones; on failure cuts the files back to the published count."""
        vectors_fd = keys_fd = -1
        try:
            vectors_fd = os.open(self._vectors_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            keys_fd = os.open(self._keys_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if self._count == 0:
                # The first append makes the files; their directory entries have to survive too.
                _sync_directory(self._directory)
            self._cut(vectors_fd, keys_fd)
            for start in range(0, len(contents), BLOCK_ROWS):
                block = vectors[start : start + BLOCK_ROWS]
                entries = b"".join(
                    content + _checksum(content, row.tobytes())
                    for content, row in zip(contents[start : start + BLOCK_ROWS], block, strict=True)
                )
                at = self._count + start
                _write_all(vectors_fd, block.tobytes(), at * self._row_bytes)
                os.fdatasync(vectors_fd)
                _write_all(keys_fd, entries, at * ENTRY_BYTES)
                os.fdatasync(keys_fd)
        except OSError as error:
            if vectors_fd >= 0 and keys_fd >= 0:
                self._give_back_space(vectors_fd, keys_fd)
            raise EmbeddingStorageError(f"cannot write embeddings in {self._directory}: {error}") from error
        finally:
            for descriptor in (vectors_fd, keys_fd):
                if descriptor >= 0:
                    os.close(descriptor)

    def _lengthen(self, count: int) -> None:
        """Take in rows that were ignored at open, or are not there at all."""
        if count <= self._count:
            return
        for path, size in ((self._vectors_path, self._row_bytes), (self._keys_path, ENTRY_BYTES)):
            if size_of(path) < count * size:
                path.touch()
                os.truncate(path, count * size)
        entries = _read_range(self._keys_path, self._count * ENTRY_BYTES, (count - self._count) * ENTRY_BYTES)
        for index, row in enumerate(range(self._count, count)):
            self._row_of.setdefault(entries[index * ENTRY_BYTES : index * ENTRY_BYTES + HASH_BYTES], row)
        self._count = count
        self._checked = False

    def _check(self) -> None:
        """Find the rows that are damaged; once."""
        if self._checked:
            return
        with self._writing:
            wrong = set(self.verify().tolist())
            if wrong:
                for content, row in [item for item in self._row_of.items() if item[1] in wrong]:
                    self._damaged_of[content] = row
                    del self._row_of[content]
            self._damaged = wrong
            self._checked = True
        if wrong:
            _log.error("%d embedding(s) in %s are damaged or missing", len(wrong), self._directory)

    def _repair(self, row: int, content: bytes, vector: np.ndarray) -> None:
        data = vector.tobytes()
        try:
            for path, part, at in (
                (self._vectors_path, data, row * self._row_bytes),
                (self._keys_path, content + _checksum(content, data), row * ENTRY_BYTES),
            ):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    _write_all(descriptor, part, at)
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise EmbeddingStorageError(f"cannot write embeddings in {self._directory}: {error}") from error
        self._damaged.discard(row)
        self._damaged_of = {known: at for known, at in self._damaged_of.items() if at != row}
        self._row_of[content] = row

    def _cut(self, vectors_fd: int, keys_fd: int) -> None:
        """Cuts off what lies beyond the published rows: torn tails and failed appends."""
        vectors_end, keys_end = self._count * self._row_bytes, self._count * ENTRY_BYTES
        if os.fstat(vectors_fd).st_size < vectors_end or os.fstat(keys_fd).st_size < keys_end:
            raise OSError(f"files are shorter than the {self._count} rows known to be in them")
        if os.fstat(keys_fd).st_size > keys_end:
            # Durable first: an old key must not meet a new vector after a crash.
            os.ftruncate(keys_fd, keys_end)
            os.fdatasync(keys_fd)
        if os.fstat(vectors_fd).st_size > vectors_end:
            os.ftruncate(vectors_fd, vectors_end)

    def _room_for(self, rows: int) -> AbstractContextManager[None]:
        return nullcontext() if self._room is None else self._room.taken(rows * (self._row_bytes + ENTRY_BYTES))

    def _give_back_space(self, vectors_fd: int, keys_fd: int) -> None:
        try:
            self._cut(vectors_fd, keys_fd)
        except OSError as error:
            # Harmless: the next append cuts again, and an open ignores what has no valid key.
            _log.warning("could not cut back a failed append in %s: %s", self._directory, error)

    def _recover(self) -> None:
        count = min(size_of(self._keys_path) // ENTRY_BYTES, size_of(self._vectors_path) // self._row_bytes)
        start = max(0, count - BLOCK_ROWS)
        wrong = self._mismatches(start, count)
        if wrong.size:
            sound = start + int(wrong[0])
            _log.warning("embeddings in %s: dropped %d rows with a torn tail", self._directory, count - sound)
            count = sound
        if count:
            entries = np.frombuffer(_read_range(self._keys_path, 0, count * ENTRY_BYTES), dtype=_ENTRY)
            self._row_of = dict(zip(entries["content"].tolist(), range(count), strict=True))
        self._count = count

    def _mismatches(self, start: int, stop: int) -> np.ndarray:
        """Offsets from ``start`` of the rows in [start, stop) whose checksum is wrong, (K,) int64, ascending."""
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        rows = _read_range(self._vectors_path, start * self._row_bytes, (stop - start) * self._row_bytes)
        entries = _read_range(self._keys_path, start * ENTRY_BYTES, (stop - start) * ENTRY_BYTES)
        stored = np.frombuffer(entries, dtype=_ENTRY)
        # A view: to cut the rows out of the bytes would copy them.
        view, size = memoryview(rows), self._row_bytes
        computed = [
            zlib.crc32(view[at : at + size], zlib.crc32(content))
            for at, content in zip(range(0, len(rows), size), stored["content"].tolist(), strict=True)
        ]
        return np.flatnonzero(stored["checksum"] != np.array(computed, dtype=np.uint32))


class EmbeddingStore:
    """All spaces under one directory. Threads may share it."""

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        """``max_bytes``: what all spaces may take together; None = anything."""
        self._root = root
        self._room = None
        if max_bytes is not None:
            there = [path for pattern in ("*/vectors.f32", "*/keys.bin") for path in root.glob(pattern)]
            self._room = Room(max_bytes, sum(map(size_of, there)))
        self._opening = threading.Lock()
        self._spaces: dict[str, EmbeddingSpace] = {}

    def space(self, key: str, width: int) -> EmbeddingSpace:
        """The space of ``key``, made if there is none; the same object every time.

        Raises:
            SpaceMismatchError: the key's space has another width or an unknown format.
            EmbeddingStorageError: its files cannot be made or read.
        """
        if not 1 <= width <= MAX_WIDTH:
            raise InvalidEmbeddingError(f"width must lie in [1, {MAX_WIDTH}], got {width}")
        with self._opening:
            space = self._spaces.get(key)
            if space is None:
                directory = self._root / directory_name(key)
                self._describe(directory, key, width)
                space = self._spaces[key] = EmbeddingSpace(directory, key, width, self._room)
            elif space.width != width:
                raise SpaceMismatchError(_width_message(key, space.width, width))
            return space

    def damaged(self, key: str, rows: np.ndarray) -> np.ndarray:
        """(M,) bool: which of (M,) rows of the key's space, -1 = none, are damaged."""
        space = self._spaces.get(key)
        return np.zeros(len(rows), dtype=bool) if space is None else space.damaged(rows)

    def spaces(self) -> list[EmbeddingSpace]:
        """Opens every space under the root, by key.

        Raises:
            SpaceMismatchError, EmbeddingStorageError: as ``space``.
        """
        found = [read_description(path) for path in self._root.glob(f"*/{DESCRIPTION}")]
        return [self.space(key, width) for key, width in sorted(found)]

    def _describe(self, directory: Path, key: str, width: int) -> None:
        """Checks the description of an existing space or writes that of a new one, durably."""
        path = directory / DESCRIPTION
        try:
            if not path.exists():
                grown = [directory, self._root] if self._root.exists() else [directory, self._root, self._root.parent]
                directory.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"format": FORMAT, "key": key, "width": width}, indent=1) + "\n"
                partial = path.with_suffix(".partial")
                with open(partial, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, path)
                for changed in grown:
                    _sync_directory(changed)
                return
        except OSError as error:
            raise EmbeddingStorageError(f"cannot make an embedding space in {directory}: {error}") from error
        found_key, found_width = read_description(path)
        if found_key != key:
            raise SpaceMismatchError(f"{directory} holds the embeddings of {found_key!r}, expected {key!r}")
        if found_width != width:
            raise SpaceMismatchError(_width_message(key, found_width, width))


def directory_name(key: str) -> str:
    """Name of the directory of a key's space."""
    return hashlib.sha256(key.encode("utf-8")).hexdigest()[:32]


@dataclass(frozen=True)
class _Description:
    """What ``space.json`` holds."""

    format: int
    key: str
    width: int


def read_description(path: Path) -> tuple[str, int]:
    """Key and width of the space that a ``space.json`` describes; raises as ``EmbeddingStore.space``."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise EmbeddingStorageError(f"cannot read {path}: {error}") from error
    try:
        description = record(_Description, loads(text))
        name = directory_name(description.key)
    except ValueError as error:
        raise SpaceMismatchError(f"{path} does not describe an embedding space: {error}") from error
    if description.format != FORMAT:
        raise SpaceMismatchError(f"{path} has format {description.format}, this version reads format {FORMAT}")
    if path.parent.name != name:
        raise SpaceMismatchError(f"{path} describes {description.key!r}, whose directory would be {name}")
    return description.key, description.width


def _width_message(key: str, found: int, asked: int) -> str:
    return f"the embeddings of {key!r} have width {found}, not {asked}"


def _checksum(content: bytes, row: bytes) -> bytes:
    return zlib.crc32(row, zlib.crc32(content)).to_bytes(4, "little")


def matches(entry: bytes, row: bytes) -> bool:
    """Whether the checksum of an entry of ``keys.bin`` is that of its row."""
    return entry[HASH_BYTES:] == _checksum(entry[:HASH_BYTES], row)


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_range(path: Path, offset: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise OSError(f"{path} ends before byte {offset + size}")
    return data


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        # A nearly full disk takes a part first and fails on the rest.
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
