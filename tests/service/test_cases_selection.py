"""How a run is steered: targets, repeated calls, the uniform arm, slow rollouts, bias, and overdue references."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from clients import InvalidArgument
from selector.v1 import selector_service_pb2 as pb
from tests.service.running import InProcessService
from tests.service.trainer import group_of, noise, outcomes_of, prompts, scraped, selection_bytes


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"), metrics_listen="127.0.0.1:0")
    yield running
    running.close()


def test_where_no_prompt_is_on_target_the_nearest_are_taken(service: InProcessService) -> None:
    """All prompts are far too hard; the least hard ones are selected, and their predictions say how hard they are."""
    client = service.client("off-target")
    client.create_run(
        {
            "score": "NEAR_TARGET",
            "estimator": {"name": "TRACKER", "tracker_decay": 1.0},
            "reference": {"mode": "NONE"},
            "cool_down_steps": 0,
        }
    )
    ids = prompts(8)
    client.register_prompts(ids)
    # Prompt i succeeds i times in 100: difficulties from 0.92 to 0.99.
    client.report_outcomes(0, {prompt_id: [1.0] * i + [0.0] * (100 - i) for i, prompt_id in enumerate(ids)})
    batch = client.select_batch(1, 3)
    assert set(batch.prompt_ids) == set(ids[-3:]) and batch.shortfall == 0
    expected = {prompt_id: 1 - (1 + i) / 102 for i, prompt_id in enumerate(ids)}
    assert batch.predicted_difficulties == pytest.approx([expected[prompt_id] for prompt_id in batch.prompt_ids])
    assert set(batch.arms) == {"TARGETED"}


def test_a_selection_is_made_once_and_answered_in_the_same_bytes(own_service: InProcessService) -> None:
    """Step 7 is asked for again with the same request id, with another, with none, and after a restart."""
    client = own_service.client("again")
    client.create_run({"seed": 9})
    client.register_prompts(prompts(30))
    for step in range(7):
        batch = client.select_batch(step, 6)
        client.report_outcomes(step, outcomes_of(batch.prompt_ids, step))

    def asked(**changes: object) -> bytes:
        fields = {"run_id": "again", "step": 7, "batch_size": 6, **changes}
        return selection_bytes(own_service.address, pb.SelectBatchRequest(**fields))  # type: ignore[arg-type]

    first = asked(request_id="mine")
    assert len(pb.SelectBatchResponse.FromString(first).prompt_ids) == 6
    state = client.get_run()
    # What is reported in between changes the estimate, but not what was answered.
    chosen = pb.SelectBatchResponse.FromString(first).prompt_ids
    client.report_outcomes(7, outcomes_of(chosen, 7))
    assert asked(request_id="mine") == asked(request_id="other") == asked() == first
    assert asked(purpose=pb.PURPOSE_TRAIN) == asked(shard=pb.Shard(index=0, count=1)) == first
    own_service.restart()
    assert asked(request_id="mine") == asked() == first
    client = own_service.client("again")
    assert client.get_run().selections == state.selections == 8
    assert [record.step for record in client.explain(chosen[0]).selections].count(7) == 1
    # Other arguments are another question.
    for changes in ({"batch_size": 5}, {"fresh_only": True}, {"exclude_prompt_ids": ["p000"]}):
        with pytest.raises(grpc.RpcError) as refused:
            asked(**changes)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(InvalidArgument) as reused:
        client.select_batch(8, 6, request_id="mine")
    assert reused.value.reason == "REQUEST_ID_REUSED"
    assert len(client.select_batch(7, 2, round=1)) == 2


def test_the_uniform_arm_has_its_share_and_both_arms_are_measured(service: InProcessService) -> None:
    """With fraction 0.1, a tenth of all picks over 100 steps is tagged UNIFORM, with the chance of a uniform draw."""
    client = service.client("uniform-share")
    client.create_run({"reference": {"fraction": 0.1}, "cool_down_steps": 2, "seed": 1})
    client.register_prompts(prompts(60))
    arms: Counter[str] = Counter()
    informative: Counter[str] = Counter()
    for step in range(100):
        batch = client.select_batch(step, 8)
        uniform = batch.probabilities[np.array(batch.arms) == "UNIFORM"]
        assert set(uniform) <= {len(uniform) / 60}
        arms.update(batch.arms)
        outcomes = outcomes_of(batch.prompt_ids, step)
        for prompt_id, arm in zip(batch.prompt_ids, batch.arms, strict=True):
            informative[arm] += len(set(outcomes[prompt_id])) > 1
        client.report_outcomes(step, outcomes)
    assert arms.total() == 800
    assert arms["UNIFORM"] / 800 == pytest.approx(0.1, abs=0.02)
    measured = {arm.arm: arm for arm in client.quality().arms}
    for name in ("TARGETED", "UNIFORM"):
        assert measured[name].groups == arms[name]
        assert measured[name].informative_ratio == pytest.approx(informative[name] / arms[name])
    figures = scraped(service.metrics_address, "uniform-share")
    for name in ("targeted", "uniform"):
        expected = informative[name.upper()] / arms[name.upper()]
        assert figures["selector_informative_ratio", name] == pytest.approx(expected)


def test_prompts_with_slow_rollouts_get_their_share(service: InProcessService) -> None:
    """Half of the prompts report and push four steps late, and are selected and replayed as often as the others."""
    client = service.client("slow")
    client.create_run({"seed": 6, "replay": {"capacity_groups": 64, "fresh_fraction": 1.0, "max_age_steps": 0}})
    ids = prompts(96)
    slow = set(ids[::2])
    client.register_prompts(ids)
    delay, steps = 4, 70
    pending: dict[int, list[tuple[int, str]]] = defaultdict(list)
    selected: Counter[bool] = Counter()
    replayed: Counter[bool] = Counter()
    rolled_out = late = 0
    for step in range(steps + delay + 1):
        if step < steps:
            batch = client.select_batch(step, 6)
            assert len(batch) == 6
            selected.update(prompt_id in slow for prompt_id in batch.prompt_ids)
            for prompt_id in batch.prompt_ids:
                pending[step + (delay if prompt_id in slow else 0)].append((step, prompt_id))
        arrived: dict[int, list[str]] = defaultdict(list)
        for version, prompt_id in pending.pop(step, []):
            arrived[version].append(prompt_id)
        for version, finished in sorted(arrived.items()):
            # Every prompt is as hard as every other.
            outcomes = {p: (noise(version, p).random(4) < 0.5).astype(float).tolist() for p in finished}
            assert client.report_outcomes(version, outcomes).applied_groups == len(finished)
            pushed = client.push_rollouts(step, [group_of(p, version, outcomes[p]) for p in finished])
            assert pushed.stored + pushed.uninformative == len(finished)
            rolled_out += len(finished)
            late += len(finished) if version < min(step, steps - 1) else 0
        if 20 <= step < steps:
            replayed.update(group.prompt_id in slow for group in client.sample_rollouts(step, 8))
    # 420 selections and 400 samples: two standard deviations are less than 0.05 of either.
    assert selected[True] / selected.total() == pytest.approx(0.5, abs=0.05)
    assert replayed[True] / replayed.total() == pytest.approx(0.5, abs=0.07)
    # Nothing was dropped for being late, and all of it was counted.
    assert rolled_out == client.get_run().outcome_groups == 6 * steps
    figures = scraped(service.metrics_address, "slow")
    assert figures["selector_late_groups_total", ""] == late > 200
    assert figures["selector_open_leases", ""] == 0


def test_the_populations_success_rate_is_told_beside_a_batch_reward_that_selection_moved(
    service: InProcessService,
) -> None:
    """The policy does not change; targeting lifts the batch's mean, and only the uniform arm shows the truth."""
    client = service.client("bias")
    client.create_run({"reference": {"fraction": 0.25}, "cool_down_steps": 2, "score_temperature": 0.2, "seed": 2})
    ids = prompts(80)
    # Most prompts are out of reach, a quarter is half solved: 0.14 on average.
    rates = {prompt_id: 0.5 if i % 4 == 0 else 0.02 for i, prompt_id in enumerate(ids)}
    truth = float(np.mean(list(rates.values())))
    client.register_prompts(ids)
    rewards = []
    for step in range(60):
        batch = client.select_batch(step, 12)
        outcomes = {p: (noise(step, p).random(8) < rates[p]).astype(float).tolist() for p in batch.prompt_ids}
        rewards.append(float(np.mean(list(outcomes.values()))))
        client.report_outcomes(step, outcomes)
    # 180 uniform groups: the standard error is 0.017.
    rate = client.quality().population_success_rate
    assert rate == pytest.approx(truth, abs=0.05)
    assert np.mean(rewards[30:]) > truth + 0.12
    assert np.mean(rewards[30:]) > np.mean(rewards[:5])
    assert scraped(service.metrics_address, "bias")["selector_population_success_ratio", ""] == rate


