"""Prompts in flight: never offered twice, back when their lease is over, and no worse off for taking long."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from scipy import stats

from clients import SelectorClient
from tests.service.running import InProcessService
from tests.service.trainer import noise, outcomes_of, prompts

LEASE = 5


def _run(service: InProcessService, run_id: str, pool: int, **config: Any) -> SelectorClient:
    client = service.client(run_id)
    client.create_run({"cool_down_steps": 0, "lease_steps": LEASE, "reference": {"mode": "NONE"}, **config})
    client.register_prompts(prompts(pool))
    return client


@pytest.mark.parametrize("ahead", [0, 3], ids=["behind", "ahead"])
def test_prompts_in_flight_are_not_offered_again_until_their_lease_is_over(
    own_service: InProcessService, ahead: int
) -> None:
    """An asynchronous trainer: batches are selected up to three steps ahead of the policy that rolls them out, outcomes
    come at any time, in parts and out of order, and some never do. The server is restarted on the way.
    """
    client = _run(own_service, "async", 24)
    # Step of the selection -> prompts whose outcomes are awaited; and those that never come.
    out: dict[int, list[str]] = defaultdict(list)
    lost: dict[str, int] = {}
    came_back = 0
    for step in range(40):
        if step == 20:
            own_service.restart()
            client = own_service.client("async")
        batch = client.select_batch(step + ahead, 3)
        held = {p for at, ids in out.items() for p in ids if step + ahead - at < LEASE}
        assert not held & set(batch.prompt_ids), step
        assert len(batch) == min(3, 24 - len(held))
        for prompt_id in batch.prompt_ids:
            came_back += prompt_id in lost
            lost.pop(prompt_id, None)
            for ids in out.values():
                if prompt_id in ids:
                    ids.remove(prompt_id)
            out[step + ahead].append(prompt_id)
        finished: dict[int, list[str]] = defaultdict(list)
        for at, ids in out.items():
            for prompt_id in list(ids):
                fate = noise("fate", at, prompt_id).random()
                if fate < 0.15:
                    lost[prompt_id] = at
                elif step + ahead - at >= int(fate * 2 * LEASE):
                    finished[at].append(prompt_id)
                    ids.remove(prompt_id)
        for at in sorted(finished, reverse=True):
            # The policy that rolled them out may be older than the selection.
            client.report_outcomes(max(at - ahead, 0), outcomes_of(finished[at], at))
    assert came_back > 3, "what was lost is offered again"
    held = {p for at, ids in out.items() for p in ids if 39 + ahead - at < LEASE}
    assert client.get_run().pool.leased == len(held)


def test_reported_prompts_are_free_at_once_and_lost_ones_when_the_lease_is_over(own_service: InProcessService) -> None:
    client = _run(own_service, "edge", 4)
    batch = client.select_batch(10, 4)
    client.report_outcomes(10, outcomes_of(batch.prompt_ids[:1], 10))
    assert client.select_batch(11, 4).prompt_ids == batch.prompt_ids[:1]
    client.report_outcomes(11, outcomes_of(batch.prompt_ids[:1], 11))
    last = client.select_batch(10 + LEASE - 1, 4)
    assert last.prompt_ids == batch.prompt_ids[:1] and last.shortfall_reason == "LEASED"
    assert set(client.select_batch(10 + LEASE, 4).prompt_ids) == set(batch.prompt_ids[1:])


def _shares(client: SelectorClient, delays: Mapping[str, int], steps: int) -> tuple[Counter[int], Counter[int]]:
    """By delay: how often prompts were selected, and how often they could have been."""
    out: dict[int, list[tuple[int, str]]] = defaultdict(list)
    selected: Counter[int] = Counter()
    offered: Counter[int] = Counter()
    flying: set[str] = set()
    for step in range(steps):
        arrived: dict[int, list[str]] = defaultdict(list)
        for at, prompt_id in out.pop(step, []):
            arrived[at].append(prompt_id)
            flying.discard(prompt_id)
        for at, ids in sorted(arrived.items()):
            # Every prompt is as hard as every other.
            client.report_outcomes(at, {p: (noise(at, p).random(4) < 0.5).astype(float).tolist() for p in ids})
        offered.update(delays[prompt_id] for prompt_id in delays if prompt_id not in flying)
        for prompt_id in client.select_batch(step, 6).prompt_ids:
            selected[delays[prompt_id]] += 1
            flying.add(prompt_id)
            out[step + delays[prompt_id]].append((step, prompt_id))
    return selected, offered


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["FUSED", "TRACKER"])
def test_long_rollouts_are_selected_as_often_as_short_ones_whenever_they_can_be(
    own_service: InProcessService, estimator: str
) -> None:
    """Rollouts take 1, 3 or 6 steps. Whenever a prompt is not in flight its chance is that of every other one."""
    ids = prompts(60)
    client = _run(own_service, "long", len(ids), estimator={"name": estimator}, lease_steps=50, score="UNIFORM")
    selected, offered = _shares(client, {p: (1, 3, 6)[i % 3] for i, p in enumerate(ids)}, 400)
    total, chances = sum(selected.values()), sum(offered.values())
    expected = [offered[delay] * total / chances for delay in sorted(offered)]
    assert stats.chisquare([selected[delay] for delay in sorted(offered)], expected).pvalue > 1e-3


@pytest.mark.slow
def test_with_a_cool_down_as_long_as_the_longest_rollout_all_have_the_same_share(own_service: InProcessService) -> None:
    """The default: a prompt cools down for as long as others are out, so taking long costs nothing."""
    ids = prompts(96)
    client = _run(own_service, "share", len(ids), cool_down_steps=8, lease_steps=50, score="LEARNABLE")
    selected, _ = _shares(client, {p: (1, 3, 6)[i % 3] for i, p in enumerate(ids)}, 300)
    assert stats.chisquare([selected[delay] for delay in (1, 3, 6)]).pvalue > 1e-3
