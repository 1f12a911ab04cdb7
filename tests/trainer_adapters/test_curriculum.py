"""The calls of a step through the real service, and what becomes of them while it is away."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import (
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RolloutGroup,
    RunInfo,
    SelectorClient,
    SelectorError,
)
from tests.service.running import InProcessService
from trainer_adapters.backlog import Write
from trainer_adapters.checks import AdapterError
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum, check_replay_capacity
from trainer_adapters.prompt_pool import PromptPool

SAMPLING = {"temperature": 1.0, "log_prob_mode": "PROCESSED"}
POOL = PromptPool.from_texts([f"question {number}" for number in range(20)])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    """On a port that a restart keeps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = InProcessService(tmp_path / "state", listen=f"127.0.0.1:{port}")
    yield running
    running.close()


def curriculum(service: InProcessService, pool: PromptPool = POOL, **changes: Any) -> Curriculum:
    config = CurriculumConfig(
        **{"target": service.address, "run_id": "run", "timeout_s": 8.0, "probe_s": 5.0, **changes}
    )
    return Curriculum(config, pool, config.run_config(4, 3, SAMPLING))


def group(prompt_id: str, step: int, outcomes: list[float] | None = None) -> RolloutGroup:
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=step,
        prompt_token_ids=[1, 2],
        response_token_ids=[[3, 4]] * 4,
        behavior_log_probs=[[-0.5, -0.25]] * 4,
        rewards=[0.0, 1.0, 1.0, 0.0],
        outcomes=[0.0, 1.0, 1.0, 0.0] if outcomes is None else outcomes,
        sampling=SAMPLING,
    )


def trained(made: Curriculum, step: int, batch_size: int = 6) -> tuple[tuple[str, ...], list[RolloutGroup]]:
    """One whole step: its prompts, and what was replayed."""
    plan = made.plan(step, batch_size)
    made.deliver(step, [group(prompt_id, step) for prompt_id in plan.prompt_ids])
    made.report_training(step, clip_fraction=0.25, effective_sample_size=None)
    return plan.prompt_ids, list(plan.replayed)


def test_a_training_selects_reports_and_replays(service: InProcessService) -> None:
    made = curriculum(service)
    assert made.start(0).pool.active == len(POOL)
    steps = [trained(made, step) for step in range(4)]
    made.close()
    assert [len(prompts) + len(replayed) for prompts, replayed in steps] == [6] * 4
    assert sum(len(replayed) for _, replayed in steps) > 0
    run = service.client("run").get_run()
    assert (run.last_step, run.selections) == (3, 4)
    assert run.outcome_groups == sum(len(prompts) for prompts, _ in steps)
    assert made.figures() == {**dict.fromkeys(made.figures(), 0.0), "available": 1.0}


def test_a_run_that_was_made_for_a_training_that_is_refused_is_gone_again(service: InProcessService) -> None:
    def refuse(run: RunInfo) -> None:
        raise AdapterError("no")

    with pytest.raises(AdapterError):
        curriculum(service).start(0, refuse)
    with pytest.raises(NotFound):
        service.client("run").get_run()
    # One that was there before stays.
    curriculum(service).start(0)
    with pytest.raises(AdapterError):
        curriculum(service).start(0, refuse)
    assert service.client("run").get_run().pool.active == len(POOL)


def test_another_training_that_came_in_between_is_left_alone(service: InProcessService) -> None:
    early = curriculum(service)
    assert early.create(lambda run: None)
    other = curriculum(service, PromptPool.from_texts([f"other {number}" for number in range(20)]))
    other.start(0)
    other.report(0, {each: [0.0, 1.0] for each in other.plan(0, 4).prompt_ids})
    with pytest.raises(AdapterError, match="has 20 prompts that this training has not"):
        early.start(0)
    run = service.client("run").get_run()
    assert (run.pool.active, run.outcome_groups) == (20, 4)


def test_a_refusal_is_told_even_if_the_run_cannot_be_deleted(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: RunInfo) -> None:
        # Somebody else was faster.
        service.client("run").delete_run()
        raise AdapterError("no")

    with pytest.raises(AdapterError, match="no"):
        curriculum(service).start(0, refuse)
    assert "run run was made and could not be deleted: RUN_NOT_FOUND" in caplog.text


def test_prompts_that_are_refused_leave_no_run(service: InProcessService) -> None:
    long = PromptPool(("x" * 2000, "y"), ("a question", "another"))
    with pytest.raises(InvalidArgument):
        curriculum(service, long).start(0)
    with pytest.raises(NotFound):
        service.client("run").get_run()