def test_selection_goes_on_while_references_are_overdue(service: InProcessService) -> None:
    """References that never come stay due, the age of the estimate grows, and prompts are selected from history."""
    client = service.client("overdue")
    client.create_run({"preset": "PAPER", "reference": {"size": 10, "every_steps": 2}, "lease_steps": 2})
    ids = prompts(40)
    client.register_prompts(ids, embeddings=noise("overdue").normal(size=(40, 8)))
    assert client.get_run().reference_due
    # None yet: everything is equally likely, and training goes on.
    first = client.select_batch(0, 8)
    assert len(first) == 8 and first.reference_due and set(first.predicted_difficulties) == {0.5}
    references = client.select_batch(1, purpose="reference")
    assert (len(references), set(references.arms)) == (10, {"UNIFORM"})
    client.report_outcomes(1, outcomes_of(references.prompt_ids, 1), purpose="reference")
    assert not client.get_run().reference_due
    assert [client.select_batch(step, 8).reference_due for step in (1, 2)] == [False, True]
    history = client.predict_difficulty()
    assert len(set(history.predicted_difficulties)) > 1
    for step in range(3, 12):
        batch = client.select_batch(step, 8)
        assert len(batch) == 8 and batch.shortfall == 0
        assert batch.reference_due and batch.estimate_step == 1
        # By difficulty, not merely whatever is left over.
        assert set(batch.arms) == {"TARGETED"}
        figures = scraped(service.metrics_address, "overdue")
        assert figures["selector_reference_due", ""] == 1
        assert figures["selector_estimate_age_steps", ""] == step - 1
    assert client.quality().estimate_age_steps == 10
    # Late references count, for the step they were drawn at.
    late = client.select_batch(10, purpose="reference")
    client.report_outcomes(10, outcomes_of(late.prompt_ids, 10), purpose="reference")
    assert client.predict_difficulty().estimate_step == 10
    assert client.select_batch(12, 8).estimate_step == 10
