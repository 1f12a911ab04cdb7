"""Reading the spaces of an embedding store that another process may be appending to: to copy, or to check them.

Rows that are complete when the reading begins are read, each checked against its checksum. Beyond the rows that are
referred to, which never change, a row may be torn or cut off meanwhile: a copy ends there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from selector.embedding.errors import EmbeddingStorageError
from selector.embedding.store import BLOCK_ROWS, DESCRIPTION, ENTRY_BYTES, matches, read_description, size_of


def space_directories(root: Path) -> dict[tuple[str, int], Path]:
    """(key, width) -> directory of every space below a root."""
    return {read_description(path): path.parent for path in sorted(root.glob(f"*/{DESCRIPTION}"))}


def space_bytes(directory: Path) -> int:
    """Bytes of a space as it is now."""
    return sum(size_of(directory / name) for name in ("keys.bin", "vectors.f32"))


def copy_space(source: Path, target: Path, width: int, referenced: int, advanced: Callable[[int], object]) -> int:
    """Copy a space into a new directory, flushed to the disk; the number of rows copied.

    Args:
        referenced: rows that must be there.
        advanced: called with the number of bytes copied since the last call.

    Raises:
        EmbeddingStorageError: one of them is missing or damaged, or a file cannot be read or written.
    """
    row_bytes = 4 * width
    try:
        available = min(size_of(source / "keys.bin") // ENTRY_BYTES, size_of(source / "vectors.f32") // row_bytes)
        target.mkdir(parents=True, mode=0o700)
        _write(target / DESCRIPTION, (source / DESCRIPTION).read_bytes())
        copied = 0
        if available:
            with (
                open(source / "keys.bin", "rb") as keys,
                open(source / "vectors.f32", "rb") as vectors,
                open(target / "keys.bin", "wb") as keys_out,
                open(target / "vectors.f32", "wb") as vectors_out,
            ):
                while copied < available:
                    count = min(BLOCK_ROWS, available - copied)
                    entries, rows = keys.read(count * ENTRY_BYTES), vectors.read(count * row_bytes)
                    sound = _sound(entries, rows, row_bytes)
                    keys_out.write(entries[: sound * ENTRY_BYTES])
                    vectors_out.write(rows[: sound * row_bytes])
                    copied += sound
                    advanced(sound * (ENTRY_BYTES + row_bytes))
                    if sound < count:
                        break
                for file in (keys_out, vectors_out):
                    file.flush()
                    os.fsync(file.fileno())
    except OSError as error:
        raise EmbeddingStorageError(f"embeddings in {source} cannot be copied to {target}: {error}") from error
    if copied < referenced:
        raise EmbeddingStorageError(
            f"embeddings in {source}: row {copied} is missing or damaged, and {referenced} rows are in use"
        )
    return copied


def check_space(directory: Path, width: int) -> tuple[int, list[int]]:
    """Complete rows of a space, and those of them whose checksum is wrong; reads every byte.

    Raises:
        EmbeddingStorageError: a file cannot be read.
    """
    row_bytes = 4 * width
    wrong: list[int] = []
    try:
        if not (directory / "keys.bin").exists() or not (directory / "vectors.f32").exists():
            return 0, []
        count = 0
        with open(directory / "keys.bin", "rb") as keys, open(directory / "vectors.f32", "rb") as vectors:
            while True:
                entries, rows = keys.read(BLOCK_ROWS * ENTRY_BYTES), vectors.read(BLOCK_ROWS * row_bytes)
                complete = min(len(entries) // ENTRY_BYTES, len(rows) // row_bytes)
                wrong += [count + index for index in range(complete) if not _is_sound(entries, rows, row_bytes, index)]
                count += complete
                if complete < BLOCK_ROWS:
                    return count, wrong
    except OSError as error:
        raise EmbeddingStorageError(f"embeddings in {directory} cannot be read: {error}") from error


def _sound(entries: bytes, rows: bytes, row_bytes: int) -> int:
    """How many rows from the first on match their checksums."""
    count = min(len(entries) // ENTRY_BYTES, len(rows) // row_bytes)
    return next((index for index in range(count) if not _is_sound(entries, rows, row_bytes, index)), count)


def _is_sound(entries: bytes, rows: bytes, row_bytes: int, index: int) -> bool:
    entry = entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES]
    return matches(entry, rows[index * row_bytes : (index + 1) * row_bytes])


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
