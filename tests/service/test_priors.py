"""Priors of registered prompts: imported, registered anew, taken back, and recalibrated when they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import PromptRow, SelectorClient
from tests.service.running import InProcessService
from tests.service.trainer import Trainer, prediction_contents

IDS = [f"p{i:02d}" for i in range(40)]
TEXTS = [f"What is {i} plus {i}?" for i in range(len(IDS))]
RATES = np.linspace(0.05, 0.95, len(IDS))
PRIORS = {prompt_id: (float(rate), 16) for prompt_id, rate in zip(IDS, RATES, strict=True)}
CONFIG = {"seed": 3, "cool_down_steps": 1}


def begin(client: SelectorClient, **columns: Any) -> SelectorClient:
    """A run whose last 20 prompts are never tried."""
    client.create_run(CONFIG)
    client.register_prompts(IDS, TEXTS, **columns)
    for step in range(3):
        client.report_outcomes(step, {p: _outcomes(p, step) for p in IDS[:20]}, request_id=f"report-{step}")
    return client


def _outcomes(prompt_id: str, step: int, size: int = 8) -> list[float]:
    random = np.random.default_rng([int(prompt_id[1:]), step])
    return (random.random(size) < PRIORS[prompt_id][0]).astype(float).tolist()


def predictions(client: SelectorClient) -> object:
    return prediction_contents(client.predict_difficulty())


def exported(client: SelectorClient) -> dict[str, tuple[float, int] | None]:
    return {row.prompt_id: row.prior for row in client.export("prompts") if isinstance(row, PromptRow)}


def agreement(client: SelectorClient, prompt_ids: list[str]) -> float:
    """Correlation of what is predicted with the true rates."""
    predicted = 1.0 - client.predict_difficulty(prompt_ids).predicted_difficulties
    return float(np.corrcoef(predicted, [PRIORS[p][0] for p in prompt_ids])[0, 1])


def test_an_imported_prior_is_used_by_the_next_estimate_and_survives_a_restart(own_service: InProcessService) -> None:
    client = begin(own_service.client("run"))
    before = predictions(client)
    imported = client.import_priors({**PRIORS, "nobody": (0.5, 8)})
    assert (imported.imported, imported.unknown, imported.unknown_prompt_ids) == (len(IDS), 1, ("nobody",))
    after = predictions(client)
    assert after != before
    assert agreement(client, IDS[20:]) > 0.9
    assert client.predict_difficulty(IDS[20:]).bases == ("PRIOR",) * 20
    assert exported(client) == PRIORS
    own_service.restart()
    client = own_service.client("run")
    assert predictions(client) == after
    assert exported(client) == PRIORS


def test_a_rewind_to_before_the_import_brings_the_old_prior_back(own_service: InProcessService) -> None:
    client = begin(own_service.client("run"), priors=[(0.5, 4)] * 20 + [None] * 20)
    registered, before = exported(client), predictions(client)
    client.import_priors(PRIORS, step=3, request_id="import")
    after = predictions(client)
    client.rewind(4)
    assert predictions(client) == after, "a rewind to a later step leaves it"
    client.fork("with", 4)
    client.fork("without", 3)
    assert exported(own_service.client("with")) == PRIORS
    assert exported(own_service.client("without")) == registered
    client.rewind(3)
    assert (exported(client), predictions(client)) == (registered, before)
    own_service.restart()
    client = own_service.client("run")
    assert (exported(client), predictions(client)) == (registered, before)
    assert predictions(own_service.client("with")) == after
    assert predictions(own_service.client("without")) == before
    assert client.import_priors({"p00": None}, step=3, request_id="import").imported == 1, "its id is free again"
    assert exported(client)["p00"] is None


def test_an_import_of_no_step_stays(own_service: InProcessService) -> None:
    client = begin(own_service.client("run"))
    client.import_priors({"p00": (0.25, 8), "p01": (0.25, 8)})
    client.import_priors({"p01": (0.75, 8)}, step=2)
    client.rewind(0)
    client.fork("fork", 0)
    for _ in range(2):
        for run in ("run", "fork"):
            known = exported(own_service.client(run))
            assert (known["p00"], known["p01"], known["p02"]) == ((0.25, 8), (0.25, 8), None)
        own_service.restart()


def test_the_same_request_is_applied_once(own_service: InProcessService) -> None:
    client = begin(own_service.client("run"))
    first = client.import_priors({"p00": (0.25, 8), "x": (0.5, 1)}, request_id="mine")
    client.import_priors({"p00": (0.75, 8)})
    own_service.restart()
    client = own_service.client("run")
    assert client.import_priors({"p00": (0.25, 8), "x": (0.5, 1)}, request_id="mine") == first
    assert exported(client)["p00"] == (0.75, 8)
    assert client.import_priors({"x": (0.5, 1)}).imported == 0
    assert client.import_priors({}).imported == 0


def _prior(columns: dict[str, Any]) -> None:
    columns["priors"] = [(0.9, 16)] * len(IDS)


def _domain(columns: dict[str, Any]) -> None:
    columns["domains"] = ["algebra"] * len(IDS)


def _length(columns: dict[str, Any]) -> None:
    columns["token_counts"] = [7] * len(IDS)


@pytest.mark.parametrize("embedded", [False, True], ids=["text", "embedding"])
@pytest.mark.parametrize("change", [_prior, _domain, _length])
def test_evidence_stays_when_the_question_does(
    own_service: InProcessService, change: Callable[[dict[str, Any]], None], embedded: bool
) -> None:
    columns: dict[str, Any] = {"priors": [(0.5, 4)] * len(IDS)}
    if embedded:
        columns["embeddings"] = np.random.default_rng(0).normal(size=(len(IDS), 3))
    client = begin(own_service.client("run"), **columns)
    rows = own_service.server._runs.get("run").pool.embedding_row.tolist()
    known = client.predict_difficulty()
    # As after a restart: what was registered is read back from the store.
    own_service.restart()
    client = own_service.client("run")
    change(columns)
    registered = client.register_prompts(IDS, TEXTS, **columns, replace=True)
    assert (registered.added, registered.unchanged, registered.replaced) == (0, 0, len(IDS))
    again = client.predict_difficulty()
    assert again.bases == known.bases
    assert again.own_weights.tolist() == known.own_weights.tolist()
    assert again.own_weights[:20].min() > 0
    assert client.get_run().pool.replaced == 0
    assert own_service.server._runs.get("run").pool.embedding_row.tolist() == rows
    own_service.restart()
    client = own_service.client("run")
    assert predictions(client) == prediction_contents(again)
    assert client.register_prompts(IDS, TEXTS, **columns).unchanged == len(IDS)


@pytest.mark.parametrize("embedded", [False, True], ids=["text", "embedding"])
def test_another_question_forgets_evidence_and_imported_prior(own_service: InProcessService, embedded: bool) -> None:
    columns: dict[str, Any] = {"embeddings": np.eye(len(IDS))} if embedded else {}
    client = begin(own_service.client("run"), **columns)
    client.import_priors(PRIORS)
    other: dict[str, Any] = {"embeddings": np.eye(len(IDS))[1:2]} if embedded else {}
    client.register_prompts(IDS[:1], TEXTS[:1] if embedded else ["What else?"], **other, replace=True)
    for _ in range(2):
        weights = client.predict_difficulty(IDS[:2]).own_weights
        assert weights[0] == 0.0 < weights[1]
        assert (exported(client)["p00"], exported(client)["p01"]) == (None, PRIORS["p01"])
        assert client.get_run().pool.replaced == 1
        own_service.restart()
        client = own_service.client("run")


def test_the_newest_prior_counts_however_it_came(own_service: InProcessService) -> None:
    registered = [(0.5, 4), (0.5, 4), (0.5, 4), *[None] * 37]
    client = begin(own_service.client("run"), priors=registered)
    client.import_priors({"p00": (0.1, 8), "p01": (0.2, 8), "p02": None, "p03": (0.4, 8)}, step=3)
    # What a trainer does at every start.
    assert client.register_prompts(IDS, TEXTS, priors=registered, replace=True).unchanged == len(IDS)
    known = exported(client)
    assert [known[p] for p in IDS[:5]] == [(0.1, 8), (0.2, 8), None, (0.4, 8), None]
    client.register_prompts(IDS[:2], TEXTS[:2], priors=[(0.9, 2), (0.5, 4)], domains=["", "algebra"], replace=True)
    for step in (9, 3):
        client.rewind(step)
        known = exported(client)
        imported = step > 3
        assert known["p00"] == (0.9, 2), "registered later than imported"
        assert known["p01"] == ((0.2, 8) if imported else (0.5, 4)), "only its domain was registered anew"
        assert known["p02"] == (None if imported else (0.5, 4))
        assert known["p03"] == ((0.4, 8) if imported else None)
        before = predictions(client)
        own_service.restart()
        client = own_service.client("run")
        assert (exported(client), predictions(client)) == (known, before)


def test_a_longer_prompt_becomes_ineligible_and_keeps_its_history(service: InProcessService) -> None:
    client = service.client("longer")
    client.create_run({**CONFIG, "max_prompt_tokens": 10})
    client.register_prompts(IDS[:2], TEXTS[:2], token_counts=[5, 5])
    client.report_outcomes(0, {"p00": [1.0, 0.0]})
    weight = client.predict_difficulty(["p00"]).own_weights[0]
    assert client.register_prompts(IDS[:1], TEXTS[:1], token_counts=[50], replace=True).ineligible == 1
    assert client.get_run().pool.ineligible == 1
    assert client.predict_difficulty(["p00"]).own_weights[0] == weight > 0


def _trained(client: SelectorClient, start: int, end: int) -> list[object]:
    """What a trainer that imports priors after each step is answered."""
    answers: list[object] = []
    for step in range(start, end):
        answers += [Trainer(client, 4, "").steps(step, step + 1), predictions(client)]
        client.import_priors({p: (1 - PRIORS[p][0], step) for p in IDS[step::3]}, step=step)
    return [*answers, predictions(client)]


def test_imports_are_in_snapshots(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", snapshot_groups=1)
    try:
        expected = _trained(begin(service.client("run")), 3, 6)
        service.restart()
        assert list(service.state_dir.glob("snapshots/*/*.snapshot"))
        assert predictions(service.client("run")) == expected[-1]
        service.client("run").rewind(4)
        before = predictions(service.client("run"))
        service.restart()
        assert predictions(service.client("run")) == before
    finally:
        service.close()


def _wrong(kind: str) -> dict[str, tuple[float, int]]:
    return {p: (1.0 - rate if kind == "opposite" else 0.5, trials) for p, (rate, trials) in PRIORS.items()}


@pytest.mark.parametrize("kind", ["opposite", "uninformative"])
def test_a_wrong_prior_is_recalibrated_away(own_service: InProcessService, kind: str) -> None:
    """Every second prompt is tried, the others are predicted: the run's own outcomes turn a wrong prior around."""
    client = own_service.client("run")
    client.create_run(CONFIG)
    client.register_prompts(IDS)
    client.import_priors(_wrong(kind))
    tried, untried = IDS[::2], IDS[1::2]
    if kind == "opposite":
        assert agreement(client, untried) < -0.9, "nothing else is known yet"
    for step in range(12):
        # An easy half of the task: the mean is far from one half.
        client.report_outcomes(step, {p: [max(o, float(p > "p09")) for o in _outcomes(p, step)] for p in tried})
    predicted = 1.0 - client.predict_difficulty(untried).predicted_difficulties
    truth = np.array([PRIORS[p][0] if p <= "p09" else 1.0 for p in untried])
    assert abs(predicted.mean() - truth.mean()) < 0.08
    if kind == "opposite":
        assert np.corrcoef(predicted, truth)[0, 1] > 0.7
        assert np.abs(predicted - truth).mean() < 0.15
    else:
        assert np.ptp(predicted) < 1e-6, "it tells no prompt from another"
    assert client.predict_difficulty(untried).bases == ("PRIOR",) * len(untried)
    own = 1.0 - client.predict_difficulty(tried).predicted_difficulties
    assert np.abs(own - [PRIORS[p][0] if p <= "p09" else 1.0 for p in tried]).mean() < 0.08


def test_runs_with_imports_go_on_as_their_twins(own_service: InProcessService) -> None:
    expected = _trained(begin(own_service.client("left")), 3, 9)
    right = begin(own_service.client("right"))
    _trained(right, 3, 7)
    right.rewind(5)
    own_service.restart()
    assert _trained(own_service.client("right"), 5, 9) == expected[4:]
