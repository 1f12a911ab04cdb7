"""The store of embeddings: what was acknowledged is there, byte for byte, whatever happens to process or disk."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from selector.embedding import (
    EmbeddingSpace,
    EmbeddingStorageError,
    EmbeddingStore,
    InvalidEmbeddingError,
    SpaceMismatchError,
)
from selector.embedding import store as store_module

WIDTH = 3


def content(index: int) -> bytes:
    return hashlib.sha256(str(index).encode()).digest()


def contents(indices: range) -> list[bytes]:
    return [content(index) for index in indices]


def vector(index: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(index).standard_normal(width).astype(np.float32)


def vectors(indices: range, width: int = WIDTH) -> np.ndarray:
    return np.array([vector(index, width) for index in indices], dtype=np.float32).reshape(len(indices), width)


def reopen(root: Path, width: int = WIDTH) -> EmbeddingSpace:
    return EmbeddingStore(root).space("texts", width)


def assert_holds(space: EmbeddingSpace, indices: range) -> None:
    rows = space.rows(contents(indices))
    assert (rows >= 0).all()
    assert space.gather(rows).tobytes() == vectors(indices, space.width).tobytes()


def files(root: Path) -> tuple[Path, Path]:
    (vectors_path,) = root.glob("*/vectors.f32")
    return vectors_path, vectors_path.with_name("keys.bin")


@pytest.fixture
def torn(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """Five rows, then three: the root, and the complete bytes of both files."""
    space = reopen(tmp_path)
    space.append(contents(range(5)), vectors(range(5)))
    space.append(contents(range(5, 8)), vectors(range(5, 8)))
    vectors_path, keys_path = files(tmp_path)
    return tmp_path, vectors_path.read_bytes(), keys_path.read_bytes()


def test_random_appends_and_restarts_agree_with_a_dictionary(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    known: dict[int, int] = {}
    space = reopen(tmp_path)
    for _ in range(60):
        chosen = [int(index) for index in rng.integers(0, 150, size=rng.integers(0, 9))]
        batch = np.array([vector(index) for index in chosen], dtype=np.float32).reshape(-1, WIDTH)
        rows = space.append([content(index) for index in chosen], batch)
        for index, row in zip(chosen, rows, strict=True):
            assert known.setdefault(index, int(row)) == row
        if rng.random() < 0.3:
            space = reopen(tmp_path)
        assert len(space) == len(known)
        expected = [known.get(index, -1) for index in range(150)]
        assert space.rows(contents(range(150))).tolist() == expected
    assert sorted(known.values()) == list(range(len(known)))
    stored = space.gather(np.array(list(known.values())))
    assert stored.tobytes() == np.array([vector(index) for index in known]).tobytes()


def test_a_hash_keeps_its_first_vector(tmp_path: Path) -> None:
    space = reopen(tmp_path)
    rows = space.append([content(1), content(1), content(2)], vectors(range(1, 4)))
    assert rows.tolist() == [0, 0, 1]
    space.append([content(1)], vectors(range(9, 10)))
    assert len(space) == 2
    assert space.gather(np.array([0]))[0].tobytes() == vector(1).tobytes()


@pytest.mark.parametrize("cut_file", ["vectors", "keys"])
def test_a_tail_cut_at_any_byte_loses_only_incomplete_rows(torn: tuple[Path, bytes, bytes], cut_file: str) -> None:
    root, vectors_bytes, keys_bytes = torn
    vectors_path, keys_path = files(root)
    size = len(vectors_bytes) // 8 if cut_file == "vectors" else len(keys_bytes) // 8
    for length in range(5 * size, 8 * size + 1):
        vectors_path.write_bytes(vectors_bytes[:length] if cut_file == "vectors" else vectors_bytes)
        keys_path.write_bytes(keys_bytes[:length] if cut_file == "keys" else keys_bytes)
        space = reopen(root)
        complete = length // size
        assert len(space) == complete
        assert_holds(space, range(complete))
        assert (space.rows(contents(range(complete, 8))) == -1).all()
        space.append(contents(range(20, 22)), vectors(range(20, 22)))
        again = reopen(root)
        assert len(again) == complete + 2
        assert_holds(again, range(complete))
        assert_holds(again, range(20, 22))


def test_both_files_cut_at_random_keep_earlier_rows(torn: tuple[Path, bytes, bytes]) -> None:
    root, vectors_bytes, keys_bytes = torn
    vectors_path, keys_path = files(root)
    rng = np.random.default_rng(3)
    for _ in range(200):
        vectors_end, keys_end = int(rng.integers(len(vectors_bytes) + 1)), int(rng.integers(len(keys_bytes) + 1))
        vectors_path.write_bytes(vectors_bytes[:vectors_end])
        keys_path.write_bytes(keys_bytes[:keys_end])
        space = reopen(root)
        assert len(space) == min(vectors_end // 12, keys_end // 36)
        assert_holds(space, range(len(space)))


def test_any_flipped_byte_of_the_tail_is_noticed(torn: tuple[Path, bytes, bytes]) -> None:
    root, *originals = torn
    for path, original in zip(files(root), originals, strict=True):
        size = len(original) // 8
        for position in range(6 * size, 8 * size):
            damaged = bytearray(original)
            damaged[position] ^= 0x40
            path.write_bytes(damaged)
            space = reopen(root)
            sound = position // size
            assert len(space) == sound
            assert_holds(space, range(sound))
        # The row dropped last must not come back behind the one that takes its predecessor's place.
        damaged = bytearray(original)
        damaged[6 * size] ^= 0x40
        path.write_bytes(damaged)
        reopen(root).append(contents(range(30, 31)), vectors(range(30, 31)))
        assert len(reopen(root)) == 7
        for restored, content_before in zip(files(root), originals, strict=True):
            restored.write_bytes(content_before)


def test_a_tail_of_zeros_after_a_power_loss_is_no_row(torn: tuple[Path, bytes, bytes]) -> None:
    root, vectors_bytes, keys_bytes = torn
    vectors_path, keys_path = files(root)
    vectors_path.write_bytes(vectors_bytes + bytes(24))
    keys_path.write_bytes(keys_bytes + bytes(72))
    space = reopen(root)
    assert len(space) == 8
    space.append([bytes(32)], np.zeros((1, WIDTH), dtype=np.float32))
    assert len(reopen(root)) == 9


def test_verify_finds_damage_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BLOCK_ROWS", 4)
    reopen(tmp_path).append(contents(range(19)), vectors(range(19)))
    vectors_path, keys_path = files(tmp_path)
    space = reopen(tmp_path)
    assert space.verify().size == 0
    for path, row in ((vectors_path, 2), (keys_path, 9)):
        damaged = bytearray(path.read_bytes())
        damaged[row * len(damaged) // 19] ^= 1
        path.write_bytes(damaged)
    damaged_space = reopen(tmp_path)
    assert len(damaged_space) == 19
    assert damaged_space.verify().tolist() == [2, 9]


def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    """The child announces each append once it is acknowledged; what it announced must be there."""
    program = """
