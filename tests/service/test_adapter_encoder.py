"""An adapter is used with the encoder it was trained on, and with no other."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from clients import FailedPrecondition, InvalidArgument
from selector.difficulty.adapter import Adapter
from tests.difficulty.adapters import random_adapter
from tests.service.running import InProcessService

IDS = [f"p{i}" for i in range(30)]
TEXTS = [f"text {i}" for i in range(30)]
ATTENTION = {"estimator": {"name": "ATTENTION", "adapter": "mine"}}
FUSED = {"estimator": {"name": "FUSED", "adapter": "mine"}}


class Encoder:
    name, key, width = "here", "here sha256:1", 6
    embedded = 0

    def encode(self, texts: list[str], progress: object = None, cancelled: object = None) -> np.ndarray:
        Encoder.embedded += len(texts)
        return np.random.default_rng(0).normal(size=(len(texts), self.width)).astype(np.float32)


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> type[Encoder]:
    monkeypatch.setattr("selector.service.server.load_encoder", lambda *_, **__: Encoder())
    Encoder.embedded = 0
    return Encoder


def adapter_for(path: Path, encoder: str, key: str, width: int = 6) -> Path:
    made = dataclasses.replace(random_adapter(0, width, 8), encoder=encoder, encoder_hash=key)
    made.save(path)
    assert Adapter.load(path).encoder_hash == key
    return path


@pytest.fixture
def right(tmp_path: Path) -> Path:
    return adapter_for(tmp_path / "right", "here", "here sha256:1")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    return adapter_for(tmp_path / "wrong", "elsewhere", "elsewhere sha256:2")


@pytest.mark.parametrize("config", [ATTENTION, FUSED], ids=["ATTENTION", "FUSED"])
def test_texts_are_refused_before_they_are_embedded_naming_both(
    tmp_path: Path, wrong: Path, config: dict[str, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        service = InProcessService(tmp_path / "state", encoder="here", adapters={"mine": wrong})
    try:
        assert "elsewhere" in caplog.text and "'here'" in caplog.text
        client = service.client("run")
        warnings = client.create_run(config).warnings
        assert any("'elsewhere'" in warning and "'here'" in warning for warning in warnings)
        with pytest.raises(FailedPrecondition, match=r"'mine'.*'elsewhere'.*'here'") as refused:
            client.register_prompts(IDS, texts=TEXTS)
        assert refused.value.reason == "ADAPTER_MISMATCH"
        assert Encoder.embedded == 0
        assert client.get_run().pool.registered == 0
        # Whoever sends embeddings answers for their encoder; only the width is checked.
        client.register_prompts(IDS, embeddings=np.random.default_rng(0).normal(size=(30, 6)))
        assert len(client.select_batch(0, 4)) == 4
        other = service.client("other")
        other.create_run(config)
        with pytest.raises(InvalidArgument, match="expected width 6"):
            other.register_prompts(IDS, embeddings=np.ones((30, 5)))
    finally:
        service.close()


def test_an_adapter_of_another_width_is_refused_before_embedding(tmp_path: Path) -> None:
    wide = adapter_for(tmp_path / "wide", "", "", width=9)
    service = InProcessService(tmp_path / "state", encoder="here", adapters={"mine": wide})
    try:
        client = service.client("run")
        client.create_run(ATTENTION)
        with pytest.raises(FailedPrecondition, match="width 9 of any encoder"):
            client.register_prompts(IDS, texts=TEXTS)
        assert Encoder.embedded == 0
    finally:
        service.close()


def test_the_right_encoder_is_taken_and_an_exchanged_adapter_is_noticed_after_a_restart(
    tmp_path: Path, right: Path, wrong: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = InProcessService(tmp_path / "state", encoder="here", adapters={"mine": right})
    try:
        client = service.client("run")
        assert not any("adapter" in warning for warning in client.create_run(FUSED).warnings)
        client.register_prompts(IDS, texts=TEXTS)
        client.report_outcomes(0, {p: [float(i % 3 == 0)] * 4 for i, p in enumerate(IDS[:20])})
        before = client.predict_difficulty().predicted_difficulties
        caplog.clear()
        service.restart(adapters={"mine": wrong})
        assert "run run cannot select: adapter 'mine'" in caplog.text
        client = service.client("run")
        with pytest.raises(FailedPrecondition, match=r"'mine'.*'elsewhere'.*here sha256:1") as refused:
            client.select_batch(1, 4)
        assert refused.value.reason == "ADAPTER_MISMATCH"
        service.restart(adapters={"mine": right})
        np.testing.assert_array_equal(service.client("run").predict_difficulty().predicted_difficulties, before)
    finally:
        service.close()
