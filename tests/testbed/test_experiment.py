"""The training loop through the real service: what is counted, reported, replayed and left to the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from selector.testbed.arms import DEFAULT, ORACLE, UNIFORM, Arm
from selector.testbed.experiment import ExperimentConfig, run_arm
from selector.testbed.oracle import OracleSelector
from selector.testbed.policy import Policy
from selector.testbed.record import ArmRun
from selector.testbed.tasks import PromptSets, make_prompt_sets
from tests.service.running import InProcessService

SELECTING = Arm("selecting", "The defaults without replay.")
CONFIG = ExperimentConfig(steps=4, batch_groups=8, evaluate_every=2, measure_pool_every=2)
SHORT = make_prompt_sets(0, training=1080, held_out=36)
SETS = PromptSets(tuple(p for p in SHORT.training if p.level == 1)[:60], SHORT.held_out)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("service") / "state")
    yield running
    running.close()


def trained(service: InProcessService, base: Policy, arm: Arm, run_id: str) -> ArmRun:
    return run_arm(service.client(run_id), base, SETS, arm, 0, CONFIG)


def test_the_service_saw_what_the_record_says(service: InProcessService, base: Policy) -> None:
    done = trained(service, base, SELECTING, "seen")
    client = service.client("seen")
    run, quality = client.get_run(), client.quality()
    assert done.rollouts == run.outcome_rollouts == 4 * 8 * 8
    assert done.generated_groups == quality.generated_groups == 32
    assert quality.informative_per_generated == pytest.approx(done.informative_share)
    assert run.pool.selected / 60 == done.coverage
    assert [e.step for e in done.evaluations] == [0, 2, 4]
    assert [e.rollouts for e in done.evaluations] == [0, 128, 256]
    selected = [row.record.predicted_difficulty for row in client.export("selections")]
    assert done.predicted == pytest.approx(selected)
    assert done.pool_correlation is not None
    assert done.effective_sample_size == ()


def test_the_same_seed_gives_the_same_training(service: InProcessService, base: Policy) -> None:
    one, two = (trained(service, base, UNIFORM, run_id) for run_id in ("twin-1", "twin-2"))
    assert [e.accuracy for e in one.evaluations] == [e.accuracy for e in two.evaluations]
    np.testing.assert_array_equal(one.true, two.true)


def test_replay_halves_the_fresh_rollouts_once_the_buffer_is_full_enough(
    service: InProcessService, base: Policy
) -> None:
    done = trained(service, base, DEFAULT, "replaying")
    replayed = len(done.effective_sample_size)
    assert replayed >= 2
    assert done.rollouts == (done.steps * 8 - replayed * 4) * 8
    # As many rollouts as without replay, in more steps, and measured after as many.
    assert done.steps > 4 and 256 <= done.rollouts < 256 + 64
    assert [e.rollouts for e in done.evaluations[:2]] == [0, 128]
    assert all(0 < size <= 1 for size in done.effective_sample_size)
    quality = service.client("replaying").quality()
    assert quality.effective_sample_size == pytest.approx(done.effective_sample_size[-1])


def test_smaller_batches_take_more_steps_for_as_many_rollouts(service: InProcessService, base: Policy) -> None:
    arm = Arm("small", "Half of a batch.", {"preset": "UNIFORM"}, batch_share=0.5)
    done = trained(service, base, arm, "small")
    assert (done.steps, done.rollouts, done.generated_groups) == (8, 256, 32)
    assert [e.step for e in done.evaluations] == [0, 4, 8]


def test_the_oracle_chooses_by_itself_and_still_reports(service: InProcessService, base: Policy) -> None:
    done = trained(service, base, ORACLE, "oracle")
    run = service.client("oracle").get_run()
    assert (run.selections, run.outcome_groups) == (0, 32)
    np.testing.assert_allclose(done.predicted, done.true, atol=1e-6)
    assert done.pool_correlation is None


def test_the_oracle_prefers_prompts_that_teach_and_lets_them_rest() -> None:
    difficulty = np.tile([0.0001, 0.6, 0.9999], 400)
    oracle = OracleSelector(len(difficulty), seed=3)
    first = oracle.choose(difficulty, 64, 0)
    second = oracle.choose(difficulty, 64, 1)
    assert len(set(first)) == len(first) == 64
    for chosen in (first, second):
        assert np.mean(difficulty[chosen] == 0.6) > 0.8
    # Only the uniform share may come back during the cool-down.
    assert len(set(first) & set(second)) <= 8


@pytest.mark.slow
def test_a_custom_loop_learns_at_least_as_much_from_selected_prompts(service: InProcessService, base: Policy) -> None:
    sets = make_prompt_sets(0, training=1024, held_out=256)
    config = ExperimentConfig(steps=90, evaluate_every=10, measure_pool_every=90)
    reached: dict[str, list[float]] = {"uniform": [], "default": []}
    for seed in (0, 1):
        for arm in (UNIFORM, DEFAULT):
            done = run_arm(service.client(f"{arm.name}-{seed}"), base, sets, arm, seed, config)
            assert 0 <= done.rollouts - 90 * 64 * 8 < 64 * 8
            reached[arm.name].append(float(np.mean([each.accuracy for each in done.evaluations[-3:]])))
    assert sum(reached["default"]) >= sum(reached["uniform"]), reached
