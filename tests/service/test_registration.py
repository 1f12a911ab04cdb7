"""Registering prompts again: after a restart, with another encoder, after retirement, with signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clients import FailedPrecondition, InvalidArgument, ResourceExhausted, SelectorClient
from tests.difficulty.adapters import random_adapter
from tests.service.running import InProcessService

IDS = [f"p{i}" for i in range(60)]


def difficulties(client: SelectorClient) -> np.ndarray:
    return client.predict_difficulty().predicted_difficulties


def test_replaced_domains_predict_the_same_after_a_restart_and_in_a_fork(own_service: InProcessService) -> None:
    """Forty domains, more than the model has columns for, two of them swapped."""
    client = own_service.client("run")
    client.create_run()
    domains = [f"d{i % 40}" for i in range(60)]
    client.register_prompts(IDS, embeddings=np.ones((60, 2)), domains=domains)
    domains[0], domains[39] = domains[39], domains[0]
    client.register_prompts(IDS, embeddings=np.ones((60, 2)), domains=domains, replace=True)
    client.report_outcomes(0, {p: [float(i % 40 > 30)] * 4 for i, p in enumerate(IDS)})
    before = difficulties(client)
    client.fork("fork", 5)
    own_service.restart()
    assert difficulties(own_service.client("run")).tolist() == before.tolist()
    assert difficulties(own_service.client("fork")).tolist() == before.tolist()


def test_prompts_with_an_embedding_need_no_encoder_again(
    tmp_path: Path, own_service: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer registers its prompts at every start; the service may run without an encoder by then."""

    class Encoder:
        name, key, width = "counting", "counting", 3
        calls = 0

        def encode(self, texts: list[str], progress: object = None, cancelled: object = None) -> np.ndarray:
            Encoder.calls += 1
            return np.ones((len(texts), 3), dtype=np.float32)

    client = own_service.client("run")
    client.create_run()
    client.register_prompts(["a", "b"], texts=["text a", "text b"])
    assert client.get_run().embedding_width == 0
    with monkeypatch.context() as patched:
        patched.setattr("selector.service.server.load_encoder", lambda *_, **__: Encoder())
        own_service.restart()
    client = own_service.client("run")
    again = client.register_prompts(["a", "b", "empty"], texts=["text a", "text b", ""])
    assert (again.added, again.unchanged) == (1, 2)
    assert client.get_run().embedding_width == 3
    assert Encoder.calls == 1
    embedded = [int(row) for row in own_service.server._runs.get("run").pool.embedding_row]
    assert min(embedded[:2]) >= 0 > embedded[2]

    own_service.restart()
    client = own_service.client("run")
    assert client.register_prompts(["a", "b"], texts=["text a", "text b"]).unchanged == 2
    with pytest.raises(FailedPrecondition):
        client.register_prompts(["c"], texts=["text c"])


def test_attention_wants_a_text_or_an_embedding(service: InProcessService) -> None:
    client = service.client("attention")
    client.create_run({"estimator": {"name": "ATTENTION"}})
    with pytest.raises(InvalidArgument, match=r"prompts\[0\].text"):
        client.register_prompts(["a"], texts=[""])


def test_a_retired_prompt_comes_back_with_replace(own_service: InProcessService) -> None:
    client = own_service.client("run")
    client.create_run()
    client.register_prompts(["a", "b"], embeddings=np.eye(2))
    client.report_outcomes(0, {"a": [1.0, 1.0, 1.0]})
    known = difficulties(client)[0]
    client.retire_prompts(["a"])
    assert client.register_prompts(["a"], embeddings=np.eye(2)[:1]).unchanged == 1
    assert client.get_run().pool.retired == 1
    assert client.register_prompts(["a"], embeddings=np.eye(2)[:1], replace=True).replaced == 1
    assert client.get_run().pool.active == 2
    assert difficulties(client)[0] == known, "what is known about it still holds"
    own_service.restart()
    assert own_service.client("run").get_run().pool.active == 2


def test_signals_are_bounded_and_those_of_replaced_prompts_are_gone(own_service: InProcessService) -> None:
    client = own_service.client("run")
    client.create_run()
    client.register_prompts(["a", "b"], embeddings=np.eye(2))
    client.report_training(3, effective_sample_size=0.5, signals={"perplexity": {"a": 1.0, "b": 2.0}})
    client.report_training(4, signals={"perplexity": {"b": 3.0}})
    client.report_training(2, effective_sample_size=0.9)
    assert client.quality().effective_sample_size == 0.5, "a report without it, and a late one, change nothing"
    client.register_prompts(["a"], embeddings=np.ones((1, 2)), replace=True)
    for _ in range(2):
        signals = own_service.server._runs.get("run").state.signals["perplexity"]
        assert np.isnan(signals[0])
        assert signals[1] == 3.0
        own_service.restart()
    client = own_service.client("run")
    client.report_training(5, signals={f"s{i}": {"a": 1.0} for i in range(31)})
    with pytest.raises(ResourceExhausted, match="at most 32"):
        client.report_training(6, signals={"one.more": {"a": 1.0}})


