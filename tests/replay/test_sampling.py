"""How groups are drawn: uniformly, without replacement, whatever their age, and reproducibly."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy import stats

from selector.config import ReplayConfig
from selector.replay import ReplayRun, ReplayStore, RewindBeyondHistory, SampledGroup, SampleOrder, SampleRequest
from selector.replay.buffer import ReplayBuffer
from selector.replay.plans import Arrival
from selector.replay.push import plan_push
from tests.replay.groups import checked, payload, pushed, sampled

STEPS = range(10, 2410)


def filled(groups: int, seed: int = 0) -> ReplayBuffer:
    """A buffer of groups of many ages, in 5 pushes."""
    buffer = ReplayBuffer(ReplayConfig(capacity_groups=groups), seed)
    for step in range(5):
        numbers = range(step, groups, 5)
        arrivals = [Arrival(checked(f"p{number}", max(0, step - number % 4)), 1, number) for number in numbers]
        buffer.apply_push(plan_push(buffer, arrivals, step, buffer.log.next_position))
    return buffer


def drawn(buffer: ReplayBuffer, step: int, count: int) -> list[str]:
    plan = buffer.plan_sample(SampleRequest(step, count), buffer.log.next_position)
    return [buffer.identities[position][0] for position in plan.picks.tolist()]


def test_every_pair_is_as_likely() -> None:
    buffer = filled(8)
    counts = Counter(tuple(sorted(drawn(buffer, step, 2))) for step in STEPS)
    observed = [counts[pair] for pair in combinations(sorted(f"p{i}" for i in range(8)), 2)]
    assert sum(observed) == len(STEPS)
    assert stats.chisquare(observed).pvalue > 1e-3


def test_every_order_is_as_likely() -> None:
    buffer = filled(4)
    counts = Counter(tuple(drawn(buffer, step, 4)) for step in STEPS)
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_frequency_is_the_stated_probability() -> None:
    buffer = filled(40)
    counts: Counter[str] = Counter()
    for step in STEPS:
        plan = buffer.plan_sample(SampleRequest(step, 10), 0)
        assert plan.probability == 0.25
        counts.update(buffer.identities[position][0] for position in plan.picks.tolist())
    deviation = (np.array(list(counts.values())) - 600) / np.sqrt(2400 * 0.25 * 0.75)
    assert len(counts) == 40
    # Drawn without replacement, the 40 counts are negatively correlated: 39/40 of the sum of squares is chi-square(39).
    assert stats.chi2.sf((deviation**2).sum() * 39 / 40, 39) > 1e-3


def test_case_30_late_groups_have_their_share() -> None:
    """Groups that report three steps late are sampled as often as the others, and none is lost uncounted."""
    buffer = ReplayBuffer(ReplayConfig(capacity_groups=64, newest_per_prompt=False), seed=5)
    picked: Counter[str] = Counter()
    live: Counter[str] = Counter()
    for step in range(3, 1003):
        arrivals = [
            Arrival(checked(f"short{step}.{i}", step), 1, 0)
            if i % 2
            else Arrival(checked(f"long{step}.{i}", step - 3), 1, 0)
            for i in range(8)
        ]
        plan = plan_push(buffer, arrivals, step, buffer.log.next_position)
        assert sum(status == 0 for status in plan.statuses) == 8
        buffer.apply_push(plan)
        kinds = [buffer.identities[p][0][:4] for p in buffer.rows["position"][buffer.live()].tolist()]
        live.update(kinds)
        picked.update(prompt[:4] for prompt in drawn(buffer, step, 8))
        buffer.forget(buffer.expired())
    assert live["long"] == live["shor"]
    assert stats.binomtest(picked["long"], picked.total(), 0.5).pvalue > 1e-3


def test_draws_follow_from_seed_and_step() -> None:
    first, second, other = filled(30), filled(30), filled(30, seed=1)
    assert [drawn(first, step, 5) for step in range(10, 30)] == [drawn(second, step, 5) for step in range(10, 30)]
    assert [drawn(first, step, 5) for step in range(10, 30)] != [drawn(other, step, 5) for step in range(10, 30)]


def test_fewer_asked_is_the_beginning_of_more() -> None:
    buffer = filled(30)
    assert drawn(buffer, 10, 20)[:7] == drawn(buffer, 10, 7)


def test_case_27_groups_are_different_and_whole(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    groups = pushed(0, 3)
    run.push(groups, step=0)
    sample = sampled(run, SampleRequest(0, 3))
    assert {(g.prompt_id, g.payload) for g in sample.groups} == {(g.prompt_id, data) for g, data in groups}
    assert len(sample.groups) == 3


def test_case_32_latest_prompts_with_a_mixed_group(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(informative_only=False), seed=0)
    for step in range(6):
        groups = [(checked(f"p{step}.{i}", step, informative=i == 0), payload(step, i)) for i in range(3)]
        run.push(groups, step)
    request = SampleRequest(6, 3, SampleOrder.NEWEST, informative_only=True)
    sample = sampled(run, request)
    assert [g.prompt_id for g in sample.groups] == ["p5.0", "p4.0", "p3.0"]
    assert {g.probability for g in sample.groups} == {1.0}


def test_filters(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(informative_only=False), seed=0)
    for step in range(4):
        run.push([(checked(f"p{step}", step, informative=step != 1), payload(step))], step)

    def prompts(
        step: int, min_age_steps: int = 0, exclude: frozenset[str] = frozenset(), informative: bool = False
    ) -> set[str]:
        request = SampleRequest(step, 9, SampleOrder.UNIFORM, min_age_steps, exclude, informative)
        assert run.eligible_count(request) == len(sampled(run, request).groups)
        return {group.prompt_id for group in sampled(run, request).groups}

    assert prompts(3) == {"p0", "p1", "p2", "p3"}
    assert prompts(4, min_age_steps=2) == {"p0", "p1", "p2"}
    assert prompts(5, exclude=frozenset({"p0", "nobody"})) == {"p1", "p2", "p3"}
    assert prompts(6, informative=True) == {"p0", "p2", "p3"}
    assert prompts(2) == {"p0", "p1", "p2"}  # what was pushed later was not there at step 2


@pytest.mark.parametrize("max_bytes", [0, 1500, 10_000, 10**6])
def test_a_sample_is_read_in_pieces(store: ReplayStore, max_bytes: int) -> None:
    """Every piece fits, or is one group; together they are the sample, in its order."""
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    groups = [(checked(f"p{i}", 0), payload(i, size=10 + 97 * (i % 20))) for i in range(60)]
    run.push(groups, 0)
    sample = run.sample(SampleRequest(0, 50))
    pieces: list[tuple[SampledGroup, ...]] = []
    while (start := sum(len(piece) for piece in pieces)) < len(sample.positions):
        pieces.append(run.read(sample, start, max_bytes))
    assert all(len(piece) == 1 or sum(len(g.payload) + 512 for g in piece) <= max_bytes for piece in pieces)
    # No piece stopped early: the first group of the next one would not have fitted.
    for piece, after in pairwise(pieces):
        assert sum(len(g.payload) + 512 for g in (*piece, after[0])) > max_bytes
    read = [group for piece in pieces for group in piece]
    contents = {group.group_id: data for group, data in groups}
    assert [g.payload for g in read] == [contents[g.group_id] for g in read]
    assert tuple(read) == sampled(run, SampleRequest(0, 50)).groups
    assert run.read(sample, 50, max_bytes) == ()


def test_groups_that_go_while_a_sample_is_read(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    run.push(pushed(0, 3), 0)
    run.push(pushed(1, 3), 1)
    sample = run.sample(SampleRequest(1, 6))
    assert len(run.read(sample, 0, 1)) == 1
    run.rewind(1, epoch=1)
    with pytest.raises(RewindBeyondHistory, match="step 1 "):
        run.read(sample, 1, 10**6)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_part_the_sample(store: ReplayStore, shards: int) -> None:
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    run.push(pushed(0, 10), 0)
    whole = sampled(run, SampleRequest(0, 5)).groups
    parts = [sampled(run, SampleRequest(0, 5), (index, shards)).groups for index in range(shards)]
    assert sorted((g for part in parts for g in part), key=lambda g: g.group_id) == sorted(
        whole, key=lambda g: g.group_id
    )
