"""What outcomes mean: which groups are informative, ranges, NaN, group sizes, and rollouts that never finished."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from clients import InvalidArgument, SelectorClient
from tests.service.running import InProcessService
from tests.service.trainer import group_of, prompts, scraped


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"), metrics_listen="127.0.0.1:0")
    yield running
    running.close()


def _run(service: InProcessService, run_id: str, config: dict[str, object] | None = None) -> SelectorClient:
    client = service.client(run_id)
    client.create_run(config)
    client.register_prompts(prompts(4))
    return client


def test_a_mean_on_target_is_not_informative_when_all_outcomes_are_equal(service: InProcessService) -> None:
    """Four outcomes of 0.5 have the target difficulty and give no gradient: uninformative, and counted as such."""
    client = _run(service, "constant")
    answer = client.report_outcomes(0, {"p000": [0.5] * 4, "p001": [0.0] * 4, "p002": [1.0] * 4, "p003": [0.5, 0.6]})
    assert (answer.applied_groups, answer.informative_groups) == (4, 1)
    record = client.explain("p000").outcomes[-1]
    assert (record.difficulty, record.informative) == (0.5, False)
    figures = scraped(service.metrics_address, "constant")
    reasons = ("constant_zero", "constant_one", "constant_between")
    assert [figures["selector_uninformative_groups", reason] for reason in reasons] == [1, 1, 1]
    pushed = client.push_rollouts(0, [group_of("p000", 0, [0.5] * 4), group_of("p003", 0, [0.5, 0.6])])
    assert (pushed.stored, pushed.uninformative) == (1, 1)


def test_shaped_rewards_do_not_make_a_failed_group_informative(service: InProcessService) -> None:
    """Difficulty and informativeness follow from the task's outcomes, whatever the trainer optimises."""
    client = _run(service, "shaped")
    client.report_outcomes(0, {"p000": [0.0] * 4})
    record = client.explain("p000").outcomes[-1]
    assert (record.difficulty, record.informative) == (1.0, False)
    pushed = client.push_rollouts(0, [group_of("p000", 0, [0.0] * 3, rewards=[0.1, 0.5, -0.2])])
    assert (pushed.stored, pushed.uninformative) == (0, 1)
    # And the other way round: equal rewards, different outcomes.
    assert client.push_rollouts(0, [group_of("p001", 0, [0.0, 1.0], rewards=[0.3, 0.3])]).stored == 1
    assert client.sample_rollouts(0, 1)[0].rewards.tolist() == [0.3, 0.3]


def test_outcomes_are_mapped_from_their_range(service: InProcessService) -> None:
    """With outcome_range [-1, 1], -1 is 0, 0 is 0.5 and 1 is 1; beyond it a report is refused, or clipped if asked."""
    client = _run(service, "range", {"outcome_range": [-1, 1]})
    client.report_outcomes(0, {"p000": [-1.0, 0.0, 1.0]})
    np.testing.assert_array_equal(client.explain("p000").outcomes[-1].outcomes, [0.0, 0.5, 1.0])
    with pytest.raises(InvalidArgument) as refused:
        client.report_outcomes(1, {"p001": [0.0], "p002": [1.0, 1.4]})
    assert refused.value.reason == "INVALID_OUTCOME"
    assert [violation.field for violation in refused.value.violations] == ["outcomes[1].outcomes[1]"]
    assert "p002" in refused.value.violations[0].description and "1.4" in refused.value.violations[0].description
    assert client.get_run().outcome_groups == 1

    clipping = _run(service, "range-clipped", {"outcome_range": [-1, 1], "clip_outcomes": True})
    answer = clipping.report_outcomes(0, {"p000": [1.4, -3.0, 0.0]})
    assert answer.clipped_outcomes == 2
    np.testing.assert_array_equal(clipping.explain("p000").outcomes[-1].outcomes, [1.0, 0.0, 0.5])
    assert scraped(service.metrics_address, "range-clipped")["selector_clipped_outcomes_total", ""] == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_outcome_that_is_no_number_refuses_the_whole_report(service: InProcessService, bad: float) -> None:
    """Nothing of the report is applied, sound groups included, and the prompt and the rollout are named."""
    client = _run(service, f"nan-{bad}")
    lease = client.select_batch(0, 2).prompt_ids
    with pytest.raises(InvalidArgument) as refused:
        client.report_outcomes(0, {lease[0]: [1.0, 0.0], lease[1]: [1.0, bad, 0.0]})
    assert [violation.field for violation in refused.value.violations] == ["outcomes[1].outcomes[1]"]
    assert lease[1] in refused.value.violations[0].description
    run = client.get_run()
    assert (run.outcome_groups, run.pool.leased) == (0, 2)


