"""Near-duplicate prompts through the real service: one batch, one body of evidence, whatever happens to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from clients import Predictions, SelectorClient
from selector.config import config_from_json, config_to_json, resolve
from tests.service.running import InProcessService
from tests.service.trainer import contents, outcomes_of

PAIRS, SINGLES, WIDTH = 8, 8, 32
TWINS = {f"a{i}": f"b{i}" for i in range(PAIRS)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"))
    yield running
    running.close()


def _vectors(count: int) -> np.ndarray:
    """Random directions, which have nothing to do with each other in so many dimensions."""
    return np.random.default_rng(3).normal(size=(count, WIDTH)).astype(np.float32)


def _run(service: InProcessService, run_id: str, config: dict[str, Any]) -> SelectorClient:
    """A run of pairs, one question in other words, and of single prompts."""
    client = service.client(run_id)
    client.create_run(config)
    vectors = _vectors(PAIRS + SINGLES)
    ids = [*TWINS, *(f"s{i}" for i in range(SINGLES)), *TWINS.values()]
    texts = [f"What is the price of {i} apples?" for i in range(PAIRS + SINGLES)]
    texts += [f"Determine the price of {i} apples." for i in range(PAIRS)]
    client.register_prompts(ids, texts=texts, embeddings=np.concatenate([vectors, vectors[:PAIRS] * 2 + 0.01]))
    return client


def _predicted(client: SelectorClient, *ids: str) -> list[tuple[float, float]]:
    found: Predictions = client.predict_difficulty(list(ids))
    return list(zip(found.predicted_difficulties.tolist(), found.standard_errors.tolist(), strict=True))


def _step(client: SelectorClient, step: int) -> tuple[object, ...]:
    chosen = client.select_batch(step, 6, fresh_only=True)
    client.report_outcomes(step, outcomes_of(chosen.prompt_ids, step))
    return contents(chosen)


_CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"cool_down_steps": 1},
    "strict": {"cool_down_steps": 1, "strict_cool_down": True, "max_unselected_steps": 5},
    "tracker": {"estimator": {"name": "TRACKER"}, "score": "UNIFORM", "cool_down_steps": 0},
}
_OTHERS = ("strict", "tracker")


@pytest.mark.parametrize("name", ["default", *(pytest.param(name, marks=pytest.mark.slow) for name in _OTHERS)])
def test_twins_are_never_in_one_batch_and_both_get_their_turns(service: InProcessService, name: str) -> None:
    client = _run(service, f"batches-{name}", _CONFIGS[name])
    seen: set[str] = set()
    for step in range(50):
        questions: set[str] = set()
        for round_ in range(1 + (step % 10 == 0)):
            chosen = client.select_batch(step, 4, round=round_, fresh_only=True)
            further = [p.replace("b", "a") for p in chosen.prompt_ids]
            # A further round of a step is for other questions as well.
            assert len({*questions, *further}) == len(questions) + len(further)
            questions.update(further)
            seen.update(chosen.prompt_ids)
            client.report_outcomes(step, outcomes_of(chosen.prompt_ids, step))
    # Either of a pair gets its turn.
    assert sum(a in seen and b in seen for a, b in TWINS.items()) >= PAIRS // 2


@pytest.mark.slow
def test_twins_are_never_in_one_reference_pass_or_window(service: InProcessService) -> None:
    reference = {"size": 6, "every_steps": 3}
    client = _run(service, "windows", {"preset": "PAPER", "reference": reference, "twin_similarity": 0.9})
    for step in range(30):
        if step % 3 == 0:
            drawn = client.select_batch(step, purpose="reference")
            assert len({p.replace("b", "a") for p in drawn.prompt_ids}) == len(drawn.prompt_ids) == 6
            client.report_outcomes(step, outcomes_of(drawn.prompt_ids, step), purpose="reference")
            window: set[str] = set()
        chosen = client.select_batch(step, 4, fresh_only=True)
        window.update(p.replace("b", "a") for p in chosen.prompt_ids)
        # The window's batches hold different prompts, so their twins as well.
        assert len(window) == 4 * (step % 3 + 1)
        client.report_outcomes(step, outcomes_of(chosen.prompt_ids, step))


def test_a_pool_of_twins_is_as_large_as_its_questions(service: InProcessService) -> None:
    client = _run(service, "shortfall", {})
    chosen = client.select_batch(0, PAIRS + SINGLES + 3, fresh_only=True)
    assert (len(chosen.prompt_ids), chosen.shortfall, chosen.shortfall_reason) == (PAIRS + SINGLES, 3, "POOL_TOO_SMALL")
    paired = np.array([p[0] != "s" for p in chosen.prompt_ids])
    uniform = np.array(chosen.arms) == "UNIFORM"
    # Which of the two stands for a pair is part of the probability.
    np.testing.assert_allclose(chosen.probabilities[paired & ~uniform], 0.5)
    np.testing.assert_allclose(chosen.probabilities[~paired & ~uniform], 1.0)


def test_a_lease_holds_the_twin_and_explain_names_it(service: InProcessService) -> None:
    client = _run(service, "lease", {"cool_down_steps": 0})
    chosen = client.select_batch(0, PAIRS + SINGLES, fresh_only=True)
    out = next(p for p in chosen.prompt_ids if p[0] != "s")
    twin = TWINS.get(out) or next(a for a, b in TWINS.items() if b == out)
    explained = client.explain(twin)
    assert explained.twin_prompt_ids == (out,)
    assert explained.not_selected_because == f"its twin {out!r} was in the batch"
    client.report_outcomes(0, outcomes_of([p for p in chosen.prompt_ids if p != out], 0))
    following = client.select_batch(1, PAIRS + SINGLES, fresh_only=True)
    assert not {out, twin} & set(following.prompt_ids)
    assert (following.shortfall, following.shortfall_reason) == (1, "LEASED")
    expected = f"its twin {out!r} was selected at step 0 and has not been reported yet"
    assert client.explain(twin).not_selected_because == expected
    assert client.explain("s0").twin_prompt_ids == ()
    assert client.quality().twin_prompts == PAIRS


@pytest.mark.parametrize("estimator", ["FUSED", "TRACKER"])
def test_outcomes_of_one_twin_are_evidence_of_the_other(service: InProcessService, estimator: str) -> None:
    client = _run(service, f"evidence-{estimator}", {"estimator": {"name": estimator}})
    client.report_outcomes(0, {"a0": [1.0] * 4 + [0.0] * 4, "a1": [1.0, 0.0]})
    before = _predicted(client, "a0", "b0", "s0")
    client.report_outcomes(1, {"b0": [0.0] * 16})
    after = _predicted(client, "a0", "b0", "s0")
    assert before[0] == before[1] and after[0] == after[1]
    assert after[0][0] > before[0][0] + 0.1
    # Both bodies of evidence count, that of the other prompt included.
    assert after[0][0] < 0.99
    assert client.predict_difficulty(["b0"]).bases == ("OWN",)


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path / "state")
    yield running
    running.close()


def test_restart_rewind_and_fork_go_on_alike(own_service: InProcessService) -> None:
    client = _run(own_service, "twins", {"cool_down_steps": 1})
    for step in range(6):
        _step(client, step)
    client.fork("branch", 3)
    expected = [_step(client, step) for step in range(6, 12)]
    predicted = _predicted(client, *TWINS, *TWINS.values())
    own_service.restart()
    client = own_service.client("twins")
    assert _predicted(client, *TWINS, *TWINS.values()) == predicted
    assert client.explain("b3").twin_prompt_ids == ("a3",)
    client.rewind(6)
    assert [_step(client, step) for step in range(6, 12)] == expected
    branch = own_service.client("branch")
    assert [_step(branch, step) for step in range(3, 12)][3:] == expected


def test_a_replaced_prompt_leaves_its_twins_and_the_rest_stay(service: InProcessService) -> None:
    client = _run(service, "replaced", {"estimator": {"name": "TRACKER"}})
    vectors = _vectors(PAIRS + SINGLES)
    # A third of the first pair, found among prompts of an earlier call.
    client.register_prompts(["c0"], texts=["What is\nthe price of 0 apples?"], embeddings=vectors[:1] * 3)
    assert client.explain("c0").twin_prompt_ids == ("a0", "b0")
    client.report_outcomes(0, {"a0": [0.0] * 8, "b0": [0.0] * 2, "a1": [1.0] * 8})
    other = np.eye(1, WIDTH, dtype=np.float32)
    client.register_prompts(["a0"], texts=["Name 5 colours."], embeddings=other, replace=True)
    assert client.explain("a0").twin_prompt_ids == ()
    assert client.explain("c0").twin_prompt_ids == ("b0",)
    assert client.predict_difficulty(["a0", "b0", "c0"]).predicted_difficulties.tolist() == [0.5, 0.75, 0.75]
    # It can become a twin of others, and of its old ones again.
    client.register_prompts(["a0"], texts=["What is the price of 1 apples?"], embeddings=vectors[1:2], replace=True)
    assert client.explain("a0").twin_prompt_ids == ("a1", "b1")
    client.register_prompts(["a0"], texts=["What is the price of 0 apples?"], embeddings=vectors[:1], replace=True)
    assert client.explain("a0").twin_prompt_ids == ("b0", "c0")


def test_a_retired_twin_is_evidence_and_is_not_drawn(service: InProcessService) -> None:
    client = _run(service, "retired", {"cool_down_steps": 0})
    client.report_outcomes(0, {"a0": [0.0] * 8, "s0": [1.0] * 8})
    client.retire_prompts(list(TWINS))
    chosen = client.select_batch(1, PAIRS + SINGLES, fresh_only=True)
    assert set(chosen.prompt_ids) == {*TWINS.values(), *(f"s{i}" for i in range(SINGLES))}
    assert _predicted(client, "a0") == _predicted(client, "b0")
    # Brought back as it was, it is the twin that it was.
    client.register_prompts(["a0"], texts=["What is the price of 0 apples?"], embeddings=_vectors(1), replace=True)
    assert client.explain("a0").twin_prompt_ids == ("b0",)


def test_equal_texts_are_twins_without_any_embedding_and_none_are_where_that_is_off(service: InProcessService) -> None:
    ids, texts = ["x", "y", "z", "e", "f"], ["What is 2+3?", "What is\n2+3? ", "What is 2+4?", "", ""]
    paper = {"preset": "PAPER", "estimator": {"name": "FUSED"}}
    for run_id, config, twins in (("bare", {}, ("y",)), ("off", {"twin_similarity": 0}, ()), ("paper", paper, ())):
        client = service.client(f"equal-{run_id}")
        client.create_run(config)
        client.register_prompts(ids, texts=texts)
        assert client.explain("x").twin_prompt_ids == twins
        assert client.explain("z").twin_prompt_ids == client.explain("e").twin_prompt_ids == ()
    client = service.client("equal-embeddings")
    client.create_run({})
    client.register_prompts(ids, embeddings=np.ones((5, 2)))
    assert client.quality().twin_prompts == 0, "nothing says that they are one question"


def test_one_text_with_unlike_embeddings_is_two_questions(service: InProcessService) -> None:
    client = service.client("images")
    client.create_run({})
    client.register_prompts(["cat", "dog", "cat again"], texts=["Which animal?"] * 3, embeddings=np.eye(2)[[0, 1, 0]])
    assert client.explain("cat").twin_prompt_ids == ("cat again",)
    assert client.explain("dog").twin_prompt_ids == ()


def test_a_full_registration_and_many_small_ones_find_the_same(service: InProcessService) -> None:
    random = np.random.default_rng(0)
    kinds = random.normal(size=(12, WIDTH))
    of = random.integers(0, 12, 60)
    vectors = (kinds[of] + random.normal(size=(60, WIDTH)) * 0.02).astype(np.float32)
    texts = [f"{'What is' if i % 2 else 'Determine'} the colour of {kind % 3}." for i, kind in enumerate(of)]
    ids = [f"p{i}" for i in range(60)]
    found = []
    for size in (60, 7):
        client = service.client(f"chunks-{size}")
        client.create_run({})
        for start in range(0, 60, size):
            part = slice(start, start + size)
            client.register_prompts(ids[part], texts=texts[part], embeddings=vectors[part])
        found.append([client.explain(p).twin_prompt_ids for p in ids])
    assert found[0] == found[1]
    # Twelve kinds.
    assert client.quality().twin_prompts > 40


def test_a_run_that_is_older_than_twins_goes_on_without() -> None:
    older = json.loads(config_to_json(resolve({})))
    del older["twin_similarity"]
    assert config_from_json(json.dumps(older)).twin_similarity == 0.0


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this faiss is the one for GPUs")
def test_a_server_does_not_start_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"curriculum-selector\[gpu\]"):
        InProcessService(tmp_path / "state", neighbours_device="cuda")
