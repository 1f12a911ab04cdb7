"""``selector train-adapter``: from a file to an adapter that the service attends with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from selector.difficulty import Adapter
from tests.adapter_training.conftest import SECRET, Train, write_rates
from tests.adapter_training.worlds import embeddings, pass_rates
from tests.service.running import InProcessService


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    return write_rates(tmp_path / "rates.parquet")


def test_the_file_serves_attention_and_beats_the_untrained_on_new_prompts(
    tmp_path: Path, rates: Path, train_adapter: Train
) -> None:
    adapter, figures = tmp_path / "adapter.safetensors", tmp_path / "figures.json"
    result = train_adapter("--data", rates, "--output", adapter, "--held-out-models", "d", "--json", figures)
    assert result.exit_code == 0, result.output
    assert "attention, trained" in result.output
    assert "warning" not in result.output

    # Prompts and a policy that are in no file.
    vectors = embeddings(5, 400)
    rate = pass_rates(5, vectors, 1)[:, 0]
    ids = [f"p{i}" for i in range(400)]
    correlations = {}
    service = InProcessService(tmp_path / "state", adapters={"mine": adapter})
    try:
        for name in ("mine", ""):
            client = service.client(f"run-{name}")
            client.create_run({"estimator": {"name": "ATTENTION", "adapter": name}, "reference": {"mode": "NONE"}})
            client.register_prompts(ids, embeddings=vectors)
            client.report_outcomes(
                0, {ids[i]: [1.0] * round(8 * rate[i]) + [0.0] * round(8 - 8 * rate[i]) for i in range(100)}
            )
            predicted = 1.0 - client.predict_difficulty().predicted_difficulties[100:]
            correlations[name] = np.corrcoef(predicted, rate[100:])[0, 1]
    finally:
        service.close()
    assert correlations["mine"] > correlations[""] + 0.2

    content = json.loads(figures.read_text(), parse_constant=pytest.fail)
    assert content["training"]["held_out_models"] == ["d"]
    assert content["training"]["models"] == ["a", "b", "c"]
    assert content["training"]["best"]["new_questions"]["pearson"] > content["untrained"]["new_questions"]["pearson"]
    assert len(content["epochs"]) >= 2


def test_the_file_tells_how_it_was_trained_but_no_text(tmp_path: Path, rates: Path, train_adapter: Train) -> None:
    path = tmp_path / "adapter.safetensors"
    assert train_adapter("--data", rates, "--output", path, "--epochs", 1, "--seed", 3).exit_code == 0
    with safe_open(str(path), framework="numpy") as file:
        metadata = file.metadata()
    facts = json.loads(metadata["training"])
    assert facts["data"] == [{"name": "rates.parquet", "questions": 640, "models": 3}]
    assert facts["options"]["seed"] == 3
    assert (metadata["encoder"], metadata["encoder_hash"], metadata["width"]) == ("", "", "32")
    assert SECRET.encode() not in path.read_bytes()
    assert Adapter.load(path).takes("sentence-transformers sha256:1"), "ready embeddings name no encoder"


def test_texts_are_embedded_and_the_encoder_is_named(
    tmp_path: Path, train_adapter: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Encoder:
        name, key, width = "made-up", "made-up sha256:1", 12

        def encode(self, texts: list[str], progress: object = None, cancelled: object = None) -> np.ndarray:
            return embeddings(0, 800)[[int(text.split()[1].strip(":")) for text in texts]]

    monkeypatch.setattr("selector.evaluation.embeddings.load_encoder", lambda *_: Encoder())
    data = write_rates(tmp_path / "rates.parquet", ready=False)
    path = tmp_path / "adapter.safetensors"
    result = train_adapter("--data", data, "--output", path)
    assert result.exit_code == 0, result.output
    adapter = Adapter.load(path)
    assert (adapter.encoder, adapter.encoder_hash) == ("made-up", "made-up sha256:1")
    assert adapter.takes("made-up sha256:1")
    assert not adapter.takes("made-up sha256:2")


def test_several_files_are_trained_on_together(tmp_path: Path, rates: Path, train_adapter: Train) -> None:
    second = write_rates(tmp_path / "second.parquet", size=300, models=["c", "e"])
    result = train_adapter(
        "--data", rates, "--data", second, "--output", tmp_path / "a", "--held-out-models", "c", "--epochs", 1
    )
    assert result.exit_code == 0, result.output
    assert "rates.parquet: 640 questions, 3 models; second.parquet: 240 questions, 1 models" in result.output


def test_an_adapter_that_carries_nothing_over_says_so(tmp_path: Path, train_adapter: Train) -> None:
    path = write_rates(tmp_path / "rates.parquet", size=200)
    result = train_adapter(
        "--data", path, "--output", tmp_path / "a", "--epochs", 1, "--patience", 1, "--learning-rate", 1e-6
    )
    assert result.exit_code == 0
    assert "better not used" in result.output


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--held-out-models", "nobody"], "no usable model 'nobody'", 1),
        (["--held-out-models", ","], "--held-out-models", 2),
        (["--held-out-models", "4"], "between 1 and 3", 1),
        (["--held-out-questions", "1"], "--held-out-questions", 2),
        (["--held-out-models", "9" * 5000], "too many digits", 2),
        (["--learning-rate", "nan"], "finite", 2),
        (["--learning-rate", "1e300"], "--learning-rate", 2),
        (["--seed", "9" * 25], "--seed", 2),
        (["--epochs", "9" * 400], "--epochs", 2),
        (["--threads", "9" * 25], "--threads", 2),
        (["--device", "tpu9"], "--device: tpu9 is no device of torch's", 2),
        (["--device", "meta"], "--device: meta cannot be used", 2),
        (["--embedding", "nothing"], "--embedding", 2),
        (["--output", "/nowhere/at/all"], "no directory", 2),
    ],
)
def test_options_that_cannot_be_used(
    tmp_path: Path, rates: Path, train_adapter: Train, arguments: list[str], says: str, code: int
) -> None:
    output = [] if "--output" in arguments else ["--output", str(tmp_path / "a")]
    result = train_adapter("--data", rates, *output, *arguments)
    assert result.exit_code == code
    assert says in result.output
    assert not (tmp_path / "a").exists()


def test_files_that_cannot_train(tmp_path: Path, rates: Path, train_adapter: Train) -> None:
    one_model = write_rates(tmp_path / "one.parquet", models=["a"])
    few = write_rates(tmp_path / "few.parquet", size=20)
    texts = write_rates(tmp_path / "texts.parquet", ready=False)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no parquet")
    output = ("--output", tmp_path / "a")
    for files, says in (
        ([one_model], "at least two models"),
        ([few], "at least 32 questions"),
        ([rates, texts], "expected all or none"),
        ([broken], "broken.parquet"),
    ):
        result = train_adapter(*(part for file in files for part in ("--data", file)), *output)
        assert result.exit_code == 1
        assert says in result.output
    result = train_adapter("--data", texts, *output, "--encoder", "none")
    assert result.exit_code == 1
    assert "without texts and an encoder" in result.output


def test_why_models_are_left_out_is_told(tmp_path: Path, train_adapter: Train) -> None:
    path = tmp_path / "rates.jsonl"
    rows = [{"n": 8, "embedding": [i, 1, i % 7], "a": i % 9 / 8, **({"b": 0.5} if i < 30 else {})} for i in range(64)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = train_adapter("--data", path, "--output", tmp_path / "a")
    assert result.exit_code == 1
    assert "expected pass rates of at least two models" in result.output
    assert "models with pass rates of fewer than 32 questions were left out: b" in result.output


@pytest.mark.slow
def test_the_service_knows_the_encoder_again(tmp_path: Path, train_adapter: Train) -> None:
    """With the real encoder, whose identity is worked out by two processes of different kinds."""
    data = write_rates(tmp_path / "rates.parquet", size=64, ready=False)
    path = tmp_path / "adapter.safetensors"
    assert train_adapter("--data", data, "--output", path, "--epochs", 1).exit_code == 0
    assert Adapter.load(path).encoder_hash
    service = InProcessService(tmp_path / "state", encoder="default", adapters={"mine": path})
    try:
        for name in ("ATTENTION", "FUSED"):
            client = service.client(name)
            created = client.create_run({"estimator": {"name": name, "adapter": "mine"}})
            assert not any("adapter" in warning for warning in created.warnings)
            client.register_prompts([f"p{i}" for i in range(20)], texts=[f"{i} + {i} = ?" for i in range(20)])
            client.report_outcomes(0, {f"p{i}": [float(i % 2)] * 4 for i in range(10)})
            assert len(client.select_batch(1, 4)) == 4
    finally:
        service.close()