def test_a_fork_repeats_the_selections_it_inherited(service: InProcessService) -> None:
    client = service.client("source")
    client.create_run()
    client.register_prompts(IDS, embeddings=np.ones((60, 2)))
    selected = [client.select_batch(step, 4).prompt_ids for step in range(3)]
    client.fork("source-fork", 2)
    fork = service.client("source-fork")
    assert [fork.select_batch(step, 4).prompt_ids for step in range(2)] == selected[:2]


def test_what_is_on_lease_is_named_as_the_reason(service: InProcessService) -> None:
    client = service.client("reason")
    client.create_run({"cool_down_steps": 3})
    client.register_prompts(IDS[:10], embeddings=np.ones((10, 2)))
    client.select_batch(0, 4)
    second = client.select_batch(1, 10)
    assert (len(second), second.shortfall, second.shortfall_reason) == (6, 4, "LEASED")


class TestAdapters:
    """A trained adapter belongs to embeddings of one width, and a run needs the one it was created with."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Path:
        path = tmp_path / "adapter.safetensors"
        random_adapter(0, width=6, hidden=8).save(path)
        return path

    def test_a_run_outlives_its_adapter(self, tmp_path: Path, adapter: Path) -> None:
        service = InProcessService(tmp_path / "state", adapters={"mine": adapter})
        try:
            client = service.client("run")
            client.create_run({"estimator": {"name": "ATTENTION", "adapter": "mine"}})
            with pytest.raises(InvalidArgument, match="expected width 6"):
                client.register_prompts(IDS, embeddings=np.ones((60, 4)))
            client.register_prompts(IDS, embeddings=np.random.default_rng(0).normal(size=(60, 6)))
            first = client.select_batch(0, 4)
            service.restart(adapters={})
            client = service.client("run")
            assert client.select_batch(0, 4).prompt_ids == first.prompt_ids
            client.report_outcomes(0, {p: [1.0] for p in first.prompt_ids})
            with pytest.raises(FailedPrecondition, match="'mine'"):
                client.select_batch(1, 4)
            service.restart(adapters={"mine": adapter})
            assert len(service.client("run").select_batch(1, 4)) == 4
        finally:
            service.close()


def test_an_embedding_beyond_float32_arithmetic_is_refused(service: InProcessService) -> None:
    client = service.client("huge")
    client.create_run()
    embeddings = np.ones((3, 4), dtype=np.float32)
    embeddings[1, 2] = 3e38
    with pytest.raises(InvalidArgument, match=r"prompts\[1\].embedding"):
        client.register_prompts(["a", "b", "c"], embeddings=embeddings)
    assert client.get_run().pool.registered == 0


def test_text_beside_embeddings_is_a_no_op_when_sent_again(service: InProcessService) -> None:
    """A prompt registered before the run had embeddings, on a service that cannot embed it."""
    client = service.client("beside")
    client.create_run()
    client.register_prompts(["text"], texts=["a text"])
    client.register_prompts(["ready"], texts=["x"], embeddings=np.ones((1, 4)))
    assert client.register_prompts(["text"], texts=["a text"]).unchanged == 1


def test_a_selection_before_registration_leaves_the_step_free(service: InProcessService) -> None:
    client = service.client("too-early")
    client.create_run()
    early = client.select_batch(0, 4)
    assert (len(early), early.shortfall, early.shortfall_reason) == (0, 4, "POOL_TOO_SMALL")
    assert client.get_run().last_step == -1
    client.register_prompts(IDS[:6], embeddings=np.ones((6, 2)))
    assert len(client.select_batch(0, 4)) == 4


def test_creating_a_run_says_what_to_mind(service: InProcessService) -> None:
    client = service.client("minded")
    sampling = {"temperature": 1.0, "log_prob_mode": "PROCESSED"}
    assert client.create_run({"sampling": sampling}).warnings == ()
    assert any("log-probs" in warning for warning in service.client("unstated").create_run().warnings)
    attention = {"estimator": {"name": "ATTENTION"}, "sampling": sampling}
    assert any("encoder" in warning for warning in service.client("blind").create_run(attention).warnings)
    client.register_prompts(IDS[:4], embeddings=np.ones((4, 2)))
    client.select_batch(7, 1)
    (warning,) = client.create_run({"sampling": sampling}).warnings
    assert "step 7" in warning
    client.rewind(0)
    assert client.create_run({"sampling": sampling}).warnings == ()
