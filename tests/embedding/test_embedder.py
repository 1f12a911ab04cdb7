"""Texts are embedded once: not again after a restart, a duplicate, a cancelled or a failed registration."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from selector.embedding import (
    Embedder,
    EmbeddingCancelled,
    EmbeddingStore,
    Encoder,
    EncoderError,
    InvalidEmbeddingError,
    NoEncoderError,
)
from selector.embedding.encoder import Cancelled, Progress


class CountingEncoder:
    """Embeds a text as bytes of its digest and remembers what it was asked."""

    name = "counting"
    key = "counting v1"
    width = 8

    def __init__(self, fail_after: int | None = None) -> None:
        self.asked: list[str] = []
        self._fail_after = fail_after

    def expected(self, text: str) -> np.ndarray:
        digest = hashlib.sha256(text.encode()).digest()
        return np.frombuffer(digest[: self.width], dtype=np.uint8).astype(np.float32)

    def encode(
        self, texts: Sequence[str], progress: Progress | None = None, cancelled: Cancelled | None = None
    ) -> np.ndarray:
        if self._fail_after is not None and len(self.asked) + len(texts) > self._fail_after:
            raise EncoderError("the device is gone")
        if cancelled is not None and cancelled():
            raise EmbeddingCancelled("as asked")
        self.asked.extend(texts)
        return np.array([self.expected(text) for text in texts])


TEXTS = [f"prompt {index} " + "x" * (index * 7 % 50) for index in range(300)]


def assert_right(embedder: Embedder, encoder: CountingEncoder, texts: Sequence[str], rows: np.ndarray) -> None:
    assert embedder.space is not None
    expected = np.array([encoder.expected(text) for text in texts])
    assert embedder.space.gather(rows).tobytes() == expected.tobytes()


def test_a_restart_embeds_nothing_and_gives_the_same_rows(tmp_path: Path) -> None:
    first = CountingEncoder()
    rows = Embedder(first, EmbeddingStore(tmp_path)).embed(TEXTS)
    second = CountingEncoder()
    restarted = Embedder(second, EmbeddingStore(tmp_path))
    assert restarted.embed(TEXTS).tolist() == rows.tolist()
    assert sorted(first.asked) == sorted(TEXTS)
    assert second.asked == []
    assert_right(restarted, second, TEXTS, rows)
    assert (restarted.embedded, restarted.reused, restarted.seconds) == (0, 300, 0.0)


def test_equal_texts_share_a_row_and_only_new_ones_are_embedded(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    embedder = Embedder(encoder, EmbeddingStore(tmp_path))
    rows = embedder.embed(["b", "a", "b", "", "a"])
    assert rows[0] == rows[2] != rows[1] == rows[4]
    more = embedder.embed(["c", "a"])
    assert more[1] == rows[1]
    assert sorted(encoder.asked) == ["", "a", "b", "c"]
    assert (embedder.embedded, embedder.reused) == (4, 3)
    assert embedder.embed([]).shape == (0,)


def test_a_cancelled_registration_goes_on_where_it_stopped(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    embedder = Embedder(encoder, EmbeddingStore(tmp_path))
    seen: list[tuple[int, int]] = []
    with pytest.raises(EmbeddingCancelled):
        embedder.embed(TEXTS, progress=lambda done, total: seen.append((done, total)), cancelled=lambda: len(seen) > 1)
    stored = list(encoder.asked)
    assert 0 < len(stored) < len(TEXTS)
    assert seen[-1] == (len(stored), len(TEXTS))

    resumed = CountingEncoder()
    embedder = Embedder(resumed, EmbeddingStore(tmp_path))
    seen.clear()
    rows = embedder.embed(TEXTS, progress=lambda done, total: seen.append((done, total)))
    assert sorted(stored + resumed.asked) == sorted(TEXTS)
    assert seen[-1] == (len(resumed.asked), len(resumed.asked))
    assert_right(embedder, resumed, TEXTS, rows)


def test_a_failing_encoder_loses_no_finished_chunk(tmp_path: Path) -> None:
    failing = CountingEncoder(fail_after=200)
    with pytest.raises(EncoderError, match="device is gone"):
        Embedder(failing, EmbeddingStore(tmp_path)).embed(TEXTS)
    assert failing.asked
    healthy = CountingEncoder()
    Embedder(healthy, EmbeddingStore(tmp_path)).embed(TEXTS)
    assert sorted(failing.asked + healthy.asked) == sorted(TEXTS)


def test_texts_that_another_call_stored_meanwhile_are_not_embedded_again(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    embedder = Embedder(encoder, EmbeddingStore(tmp_path))
    inner: list[np.ndarray] = []

    def register_again(done: int, total: int) -> None:
        if not inner:
            inner.append(embedder.embed(TEXTS))

    rows = embedder.embed(TEXTS, progress=register_again)
    assert rows.tolist() == inner[0].tolist()
    assert sorted(encoder.asked) == sorted(TEXTS)
    assert (embedder.embedded, embedder.reused) == (300, 300)


def test_another_model_has_another_space(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    old, new = CountingEncoder(), CountingEncoder()
    new.key = "counting v2"
    Embedder(old, store).embed(["a", "b"])
    Embedder(new, store).embed(["a"])
    assert new.asked == ["a"]


def test_progress_is_logged_every_few_seconds_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ticks = iter(range(10_000))
    slow = Embedder(CountingEncoder(), EmbeddingStore(tmp_path / "slow"), clock=lambda: 3.0 * next(ticks))
    quick = Embedder(CountingEncoder(), EmbeddingStore(tmp_path / "quick"), clock=lambda: 1e-3 * next(ticks))
    with caplog.at_level(logging.INFO, logger="selector.embedding"):
        quick.embed(TEXTS)
        assert caplog.messages == []
        slow.embed(TEXTS)
    assert "embedded 64 of 300 texts" in caplog.messages[0]
    assert "embedded 300 of 300 texts" in caplog.messages[-1]
    assert slow.seconds == pytest.approx(3.0 * 5)


def test_ready_embeddings_are_kept_by_their_bytes(tmp_path: Path) -> None:
    given = np.array([[1, 2], [3, 4], [1, 2]], dtype=np.float32)
    embedder = Embedder(None, EmbeddingStore(tmp_path))
    rows = embedder.keep(given)
    assert rows.tolist() == [0, 1, 0]
    restarted = Embedder(None, EmbeddingStore(tmp_path))
    assert restarted.keep(given[::-1]).tolist() == rows[::-1].tolist()
    assert restarted.client_space(2).gather(rows).tobytes() == given.tobytes()
    assert restarted.keep(np.ones((1, 5), dtype=np.float32)).tolist() == [0]
    with pytest.raises(InvalidEmbeddingError, match="NaN"):
        restarted.keep(np.full((1, 2), np.nan, dtype=np.float32))
    with pytest.raises(InvalidEmbeddingError, match="shape"):
        restarted.keep(np.ones(2, dtype=np.float32))


def test_without_an_encoder_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoEncoderError):
        Embedder(None, EmbeddingStore(tmp_path)).embed(["a"])


def test_the_real_model_through_the_store(tmp_path: Path, minilm: Encoder) -> None:
    texts = ["How many apples are left?", "Integrate x squared.", "How many apples are left?"]
    rows = Embedder(minilm, EmbeddingStore(tmp_path)).embed(texts)

    def refuse() -> bool:
        pytest.fail("the encoder was asked again")

    again = Embedder(minilm, EmbeddingStore(tmp_path))
    assert again.embed(texts, cancelled=refuse).tolist() == rows.tolist() == [rows[0], rows[1], rows[0]]
    assert again.space is not None
    np.testing.assert_allclose(again.space.gather(rows), minilm.encode(texts), atol=1e-5)