import sys
from pathlib import Path
from test_embedding_store import reopen, contents, vectors
space = reopen(Path(sys.argv[1]), 64)
while True:
    first = len(space)
    indices = range(first, first + 1 + first % 7)
    space.append(contents(indices), vectors(indices, 64))
    print(indices.stop, flush=True)
"""
    rng = np.random.default_rng(11)
    acknowledged = 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            assert child.stdout is not None
            for _ in range(int(rng.integers(1, 12))):
                acknowledged = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().decode().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        space = reopen(tmp_path, 64)
        assert len(space) >= acknowledged
        assert_holds(space, range(len(space)))
        assert space.verify().size == 0


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of any file fail, after a part was written, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [7 * 12 + 5, 6 * 36 + 7, 9 * 36 - 1])
@pytest.mark.parametrize("block_rows", [2, 4096])
def test_a_full_disk_changes_nothing_and_the_space_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, block_rows: int
) -> None:
    monkeypatch.setattr(store_module, "BLOCK_ROWS", block_rows)
    space = reopen(tmp_path)
    space.append(contents(range(5)), vectors(range(5)))
    before = [path.read_bytes() for path in files(tmp_path)]
    with largest_file(limit), pytest.raises(EmbeddingStorageError, match="cannot write"):
        space.append(contents(range(3, 9)), vectors(range(3, 9)))
    assert [path.read_bytes() for path in files(tmp_path)] == before
    assert len(space) == 5
    assert (space.rows(contents(range(5, 9))) == -1).all()
    assert_holds(space, range(5))
    space.append(contents(range(3, 9)), vectors(range(3, 9)))
    for healed in (space, reopen(tmp_path)):
        assert len(healed) == 9
        assert_holds(healed, range(9))


@contextmanager
def without_write_permission(directory: Path) -> Iterator[None]:
    """Takes away the right to write, from root too."""
    paths = [directory, *directory.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)
    try:
        yield
    finally:
        if privileged:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_read_only_directory_is_read_and_refuses_appends() -> None:
    # Not tmp_path: its parents are closed to the unprivileged user that root has to become.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        space = reopen(root)
        space.append(contents(range(4)), vectors(range(4)))
        with without_write_permission(root):
            for opened in (space, reopen(root)):
                assert_holds(opened, range(4))
                with pytest.raises(EmbeddingStorageError):
                    opened.append(contents(range(4, 5)), vectors(range(4, 5)))
                assert len(opened) == 4
            with pytest.raises(EmbeddingStorageError):
                EmbeddingStore(root).space("another", WIDTH)
        space.append(contents(range(4, 5)), vectors(range(4, 5)))
        assert_holds(reopen(root), range(5))


def test_readers_see_whole_rows_while_the_writer_appends(tmp_path: Path) -> None:
    space = reopen(tmp_path, 32)
    expected, hashes = vectors(range(1200), 32), contents(range(1200))
    failures: list[str] = []
    done = threading.Event()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not done.is_set():
            wanted = rng.integers(0, min(len(space) + 20, 1200), size=20)
            found = space.rows([hashes[int(index)] for index in wanted])
            visible = found >= 0
            if not np.array_equal(found[visible], wanted[visible]):
                failures.append("a hash led to another row")
            try:
                gathered = space.gather(found[visible])
            except IndexError:
                failures.append("a row could be looked up before it could be gathered")
                return
            if gathered.tobytes() != expected[wanted[visible]].tobytes():
                failures.append("a row had other bytes")

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for reader in readers:
        reader.start()
    try:
        for first in range(0, 1200, 20):
            chunk = range(first, first + 20)
            space.append(contents(chunk), expected[first : first + 20])
    finally:
        done.set()
        sys.setswitchinterval(switch_interval)
        for reader in readers:
            reader.join()
    assert not failures
    assert_holds(space, range(1200))


def test_appends_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    space = reopen(tmp_path)

    def add(start: int) -> None:
        for first in range(start, start + 60, 6):
            space.append(contents(range(first, first + 6)), vectors(range(first, first + 6)))

    # Each hash is appended by two of the threads.
    writers = [threading.Thread(target=add, args=(start,)) for start in (0, 30, 60, 0)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for opened in (space, reopen(tmp_path)):
        assert len(opened) == 120
        assert_holds(opened, range(120))


@pytest.mark.parametrize(
    ("hashes", "given", "message"),
    [
        ([content(0)], np.zeros((1, WIDTH + 1), np.float32), r"shape \(1, 3\), got \(1, 4\)"),
        ([content(0)], np.zeros((2, WIDTH), np.float32), r"shape \(1, 3\), got \(2, 3\)"),
        ([content(0)], np.zeros(WIDTH, np.float32), "shape"),
        ([content(0)], np.zeros((1, WIDTH)), "float64"),
        ([content(0), b"short"], np.zeros((2, WIDTH), np.float32), "hash 1: expected 32 bytes, got 5"),
        ([content(0), content(1)], np.array([[0, 0, 0], [0, np.nan, 0]], np.float32), "embedding 1 holds NaN"),
        ([content(0), content(1)], np.array([[0, -np.inf, 0], [0, 0, 0]], np.float32), "embedding 0 holds NaN"),
    ],
)
def test_what_is_no_embedding_is_refused_whole(
    tmp_path: Path, hashes: list[bytes], given: np.ndarray, message: str
) -> None:
    space = reopen(tmp_path)
    with pytest.raises(InvalidEmbeddingError, match=message):
        space.append(hashes, given)
    assert len(space) == len(reopen(tmp_path)) == 0


def test_rows_that_were_never_acknowledged_cannot_be_gathered(tmp_path: Path) -> None:
    space = reopen(tmp_path)
    assert space.gather(np.empty(0, dtype=np.int64)).shape == (0, WIDTH)
    space.append(contents(range(2)), vectors(range(2)))
    for row in (-1, 2):
        with pytest.raises(IndexError):
            space.gather(np.array([0, row]))


def test_another_width_is_refused_open_or_not(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    store.space("texts", WIDTH)
    for opened in (store, EmbeddingStore(tmp_path)):
        with pytest.raises(SpaceMismatchError, match="width 3, not 4"):
            opened.space("texts", WIDTH + 1)
    with pytest.raises(InvalidEmbeddingError, match="width"):
        store.space("other", 0)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    reopen(tmp_path)
    (description,) = tmp_path.glob("*/space.json")
    description.write_text(description.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(SpaceMismatchError, match="format 2"):
        reopen(tmp_path)
    description.write_text("{}")
    with pytest.raises(SpaceMismatchError, match="does not describe"):
        reopen(tmp_path)


def test_keys_are_never_paths_and_spaces_are_apart(tmp_path: Path) -> None:
    root = tmp_path / "state" / "embeddings"
    store = EmbeddingStore(root)
    keys = ["../../outside", "/etc/x", "a\0b", "", "texts", "Texts", "ü" * 500]
    for number, key in enumerate(keys):
        store.space(key, WIDTH).append([content(0)], vectors(range(number, number + 1)))
    assert {path.name for path in tmp_path.iterdir()} == {"state"}
    assert len(list(root.iterdir())) == len(keys)
    found = {space.key: space for space in EmbeddingStore(root).spaces()}
    assert sorted(found) == sorted(keys)
    for number, key in enumerate(keys):
        assert found[key].gather(np.array([0]))[0].tobytes() == vector(number).tobytes()