def test_an_outcome_that_is_no_number_can_be_dropped(service: InProcessService) -> None:
    """With DROP_ROLLOUT the mean is over the other two rollouts, one drop is counted, and no figure turns NaN."""
    client = _run(service, "drop", {"on_nan": "DROP_ROLLOUT"})
    lease = client.select_batch(0, 2).prompt_ids
    answer = client.report_outcomes(0, {lease[0]: [1.0, math.nan, 0.0], lease[1]: [math.nan, math.inf]})
    assert (answer.applied_groups, answer.empty_groups, answer.dropped_rollouts) == (1, 1, 3)
    record = client.explain(lease[0]).outcomes[-1]
    assert (record.difficulty, len(record.outcomes), record.informative) == (0.5, 2, True)
    assert client.explain(lease[1]).outcomes == ()
    assert client.get_run().pool.leased == 0
    predictions = client.predict_difficulty()
    assert np.isfinite(predictions.predicted_difficulties).all() and np.isfinite(predictions.standard_errors).all()
    figures = scraped(service.metrics_address, "drop")
    assert figures["selector_dropped_rollouts_total", ""] == 3
    assert all(math.isfinite(value) for value in figures.values())
    quality = client.quality()
    assert quality.mean_absolute_error is not None and math.isfinite(quality.mean_absolute_error)


@pytest.mark.parametrize("estimator", ["FUSED", "TRACKER"])
def test_groups_of_any_size_are_accepted_and_larger_ones_weigh_more(service: InProcessService, estimator: str) -> None:
    """Sizes 1, 5 and 16 in one report: evidence grows with the size; one rollout alone is never informative."""
    client = _run(service, f"sizes-{estimator}", {"estimator": {"name": estimator}})
    answer = client.report_outcomes(0, {"p000": [1.0], "p001": [1.0] * 4 + [0.0], "p002": [1.0] * 12 + [0.0] * 4})
    assert (answer.applied_groups, answer.informative_groups) == (3, 2)
    assert client.get_run().outcome_rollouts == 22
    predictions = client.predict_difficulty()
    weights, errors = predictions.own_weights, predictions.standard_errors
    assert 0 == weights[3] < weights[0] < weights[1] < weights[2]
    assert errors[3] > errors[0] > errors[1] > errors[2]


def test_rollouts_that_never_finished_are_left_out(service: InProcessService) -> None:
    """One aborted rollout of eight: the mean is over seven. All aborted: no update, and the lease is free again."""
    client = _run(service, "aborted", {"cool_down_steps": 0, "reference": {"mode": "NONE"}})
    assert len(client.select_batch(0, 4)) == 4
    completed, aborted = "COMPLETED", "ABORTED"
    before = client.predict_difficulty(["p001", "p003"])
    answer = client.report_outcomes(
        0,
        {"p000": [1, 1, 1, 1, 1, 0, 0, 1], "p001": [0, 0, 0], "p002": [1, 1]},
        statuses={
            "p000": [completed] * 7 + [aborted],
            "p001": [aborted, "UNSCORABLE", aborted],
            "p002": ["TRUNCATED", completed],
        },
    )
    assert (answer.applied_groups, answer.empty_groups, answer.skipped_rollouts) == (2, 1, 4)
    record = client.explain("p000").outcomes[-1]
    assert len(record.outcomes) == 7 and record.difficulty == pytest.approx(2 / 7)
    assert client.explain("p001").outcomes == ()
    # Nothing was learned of p001: it is predicted as p003, which was not reported at all.
    after = client.predict_difficulty(["p001", "p003"])
    assert before.predicted_difficulties[0] == before.predicted_difficulties[1]
    assert after.predicted_difficulties[0] == after.predicted_difficulties[1]
    assert after.own_weights.tolist() == [0.0, 0.0]
    assert client.get_run().pool.leased == 1
    again = client.select_batch(1, 4)
    assert set(again.prompt_ids) == {"p000", "p001", "p002"}
    assert again.shortfall_reason == "LEASED"


def test_a_whole_report_of_aborted_rollouts_frees_its_leases(service: InProcessService) -> None:
    """A step whose generation failed altogether leaves the estimate and its age as they were."""
    client = _run(service, "all-aborted", {"cool_down_steps": 0})
    batch = client.select_batch(3, 4)
    answer = client.report_outcomes(
        3, {p: [0.0] for p in batch.prompt_ids}, statuses={p: ["ABORTED"] for p in batch.prompt_ids}
    )
    assert (answer.applied_groups, answer.empty_groups) == (0, 4)
    predictions = client.predict_difficulty()
    assert predictions.estimate_step == -1 and set(predictions.bases) == {"NONE"}
    assert client.get_run().outcome_groups == 0
    assert set(client.select_batch(4, 4).prompt_ids) == set(batch.prompt_ids)
