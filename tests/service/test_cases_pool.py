"""What becomes of prompts: leases, pools that shrink, grow and run dry, and prompts that may not be selected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import InvalidArgument
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import outcomes_of, prompts, scraped


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"), metrics_listen="127.0.0.1:0")
    yield running
    running.close()


def test_the_last_prompt_left_is_selected_and_the_rest_is_a_shortfall(service: InProcessService) -> None:
    """Three of four prompts are reported and may not come again: the fourth is the batch, and the reason is told."""
    client = service.client("leftover")
    client.create_run({"cool_down_steps": 50, "strict_cool_down": True})
    client.register_prompts(prompts(4))
    first = client.select_batch(0, 3)
    assert client.report_outcomes(0, outcomes_of(first.prompt_ids, 0)).applied_groups == 3
    second = client.select_batch(1, 2)
    assert set(second.prompt_ids) == set(prompts(4)) - set(first.prompt_ids)
    assert (second.shortfall, second.shortfall_reason) == (1, "COOLING_DOWN")
    client.report_outcomes(1, outcomes_of(second.prompt_ids, 1))
    assert client.get_run().outcome_groups == 4
    none_left = client.select_batch(2, 2)
    assert (len(none_left), none_left.shortfall, none_left.shortfall_reason) == (0, 2, "COOLING_DOWN")
    # Without strictness a repeat is better than an empty batch.
    lenient = service.client("leftover-lenient")
    lenient.create_run({"cool_down_steps": 50})
    lenient.register_prompts(prompts(4))
    for step in range(4):
        batch = lenient.select_batch(step, 3)
        assert len(batch) == 3 and batch.shortfall == 0
        lenient.report_outcomes(step, outcomes_of(batch.prompt_ids, step))


def test_prompts_the_caller_excludes_are_left_out_and_named_as_the_reason(service: InProcessService) -> None:
    """Exclusion by id leaves the one prompt that is not excluded; unknown ids are refused."""
    client = service.client("excluded")
    client.create_run()
    client.register_prompts(prompts(4))
    batch = client.select_batch(0, 2, exclude_prompt_ids=prompts(3))
    assert batch.prompt_ids == (prompts(4)[3],)
    assert (batch.shortfall, batch.shortfall_reason) == (1, "EXCLUDED")
    with pytest.raises(InvalidArgument, match="nobody"):
        client.select_batch(1, 2, exclude_prompt_ids=["nobody"])


def test_open_leases_survive_kill_and_a_pass_visits_every_prompt_once(tmp_path: Path) -> None:
    """Eight are selected, three reported, then kill -9: the other five are still out and are not handed out twice."""
    ids = prompts(24)
    before = ServiceProcess(tmp_path)
    with before.client("leases") as client:
        # No cool-down: nothing but the lease keeps a prompt from coming again.
        client.create_run({"cool_down_steps": 0, "lease_steps": 4, "reference": {"mode": "NONE"}})
        client.register_prompts(ids)
        first = client.select_batch(5, 8).prompt_ids
        client.report_outcomes(5, outcomes_of(first[:3], 5))
    before.kill()
    after = ServiceProcess(tmp_path)
    try:
        with after.client("leases") as client:
            assert client.get_run().pool.leased == 5
            free = client.select_batch(6, 24)
            assert set(free.prompt_ids) == set(ids) - set(first[3:])
            assert (free.shortfall, free.shortfall_reason) == (5, "LEASED")
            # A lease is for four steps.
            assert len(client.select_batch(8, 24)) == 0
            assert set(client.select_batch(9, 24).prompt_ids) == set(first[3:])
        with after.client("pass") as client:
            client.create_run({"cool_down_steps": 2})
            client.register_prompts(ids)
            seen = [prompt_id for step in range(3) for prompt_id in client.select_batch(step, 8).prompt_ids]
            assert sorted(seen) == ids
    finally:
        after.terminate()


def test_a_second_data_set_joins_a_run_that_used_up_its_first(service: InProcessService) -> None:
    """All 50 prompts were consumed and half retired; 30 further ones are simply part of what can be selected."""
    client = service.client("second-set")
    client.create_run({"cool_down_steps": 3})
    old, new = prompts(50, "old"), prompts(30, "new")
    client.register_prompts(old)
    for step in range(5):
        batch = client.select_batch(step, 10)
        client.report_outcomes(step, outcomes_of(batch.prompt_ids, step))
    assert client.get_run().pool.never_selected <= 20
    client.retire_prompts(old[:25])
    client.register_prompts(new)
    pool = client.get_run().pool
    assert (pool.registered, pool.active, pool.retired, pool.registered_after_start) == (80, 55, 25, 30)
    allowed = set(old[25:] + new)
    seen: set[str] = set()
    for step in range(5, 13):
        batch = client.select_batch(step, 10)
        assert len(batch) == 10 and set(batch.prompt_ids) <= allowed
        seen |= set(batch.prompt_ids)
        client.report_outcomes(step, outcomes_of(batch.prompt_ids, step))
    assert len(seen & set(new)) > 15
    assert client.get_run().outcome_groups == 130


@pytest.mark.parametrize("score", ["LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM"])
def test_a_pool_that_is_solved_never_drains(service: InProcessService, score: str) -> None:
    """Every prompt succeeds every time; a batch of four is still four prompts, step after step."""
    client = service.client(f"solved-{score}")
    client.create_run({"score": score, "reference": {"mode": "NONE"}})
    ids = prompts(6)
    client.register_prompts(ids)
    for step in range(3):
        client.report_outcomes(step, {prompt_id: [1.0] * 8 for prompt_id in ids})
    previous = set(ids)
    for step in range(3, 12):
        batch = client.select_batch(step, 4)
        assert len(set(batch.prompt_ids)) == 4 and batch.shortfall == 0
        # Those that cool down come back longest first: no prompt is left out twice in a row.
        assert previous | set(batch.prompt_ids) == set(ids)
        previous = set(batch.prompt_ids)
        client.report_outcomes(step, {prompt_id: [1.0] * 8 for prompt_id in batch.prompt_ids})
        if step >= 5:
            assert set(batch.arms) == {"REVIEW"}


def test_prompts_not_seen_for_long_are_reviewed(service: InProcessService) -> None:
    """Solved prompts are not worth a targeted slot, and still come back once they were away for long enough."""
    client = service.client("review")
    client.create_run(
        {
            "max_unselected_steps": 10,
            "review_fraction": 0.5,
            "cool_down_steps": 0,
            "score_temperature": 0.05,
            "reference": {"mode": "NONE"},
        }
    )
    solved, useful = prompts(6, "solved"), prompts(6, "useful")
    client.register_prompts(solved + useful)
    for step in range(3):
        client.report_outcomes(step, {**dict.fromkeys(solved, [1.0] * 8), **dict.fromkeys(useful, [1.0, 0.0] * 4)})
    last_seen = dict.fromkeys(solved, -1)
    for step in range(3, 40):
        batch = client.select_batch(step, 4)
        for prompt_id, arm in zip(batch.prompt_ids, batch.arms, strict=True):
            if prompt_id in last_seen:
                assert arm == "REVIEW"
                last_seen[prompt_id] = step
        client.report_outcomes(step, {p: [1.0] * 8 if p in last_seen else [1.0, 0.0] * 4 for p in batch.prompt_ids})
        # Two review slots a step hold a backlog of six up by three steps at most.
        assert all(step - seen <= 10 + 3 for seen in last_seen.values())
    assert client.quality().max_steps_since_selected <= 13


def test_prompts_that_are_too_long_are_kept_out_and_counted(service: InProcessService) -> None:
    """A prompt beyond max_prompt_tokens is registered with its reason, never selected, and counted everywhere."""
    client = service.client("too-long")
    client.create_run({"max_prompt_tokens": 100, "cool_down_steps": 0, "lease_steps": 0})
    ids = prompts(6)
    answer = client.register_prompts(ids, token_counts=[10, 101, 100, 5000, 0, 99])
    assert (answer.added, answer.ineligible, answer.ineligible_prompt_ids) == (6, 2, (ids[1], ids[3]))
    for step in range(8):
        assert set(client.select_batch(step, 6).prompt_ids) == {ids[0], ids[2], ids[4], ids[5]}
    explained = client.explain(ids[1])
    assert explained.status == "INELIGIBLE"
    assert "101" in explained.status_reason and "100" in explained.status_reason
    assert client.get_run().pool.ineligible == 2
    assert scraped(service.metrics_address, "too-long")["selector_prompts", "ineligible"] == 2


def test_prompts_come_and_go_while_leases_are_open(service: InProcessService) -> None:
    """New prompts can be selected at once; a retired prompt's report counts and it never comes again."""
    client = service.client("come-and-go")
    client.create_run({"cool_down_steps": 0, "lease_steps": 3})
    client.register_prompts(prompts(4))
    out = client.select_batch(0, 4).prompt_ids
    fresh = prompts(5, "fresh")
    client.register_prompts(fresh)
    retired, kept = out[0], out[1:]
    client.retire_prompts([retired])
    added = client.select_batch(1, 9)
    assert set(added.prompt_ids) == set(fresh)
    assert (added.shortfall, added.shortfall_reason) == (4, "POOL_TOO_SMALL")
    before = client.predict_difficulty([retired])
    assert client.report_outcomes(0, {retired: [1.0] * 8}).applied_groups == 1
    after = client.predict_difficulty([retired])
    assert after.predicted_difficulties[0] < before.predicted_difficulties[0]
    assert client.explain(retired).outcomes[-1].difficulty == 0.0
    for step in range(4, 10):
        batch = client.select_batch(step, 9)
        assert retired not in batch.prompt_ids
        client.report_outcomes(step, outcomes_of(batch.prompt_ids, step))
    assert set(batch.prompt_ids) == {*fresh, *kept}


def test_a_pool_smaller_than_the_batch_is_the_batch(service: InProcessService) -> None:
    """Three prompts, eight asked for: three, and a shortfall of five that says the pool is too small."""
    client = service.client("small")
    client.create_run()
    client.register_prompts(prompts(3))
    batch = client.select_batch(0, 8)
    assert sorted(batch.prompt_ids) == prompts(3)
    assert (batch.replay_groups, batch.shortfall, batch.shortfall_reason) == (0, 5, "POOL_TOO_SMALL")
    assert scraped(service.metrics_address, "small")["selector_shortfalls_total", "pool_too_small"] == 5
