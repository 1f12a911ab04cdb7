"""Batches that were chosen before they were asked for are those that would have been chosen then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import SelectorClient
from selector.ahead import Ahead
from tests.service.running import InProcessService

_PROMPTS, _BATCH = 200, 16
_IDS = [f"p{i}" for i in range(_PROMPTS)]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[InProcessService, InProcessService]]:
    """One that looks ahead, and one that never does."""
    ahead, plain = InProcessService(tmp_path / "ahead"), InProcessService(tmp_path / "plain")
    plain.server._lanes.aside = lambda lane, work: None  # type: ignore[method-assign]
    yield ahead, plain
    ahead.close()
    plain.close()


def made(service: InProcessService, **config: Any) -> SelectorClient:
    """A client of a run with prompts."""
    client = service.client("r", timeout_s=60.0)
    client.create_run({"group_size": 8, "seed": 3, "replay": {"fresh_fraction": 1.0}, **config})
    client.register_prompts(_IDS, [f"question {i} with {i % 7} words" for i in range(_PROMPTS)])
    return client


def report(client: SelectorClient, step: int, prompt_ids: tuple[str, ...], purpose: str = "train") -> None:
    """Outcomes that depend on the step and the prompt alone."""
    random = np.random.default_rng(step)
    rates = random.random(_PROMPTS)
    client.report_outcomes(
        step, {each: (random.random(8) < rates[_IDS.index(each)]).astype(float) for each in prompt_ids}, purpose
    )


def wait_for_it(service: InProcessService) -> None:
    """Until nothing is done aside."""
    deadline = time.monotonic() + 60
    while service.server._lanes._aside:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def trained(service: InProcessService, steps: int) -> tuple[SelectorClient, tuple[str, ...]]:
    """A client of a run after so many steps, and the last batch; the next one has been chosen, where that is done."""
    client = made(service)
    batch: tuple[str, ...] = ()
    for step in range(steps):
        batch = client.select_batch(step, _BATCH).prompt_ids
        report(client, step, batch)
    wait_for_it(service)
    return client, batch


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each selection since was held already."""
    seen: list[bool] = []
    take = Ahead.take

    def watched(self: Ahead, *arguments: Any) -> Any:
        event = take(self, *arguments)
        seen.append(event is not None)
        return event

    monkeypatch.setattr(Ahead, "take", watched)
    return seen


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"estimator": {"name": "TRACKER"}, "score_evaluation": "THOMPSON"},
        {"reference": {"mode": "DEDICATED", "size": 24, "every_steps": 3}, "estimator": {"name": "TRACKER"}},
        {"cool_down_steps": 3, "max_unselected_steps": 4},
    ],
)
def test_a_training_is_given_the_same_batches(
    services: tuple[InProcessService, InProcessService], taken: list[bool], config: dict[str, Any]
) -> None:
    batches = []
    for service in services:
        client, chosen = made(service, **config), []
        for step in range(7):
            if client.get_run().reference_due:
                references = client.select_batch(step, purpose="reference")
                report(client, step, references.prompt_ids, "reference")
            batch = client.select_batch(step, _BATCH)
            chosen.append((batch.prompt_ids, batch.predicted_difficulties.tolist(), batch.probabilities.tolist()))
            # In two parts, as two processes of a trainer may.
            report(client, step, batch.prompt_ids[:5])
            report(client, step, batch.prompt_ids[5:])
            client.report_training(step, clip_fraction=0.1)
            wait_for_it(service)
        batches.append(chosen)
    assert batches[0] == batches[1]
    half = len(taken) // 2
    assert any(taken[:half]) and not any(taken[half:])


@pytest.mark.parametrize(
    "change",
    [
        lambda client, batch: client.retire_prompts(list(batch[:60])),
        lambda client, batch: client.register_prompts(["new"], ["a new question"]),
        lambda client, batch: client.register_prompts([batch[0]], ["another question"], replace=True),
        lambda client, batch: client.import_priors({_IDS[i]: (0.5, 8) for i in range(100)}),
        lambda client, batch: client.report_training(2, signals={"s": {_IDS[i]: float(i) for i in range(100)}}),
        lambda client, batch: client.select_batch(2, 8, round=1),
        lambda client, batch: client.rewind(2),
    ],
)
def test_what_happens_in_between_counts(
    services: tuple[InProcessService, InProcessService],
    taken: list[bool],
    change: Callable[[SelectorClient, tuple[str, ...]], object],
) -> None:
    chosen = []
    for service in services:
        client, batch = trained(service, 3)
        change(client, batch)
        step = client.get_run().last_step + 1
        taken.clear()
        chosen.append((step, client.select_batch(step, _BATCH).prompt_ids))
        assert taken and not any(taken)
    assert chosen[0] == chosen[1]


def test_a_late_report_has_the_batch_chosen_anew(
    services: tuple[InProcessService, InProcessService], taken: list[bool]
) -> None:
    chosen = []
    for service in services:
        client, _ = trained(service, 3)
        report(client, 1, ("p0", "p1", "p2"))
        wait_for_it(service)
        taken.clear()
        chosen.append(client.select_batch(3, _BATCH).prompt_ids)
        assert any(taken) is (service is services[0])
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    "asked",
    [
        {"batch_size": _BATCH + 1},
        {"batch_size": _BATCH, "exclude_prompt_ids": _IDS[:50]},
        {"batch_size": _BATCH, "round": 1},
    ],
)
def test_another_request_is_answered_for_itself(
    services: tuple[InProcessService, InProcessService], taken: list[bool], asked: dict[str, Any]
) -> None:
    chosen = []
    for service in services:
        client, _ = trained(service, 1)
        taken.clear()
        chosen.append(client.select_batch(1, **asked).prompt_ids)
        assert taken and not any(taken)
    assert chosen[0] == chosen[1]


def test_shards_of_a_batch_that_was_held_are_its_parts(
    services: tuple[InProcessService, InProcessService], taken: list[bool]
) -> None:
    chosen = []
    for service in services:
        client, _ = trained(service, 1)
        parts = [client.select_batch(1, _BATCH, shard=(index, 3)).prompt_ids for index in range(3)]
        chosen.append(parts)
    assert chosen[0] == chosen[1] and sum(map(len, chosen[0])) == _BATCH
    assert any(taken)


def test_a_batch_that_was_held_is_given_again(
    services: tuple[InProcessService, InProcessService], taken: list[bool]
) -> None:
    service, _ = services
    client, _ = trained(service, 3)
    given = [_given(client, 3)]
    assert any(taken)
    given.append(_given(client, 3))
    report(client, 3, given[0][0])
    given.append(_given(client, 3))
    wait_for_it(service)
    _given(client, 4)
    given.append(_given(client, 3))
    service.restart()
    given.append(_given(service.client("r", timeout_s=60.0), 3))
    assert all(each == given[0] for each in given)


def _given(client: SelectorClient, step: int) -> tuple[Any, ...]:
    batch = client.select_batch(step, _BATCH)
    columns = (batch.predicted_difficulties, batch.standard_errors, batch.probabilities, batch.rollouts)
    return (batch.prompt_ids, batch.arms, *(column.tolist() for column in columns))