def test_figures_that_are_not_numbers_are_left_out(service: InProcessService, caplog: pytest.LogCaptureFixture) -> None:
    made = curriculum(service)
    made.start(0)
    made.report_training(0, effective_sample_size=float("nan"), max_importance_weight=float("inf"), clip_fraction=0.5)
    quality = service.client("run").quality()
    assert (quality.effective_sample_size, quality.max_importance_weight, quality.clip_fraction) == (None, None, 0.5)
    assert "effective_sample_size of step 0 is nan" in caplog.text


def test_a_run_that_is_gone_at_the_end_is_told(service: InProcessService, caplog: pytest.LogCaptureFixture) -> None:
    made = curriculum(service)
    made.start(0)
    service.client("run").delete_run()
    made._connection._backlog.add(Write("report_outcomes", lambda request_id: service.client("run").get_run()))
    made.close()
    assert "what was kept is refused" in caplog.text and "1 reports or pushes could not be delivered" in caplog.text
    # One that was never used has nothing to end.
    curriculum(service).close()


def test_a_training_that_never_replays_is_told_once(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    made = curriculum(service)
    made.start(0)
    for step in range(45):
        # Without a difference between its outcomes no group is kept.
        plan = made.plan(step, 2)
        made.deliver(step, [group(each, step, outcomes=[0.0] * 4) for each in plan.prompt_ids])
    said = [each.getMessage() for each in caplog.records if "nothing has been replayed" in each.getMessage()]
    assert len(said) == 1 and "for 20 steps" in said[0]


def test_training_starts_over_or_goes_on_as_if_it_had_not_stopped(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    whole = [trained(made, step)[0] for step in range(4)]
    for first in (0, 2):
        again = curriculum(service)
        again.start(first)
        assert [trained(again, step)[0] for step in range(first, 4)] == whole[first:]


@pytest.mark.slow
def test_while_the_service_is_away_prompts_are_uniform_and_nothing_is_lost(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    made = curriculum(service)
    made.start(0)
    steps = {0: trained(made, 0)}

    def away() -> None:
        for step in (1, 2):
            steps[step] = trained(made, step)

    service.restart(away)
    assert made.figures()["available"] == 0
    assert made.figures()["unsent_writes"] == 6
    steps[3] = trained(made, 3)
    figures = made.figures()
    assert (figures["available"], figures["unsent_writes"], figures["dropped_writes"]) == (1, 0, 0)
    assert (figures["uniform_selections"], figures["failed_calls"]) == (2, 1)
    for step in (1, 2):
        prompts, replayed = steps[step]
        assert len(set(prompts)) == 6 and not replayed
        assert prompts == POOL.uniform(6, 3, step)
    # Each report exactly once, each with its own step.
    reported = [(row.record.step, row.prompt_id) for row in service.client("run").export("outcomes")]
    assert sorted(reported) == sorted((step, each) for step, (prompts, _) in steps.items() for each in prompts)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert sum("training goes on with prompts drawn uniformly" in error for error in errors) == 1
    assert sum("still away" in error for error in errors) == 1


@pytest.mark.slow
def test_what_does_not_fit_into_the_backlog_is_counted(service: InProcessService) -> None:
    nbytes = group("x", 0).nbytes
    made = curriculum(service, backlog_bytes=8 * nbytes)
    made.start(0)
    service.restart(lambda: [trained(made, step) for step in range(3)])
    # Of 3 pushes of 6 groups one fits; reports are never dropped for want of room.
    assert made.figures()["dropped_writes"] == 2
    fresh, _ = trained(made, 3)
    assert service.client("run").get_run().outcome_groups == 6 * 3 + len(fresh)
    assert {each.policy_version for each in service.client("run").sample_rollouts(9, 50)} == {2, 3}


def test_a_push_that_the_backlog_could_not_hold_is_sent_while_the_service_is_well(service: InProcessService) -> None:
    made = curriculum(service, backlog_bytes=0)
    made.start(0)
    fresh, _ = trained(made, 0)
    assert made.figures()["dropped_writes"] == 0
    assert service.client("run").get_run().replay_groups == len(fresh)


class Failing(SelectorClient):
    """Reports meet an error so many times."""

    def __init__(self, target: str, error: SelectorError, times: int) -> None:
        super().__init__(target, "run")
        self._error, self._times = error, times

    def report_outcomes(self, *arguments: Any, **options: Any) -> Any:
        if self._times > 0:
            self._times -= 1
            raise self._error
        return super().report_outcomes(*arguments, **options)


@pytest.mark.parametrize(
    ("error", "times", "dropped"),
    [
        # Passes by itself: the report is kept, however often.
        (ResourceExhausted("too much at once", reason="OVERLOADED"), 1, 0),
        (ResourceExhausted("too much at once", reason="OVERLOADED"), 4, 0),
        (Internal("a fault"), 2, 0),
        # Would never be taken: given up after three answers, and selection goes on.
        (Internal("a fault"), 3, 1),
    ],
)
def test_a_report_that_fails_is_kept_but_does_not_block_for_ever(
    service: InProcessService, error: SelectorError, times: int, dropped: int
) -> None:
    config = CurriculumConfig(service.address, "run", replay=False)
    made = Curriculum(config, POOL, config.run_config(4, 3, SAMPLING), Failing(service.address, error, times))
    made.start(0)
    for step in range(6):
        trained(made, step, 2)
    figures = made.figures()
    assert (figures["unsent_writes"], figures["dropped_writes"], figures["available"]) == (0, dropped, 1)
    assert service.client("run").get_run().outcome_groups == 2 * (6 - dropped)


def test_a_run_that_is_gone_ends_the_training(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    service.client("run").delete_run()
    with pytest.raises(NotFound):
        made.plan(0, 6)


def test_a_buffer_that_cannot_hold_what_a_batch_replays(service: InProcessService) -> None:
    run = curriculum(service, run={"replay": {"capacity_groups": 10, "fresh_fraction": 0.75}}).start(0)
    check_replay_capacity(run, 43)
    with pytest.raises(AdapterError, match=r"capacity_groups: expected at least the 11 groups .* got 10"):
        check_replay_capacity(run, 44)
    with pytest.raises(AdapterError, match=r"of the 3 groups of a batch none would be replayed .* 0.75"):
        check_replay_capacity(run, 3)


def test_parts_are_even_and_what_they_leave_out_is_counted(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    for step in range(4):
        plan = made.plan(step, 8, 4)
        assert len(plan.prompt_ids) + len(plan.replayed) == 8
        assert len(plan.replayed) % 4 == 0 and len(plan.prompt_ids) >= 4
        made.deliver(step, [group(prompt_id, step) for prompt_id in plan.prompt_ids])
    assert len(plan.replayed) == 4
    # Of eight a quarter of a part is not to be had.
    plan = made.plan(4, 8, 8)
    assert len(plan.replayed) == 0 and made.figures()["uneven_replay_groups"] == 4
    with pytest.raises(ValueError, match="groups: expected a multiple of 3 processes, got 8"):
        made.plan(5, 8, 3)


def test_a_group_with_a_rollout_without_a_score_is_not_stored(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    chosen = made.plan(0, 2).prompt_ids
    scored = group(chosen[0], 0)
    made.deliver(0, [scored, replace(group(chosen[1], 0), statuses=("COMPLETED",) * 3 + ("UNSCORABLE",))])
    assert service.client("run").get_run().replay_groups == 1
    assert made.figures()["unscored_groups"] == 1
    assert service.client("run").explain(chosen[1]).outcomes[0].outcomes.tolist() == [0.0, 1.0, 1.0]


def test_a_start_says_what_it_drops_and_what_it_finds_new(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    curriculum(service).start(5)
    assert "run run is new, although the training goes on at step 5" in caplog.text
    made = curriculum(service)
    made.start(0)
    fresh, _ = trained(made, 0)
    caplog.clear()
    curriculum(service).start(0)
    assert f"dropped 1 reports and {len(fresh)} replay groups" in caplog.text


def test_a_training_can_ask_to_end_instead(service: InProcessService) -> None:
    made = curriculum(service, on_failure="closed", timeout_s=2.0)
    made.start(0)

    def away() -> None:
        with pytest.raises(ConnectionError):
            made.select(0, 6)

    service.restart(away)


@pytest.mark.parametrize("on_failure", ["open", "closed"])
def test_a_wrong_call_ends_the_training_either_way(service: InProcessService, on_failure: str) -> None:
    made = curriculum(service, on_failure=on_failure)
    made.start(0)
    with pytest.raises(InvalidArgument, match="unheard of"):
        made.report(0, {"unheard of": [1.0]})


def test_a_service_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    config = CurriculumConfig(target="127.0.0.1:9", run_id="run", timeout_s=1.0)
    made = Curriculum(config, POOL, config.run_config(4, 0, SAMPLING))
    with pytest.raises((ConnectionError, TimeoutError)):
        made.start(0)


def test_a_run_of_another_training_is_refused(service: InProcessService, caplog: pytest.LogCaptureFixture) -> None:
    curriculum(service).start(0)
    others = PromptPool.from_texts([f"another {number}" for number in range(20)])
    with pytest.raises(AdapterError, match="'run' has 20 prompts that this training has not"):
        curriculum(service, others).start(0)
    # Nothing was added to it, and without those prompts it is this training's.
    assert service.client("run").get_run().pool.registered == 20
    fewer = PromptPool(POOL.prompt_ids[:15], POOL.texts[:15])
    with pytest.raises(AdapterError, match=f"has 5 prompts .* '{POOL.prompt_ids[15]}' among them"):
        curriculum(service, fewer).start(0)
    service.client("run").retire_prompts(POOL.prompt_ids[15:])
    curriculum(service, fewer).start(0)
    more = PromptPool((*fewer.prompt_ids, "new"), (*fewer.texts, "new"))
    curriculum(service, more).start(0)
    assert "added 1 prompts that it did not have" in caplog.text
    service.client("run").retire_prompts(["new"])
    made = curriculum(service)
    made.start(0)
    service.client("run").register_prompts(["stranger"], ["stranger"])
    service.client("run").retire_prompts(POOL.prompt_ids)
    with pytest.raises(AdapterError, match="chose 'stranger', which this training does not have"):
        made.select(0, 1)


def test_a_full_quota_drops_rollouts_and_selection_goes_on(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", max_replay_groups=3)
    try:
        made = curriculum(service)
        made.start(0)
        for step in range(2):
            trained(made, step)
        assert made.figures()["dropped_writes"] == 2
        assert made.figures()["uniform_selections"] == 0
        assert service.client("run").get_run().outcome_groups == 12
    finally:
        service.close()


def test_a_pool_with_too_few_eligible_prompts_is_filled_uniformly(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    # Leased, never reported: two of 20 are left for the third.
    first, second = made.select(0, 9), made.select(1, 9)
    chosen = made.select(2, 9)
    assert not {*first.prompt_ids} & {*second.prompt_ids}
    assert (len(set(chosen.prompt_ids)), chosen.uniform) == (9, 7)
    assert made.figures()["filled_prompts"] == 7


def test_further_prompts_of_a_step_are_others(service: InProcessService) -> None:
    made = curriculum(service)
    made.start(0)
    chosen = made.select(0, 9).prompt_ids
    more = made.top_up(0, 5, 1, chosen)
    rest = made.top_up(0, 9, 2, (*chosen, *more))
    assert len({*chosen, *more, *rest}) == 9 + 5 + 6


def test_without_replay_nothing_is_stored_or_sampled(service: InProcessService) -> None:
    made = curriculum(service, replay=False)
    made.start(0)
    for step in range(3):
        assert trained(made, step)[1] == []
    assert service.client("run").get_run().replay_groups == 0


def test_a_group_that_the_service_refuses_is_counted(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    made = curriculum(service)
    made.start(0)
    chosen = made.select(0, 2).prompt_ids
    broken = RolloutGroup.from_arrays(
        prompt_id=chosen[0],
        policy_version=0,
        prompt_token_ids=[1],
        response_token_ids=[[2], [3]],
        behavior_log_probs=[[np.nan], [-1.0]],
        rewards=[0.0, 1.0],
        outcomes=[0.0, 1.0],
        sampling=SAMPLING,
    )
    made.push(0, [broken, group(chosen[1], 0)])
    assert made.figures()["refused_groups"] == 1
    assert "behavior_log_probs" in caplog.text
    assert service.client("run").get_run().replay_groups == 1


def test_dedicated_references_are_asked_for_and_reported(service: InProcessService) -> None:
    made = curriculum(service, run={"reference": {"mode": "DEDICATED", "size": 5}})
    assert made.start(0).reference_due
    references = made.references(0)
    assert len(set(references)) == 5
    made.report(0, {prompt_id: [1.0, 0.0] for prompt_id in references}, purpose="reference")
    assert not made.select(0, 6).reference_due


def test_the_same_seed_draws_the_same_uniform_prompts() -> None:
    draws: list[Callable[[], tuple[str, ...]]] = [lambda: POOL.uniform(6, 3, 1), lambda: POOL.uniform(6, 3, 2)]
    assert draws[0]() == draws[0]() != draws[1]()
    assert len(POOL.uniform(50, 3, 1)) == 20
    assert not {*POOL.uniform(10, 3, 1, POOL.prompt_ids[:10])} & {*POOL.prompt_ids[:10]}
