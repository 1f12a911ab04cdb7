"""Bits that rot in the embedding files: noticed at the start, mended where they can be, no harm to other runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clients import SelectorClient, SelectorError
from clients.retry import RetryPolicy
from tests.service.running import InProcessService
from tests.service.trainer import contents, outcomes_of, prediction_contents, prompts

WIDTH = 6


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    made = InProcessService(tmp_path / "state")
    yield made
    made.close()


def _vectors(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def _begin(client: SelectorClient, seed: int) -> SelectorClient:
    client.create_run({"seed": seed})
    client.register_prompts(prompts(8), embeddings=_vectors(seed, 8))
    chosen = client.select_batch(0, 4)
    client.report_outcomes(0, outcomes_of(chosen.prompt_ids, 0))
    return client


def _file(tmp_path: Path, name: str) -> Path:
    (path,) = (tmp_path / "state" / "embeddings").rglob(name)
    return path


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name, size", [("vectors.f32", 4 * WIDTH), ("keys.bin", 36)])
@pytest.mark.parametrize("row", [10, 15])
def test_a_damaged_embedding_stops_its_run_until_it_is_sent_again(
    service: InProcessService, tmp_path: Path, name: str, size: int, row: int
) -> None:
    """The last row as well: rows that prompts refer to must never be given to other content."""
    sound, damaged = _begin(service.client("sound"), 1), _begin(service.client("damaged"), 2)
    before = [prediction_contents(client.predict_difficulty()) for client in (sound, damaged)]
    service.restart(lambda: _flip(_file(tmp_path, name), row * size + 3))
    sound = service.client("sound")
    damaged = service.client("damaged", retry=RetryPolicy(max_attempts=1))
    assert prediction_contents(sound.predict_difficulty()) == before[0]
    sound.select_batch(1, 4)
    for call in (damaged.predict_difficulty, lambda: damaged.select_batch(1, 4)):
        with pytest.raises(SelectorError, match=f"embeddings of 1 prompt.*'p00{row - 8}'") as refused:
            call()
        assert refused.value.reason == "EMBEDDINGS_DAMAGED"
    assert damaged.get_run().outcome_groups == 4
    # Other content that is added meanwhile does not take the row's place.
    sound.register_prompts(prompts(3, "new"), embeddings=_vectors(3, 3))
    damaged.register_prompts(prompts(8), embeddings=_vectors(2, 8))
    assert prediction_contents(damaged.predict_difficulty()) == before[1]
    service.restart()
    assert prediction_contents(service.client("damaged").predict_difficulty()) == before[1]


def test_files_that_were_cut_off_do_not_change_places(service: InProcessService, tmp_path: Path) -> None:
    first, second = _begin(service.client("first"), 1), _begin(service.client("second"), 2)
    before = [prediction_contents(client.predict_difficulty()) for client in (first, second)]

    def cut() -> None:
        for name, size in (("vectors.f32", 4 * WIDTH), ("keys.bin", 36)):
            content = _file(tmp_path, name).read_bytes()
            _file(tmp_path, name).write_bytes(content[: 9 * size + 2])

    service.restart(cut)
    third = service.client("third")
    third.create_run()
    third.register_prompts(prompts(8, "new"), embeddings=_vectors(4, 8))
    second = service.client("second", retry=RetryPolicy(max_attempts=1))
    with pytest.raises(SelectorError, match="embeddings of 7 prompt"):
        second.predict_difficulty()
    assert prediction_contents(service.client("first").predict_difficulty()) == before[0]
    second.register_prompts(prompts(8), embeddings=_vectors(2, 8))
    assert prediction_contents(second.predict_difficulty()) == before[1]


@pytest.mark.slow
def test_texts_are_embedded_again_at_the_start(tmp_path: Path) -> None:
    texts = [f"What is {i} plus {i + 1}?" for i in range(6)]
    service = InProcessService(tmp_path / "state", encoder="default", encoder_threads=1)
    try:
        client = service.client("texts")
        client.create_run()
        client.register_prompts(prompts(6), texts)
        before = client.predict_difficulty()
        service.restart(lambda: _flip(_file(tmp_path, "vectors.f32"), 4 * 384 * 2 + 5), encoder="none")
        with pytest.raises(SelectorError, match=r"embeddings of 1 prompt.*'p002'"):
            service.client("texts", retry=RetryPolicy(max_attempts=1)).predict_difficulty()
        service.restart(encoder="default")
        after = service.client("texts").predict_difficulty()
        # Embedded in another company, a text may come out differently in its last bits.
        np.testing.assert_allclose(after.predicted_difficulties, before.predicted_difficulties, rtol=1e-5)
        assert contents(service.client("texts").select_batch(0, 3))[0]
    finally:
        service.close()
