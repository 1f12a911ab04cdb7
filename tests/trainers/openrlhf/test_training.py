"""Real trainings: what the service is told, what is trained on and with which loss."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from vllm import SamplingParams

from tests.trainers.openrlhf.tiny import BATCH, GROUP_SIZE, client, config, data, fresh, prompts, trainer
from tests.trainers.service import Service
from trainer_adapters.checks import AdapterError
from trainer_adapters.loss import group_advantages
from trainer_adapters.prompt_pool import content_ids

IDS = dict(zip(prompts(), content_ids(prompts()), strict=True))
# What a row of the batch is, besides its figures.
FIELDS = (
    "sequences",
    "attention_mask",
    "action_mask",
    "rollout_log_probs",
    "rewards",
    "scores",
    "response_length",
    "truncated",
    "total_length",
)


def groups(rows: list[Any]) -> list[list[Any]]:
    """A batch's rows, a group at a time."""
    assert len(rows) % GROUP_SIZE == 0
    return [rows[start : start + GROUP_SIZE] for start in range(0, len(rows), GROUP_SIZE)]


def same(one: Any, other: Any) -> bool:
    """Two rows are of one rollout, shapes and types included."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in FIELDS]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs) and one.prompts == other.prompts


def drawn(batches: list[list[Any]]) -> list[list[list[int]]]:
    """Per batch its rows as token ids."""
    return [[row.sequences[0].tolist() for row in rows] for rows in batches]


def reported(target: str, run_id: str = "openrlhf") -> list[tuple[str, int, tuple[float, ...]]]:
    """What the service was told."""
    with client(target, run_id) as looked:
        return [(row.prompt_id, row.record.step, tuple(row.record.outcomes)) for row in looked.export("outcomes")]


def test_outcomes_of_fresh_rollouts_are_reported_and_whole_groups_replayed(
    service: Service, tmp_path: Path, engine: Any
) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    made.fit()
    assert len(made.batches) == 2 * len(prompts()) // BATCH
    generated = [
        (IDS[group[0].prompts[0]], step, tuple(float(row.scores) for row in group))
        for step, rows in enumerate(made.batches)
        for group in groups(fresh(rows))
    ]
    assert sorted(reported(service.target)) == sorted(generated)
    replays = 0
    for step, rows in enumerate(made.batches):
        assert len(rows) == BATCH * GROUP_SIZE
        asked = [group[0].prompts[0] for group in groups(fresh(rows))]
        assert len(set(asked)) == len(asked) > 0
        earlier = [group for batch in made.batches[:step] for group in groups(fresh(batch))]
        for group in groups(rows):
            assert len({(row.prompts[0], row.info["curriculum/replayed"].item()) for row in group}) == 1
            if group[0].info["curriculum/replayed"] == 1:
                replays += 1
                assert any(all(map(same, group, before)) for before in earlier)
        for row in rows:
            length = row.sequences.size(1)
            assert row.sequences.dtype == row.attention_mask.dtype == torch.int64
            assert row.attention_mask.shape == (1, length)
            assert row.action_mask.shape == row.rollout_log_probs.shape == (1, length - 1)
            assert (row.rollout_log_probs[row.action_mask == 0] == 0).all()
            assert row.info.keys() == rows[0].info.keys()
    assert replays > 0


def test_logged_figures_are_of_fresh_rollouts_where_openrlhf_leaves_them(
    service: Service, tmp_path: Path, engine: Any
) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    made.fit()
    assert any(len(fresh(rows)) < len(rows) for rows in made.batches)
    for rows, logged in zip(made.batches, made.logged, strict=True):
        asked = fresh(rows)
        mean_score = sum(float(row.scores) for row in asked) / len(asked)
        mean_length = sum(float(row.info["length"]) for row in asked) / len(asked)
        mean_reward = sum(float(row.rewards) for row in asked) / len(asked)
        of_all = sum(float(row.rewards) for row in rows) / len(rows)
        assert logged["score"] == pytest.approx(mean_score, abs=1e-6)
        assert logged["length"] == pytest.approx(mean_length, abs=1e-5)
        assert logged["curriculum/fresh_reward"] == pytest.approx(mean_reward, abs=1e-6)
        assert logged["curriculum/replayed"] == pytest.approx(1 - len(asked) / len(rows), abs=1e-6)
        assert logged["curriculum/available"] == 1
        # These OpenRLHF computes anew from the rewards that it trains on.
        assert logged["reward"] == pytest.approx(of_all, abs=1e-6)
        assert logged["rollout/reward_mean"] == pytest.approx(of_all, abs=1e-6)
        assert logged["rollout/num_samples"] == BATCH * GROUP_SIZE


def test_staleness_is_reported_and_logged(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(tmp_path, config(service.target), engine, rollout__micro_batch_size=3)
    made.fit()
    replays = 0
    # The policy's buffer has the rows of a batch in the order that they were drawn in.
    for drawn, trained, logged in zip(made.batches, made.policy.batches, made.logged, strict=True):
        stale = [after for before, after in zip(drawn, trained, strict=True) if before.info["curriculum/replayed"] == 1]
        if not stale:
            assert "curriculum/effective_sample_size" not in logged
            continue
        replays += 1
        weights = [(row.action_log_probs - row.rollout_log_probs)[row.action_mask != 0].double().exp() for row in stale]
        weight = torch.cat(weights)
        size = float(weight.sum() ** 2 / (weight**2).sum() / len(weight))
        assert logged["curriculum/effective_sample_size"] == pytest.approx(size, abs=1e-5)
    assert replays > 1 and weight.min() < weight.max()
    with client(service.target) as looked:
        quality = looked.quality()
    assert quality.effective_sample_size == pytest.approx(size, abs=1e-5)
    assert quality.max_importance_weight == pytest.approx(weight.max().item(), rel=1e-5)


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo"])
def test_the_loss_is_the_papers(service: Service, tmp_path: Path, engine: Any, estimator: str) -> None:
    made = trainer(tmp_path, config(service.target), engine, algo__advantage__estimator=estimator, train__max_epochs=3)
    made.fit()
    losses = made.policy.losses
    assert len(losses) == 3 * len(made.batches)
    for loss in losses:
        assert loss["openrlhf"] == pytest.approx(loss["paper"], abs=1e-6)
        assert loss["gradient"] <= 1e-6
    # Not only where it is easy: stale rows, ratios that are clipped, advantages that are not 0.
    assert max(loss["max_weight"] for loss in losses) > 1.5 and min(loss["min_weight"] for loss in losses) < 0.7
    assert any(logged["ppo_clip_ratio"] > 0 for logged in made.logged)
    assert all(logged["is_filter_ratio"] == 0 for logged in made.logged)
    for rows in made.policy.batches:
        for group in groups(rows):
            rewards = torch.stack([row.rewards for row in group]).double()[None]
            wanted = group_advantages(rewards)[0]
            if estimator == "group_norm":
                wanted = wanted / (rewards.std() + 1e-9)
            for row, advantage in zip(group, wanted, strict=True):
                assert row.advantages[row.action_mask != 0].tolist() == pytest.approx(
                    [float(advantage)] * int(row.action_mask.sum()), abs=1e-5
                )


def test_a_resumed_training_goes_on_exactly(service: Service, tmp_path: Path, engine: Any) -> None:
    whole = trainer(tmp_path, config(service.target), engine, ckpt__save_steps=1)
    whole.fit()
    told = sorted(reported(service.target))
    checkpoints = tmp_path / "checkpoints" / "_actor"
    # In the middle of an episode, and where one has just ended.
    for step in (3, len(prompts()) // BATCH):
        shutil.copy(checkpoints / f"global_step{step}.pt", checkpoints / "latest.pt")
        resumed = trainer(tmp_path, config(service.target), engine, ckpt__load_enable=True)
        resumed.fit()
        assert drawn(resumed.batches) == drawn(whole.batches[step:])
        assert sorted(reported(service.target)) == told


def test_a_checkpoint_without_a_step_is_refused(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    with pytest.raises(RuntimeError, match=r"ckpt.load_enable: expected a checkpoint of a training with the adapter"):
        made.prompts_dataloader.load_state_dict({"_num_yielded": 3})


def test_a_resumed_training_says_that_its_run_is_new(
    service: Service, tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    made.prompts_dataloader.load_state_dict({"curriculum_step": 3, "curriculum_episode_steps": 4})
    made.samples_generator.generate_samples(**made.generate_kwargs)
    assert "run openrlhf is new, although the training goes on at step 3" in caplog.text
    assert {step for _, step, _ in reported(service.target)} == {3}


def test_a_restart_of_the_service_changes_nothing(service: Service, tmp_path: Path, engine: Any) -> None:
    def restart() -> None:
        service.kill()
        service.start()

    undisturbed = trainer(tmp_path / "a", config(service.target, "a"), engine)
    undisturbed.fit()
    disturbed = trainer(tmp_path / "b", config(service.target, "b"), engine, {2: restart, 5: restart})
    disturbed.fit()
    assert drawn(disturbed.batches) == drawn(undisturbed.batches)
    assert sorted(reported(service.target, "a")) == sorted(reported(service.target, "b"))


def test_a_service_that_dies_is_survived_and_told_later(
    service: Service, tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(
        tmp_path,
        config(service.target, timeout_s=2.0, probe_s=4.0),
        engine,
        {2: service.kill, 4: service.start},
    )
    made.fit()
    assert "training goes on with prompts drawn uniformly" in caplog.text
    assert [logged["curriculum/available"] for logged in made.logged] == [1, 1, 0, 0, 1, 1, 1, 1]
    assert made.logged[-1]["curriculum/uniform_selections"] == 2
    assert made.logged[-1]["curriculum/unsent_writes"] == made.logged[-1]["curriculum/dropped_writes"] == 0
    assert all(len(rows) == BATCH * GROUP_SIZE for rows in made.batches)
    assert all(len(fresh(rows)) == BATCH * GROUP_SIZE for rows in made.batches[2:4])
    steps = Counter(step for _, step, _ in reported(service.target))
    assert steps == {step: len(fresh(rows)) // GROUP_SIZE for step, rows in enumerate(made.batches)}
    assert any(len(fresh(rows)) < len(rows) for rows in made.batches[4:])


def test_a_training_that_asks_for_it_ends_with_the_service(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(tmp_path, config(service.target, timeout_s=2.0, on_failure="closed"), engine, {2: service.kill})
    with pytest.raises(ConnectionError):
        made.fit()
    assert len(made.batches) == 2


def test_dedicated_references_are_rolled_out_apart(service: Service, tmp_path: Path, engine: Any) -> None:
    run = {"reference": {"mode": "DEDICATED", "size": 9, "every_steps": 2}}
    made = trainer(tmp_path, config(service.target, run=run), engine, train__num_episodes=1)
    made.fit()
    with client(service.target) as looked:
        purposes = Counter((row.record.step, row.record.purpose) for row in looked.export("outcomes"))
    assert [purposes[(step, "REFERENCE")] for step in range(4)] == [9, 0, 9, 0]
    assert all(len(rows) == BATCH * GROUP_SIZE for rows in made.batches)
    assert sum(count for (_, purpose), count in purposes.items() if purpose == "TRAIN") == sum(
        len(fresh(rows)) // GROUP_SIZE for rows in made.batches
    )


def test_evaluation_is_left_alone(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(
        tmp_path,
        config(service.target),
        engine,
        train__num_episodes=1,
        eval__dataset=data(tmp_path, [("0=", "0"), ("1=", "1")], "evaluation"),
        eval__steps=2,
        eval__n_samples_per_prompt=2,
    )
    made.fit()
    assert made.best_eval_metric_key == "eval_default_pass1"
    with client(service.target) as looked:
        assert looked.get_run().selections == len(made.batches) == 4
    assert len(reported(service.target)) == sum(len(fresh(rows)) // GROUP_SIZE for rows in made.batches)


def test_without_replay_nothing_of_the_loss_is_asked_for(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(
        tmp_path,
        config(service.target, replay=False),
        engine,
        algo__advantage__is_correction_level="off",
        algo__advantage__estimator="rloo",
        actor__policy_loss_type="gspo",
        train__num_episodes=1,
        # The policy of these tests compares losses, and this is another one.
        train__max_epochs=0,
    )
    made.fit()
    assert all(len(fresh(rows)) == len(rows) == BATCH * GROUP_SIZE for rows in made.batches)
    with client(service.target) as looked:
        assert looked.get_run().replay_groups == 0
    assert len(reported(service.target)) == BATCH * len(made.batches)


def test_prompts_of_the_same_text_keep_their_labels(service: Service, tmp_path: Path, engine: Any) -> None:
    rows = [("0=", "0"), ("0=", "1"), ("1=", "1"), ("2=", "2"), ("0=", "2"), ("3=", "3")]
    made = trainer(
        tmp_path, config(service.target), engine, train__num_episodes=1, data__prompt_dataset=data(tmp_path, rows)
    )
    made.fit()
    (batch,) = made.batches
    ids = content_ids([prompt for prompt, _ in rows])
    labels = {prompt_id: label for prompt_id, (_, label) in zip(ids, rows, strict=True)}
    told = {prompt_id: outcomes for prompt_id, _, outcomes in reported(service.target)}
    assert told.keys() == labels.keys()
    by_label: dict[tuple[str, str], list[Any]] = {}
    for group in groups(batch):
        by_label[(group[0].prompts[0], group[0].labels[0])] = group
    for prompt_id, (prompt, label) in zip(ids, rows, strict=True):
        assert told[prompt_id] == tuple(float(row.scores) for row in by_label[(prompt, label)])


def test_rewards_may_be_lists(service: Service, tmp_path: Path, engine: Any) -> None:
    rows = [(prompt, f"listed {prompt[0]}" if index % 2 else prompt[0]) for index, prompt in enumerate(prompts())]
    made = trainer(tmp_path, config(service.target), engine, data__prompt_dataset=data(tmp_path, rows))
    made.fit()
    assert sum(len(batch) - len(fresh(batch)) for batch in made.batches) > 0
    told = {(prompt_id, step): outcomes for prompt_id, step, outcomes in reported(service.target)}
    for step, batch in enumerate(made.batches):
        assert {row.rewards.shape for row in batch} == {row.scores.shape for row in batch} == {(1,)}
        for group in groups(fresh(batch)):
            assert told[(IDS[group[0].prompts[0]], step)] == tuple(float(row.scores) for row in group)


def test_a_checkpoint_of_another_batch_size_is_refused(service: Service, tmp_path: Path, engine: Any) -> None:
    trainer(tmp_path, config(service.target), engine, ckpt__save_steps=1, train__num_episodes=1).fit()
    changes = {"rollout__batch_size": 2 * BATCH, "train__batch_size": 2 * BATCH * GROUP_SIZE}
    resumed = trainer(tmp_path, config(service.target), engine, ckpt__load_enable=True, **changes)
    with pytest.raises(AdapterError, match="steps of an episode: expected 4, got 2"):
        resumed.fit()


def test_a_rollout_without_a_score_is_said_to_be_unscorable(service: Service, tmp_path: Path, engine: Any) -> None:
    rows = [(prompt, "unknown" if prompt == "3=" else prompt[0]) for prompt in prompts(12)]
    made = trainer(
        tmp_path,
        config(service.target),
        engine,
        train__num_episodes=1,
        rollout__batch_size=12,
        train__batch_size=12 * GROUP_SIZE,
        train__micro_batch_size=12 * GROUP_SIZE,
        data__prompt_dataset=data(tmp_path, rows),
    )
    made.fit()
    unknown = IDS["3="]
    scored = {IDS[prompt] for prompt, _ in rows} - {unknown}
    assert {prompt_id for prompt_id, *_ in reported(service.target)} == scored
    assert made.logged[0]["curriculum/unscored_groups"] == 1


def test_the_outcome_may_be_a_figure_of_the_reward_function(service: Service, tmp_path: Path, engine: Any) -> None:
    run = {"outcome_range": [0.0, 16.0]}
    made = trainer(tmp_path, config(service.target, outcome=["none", "length"], run=run), engine, train__num_episodes=1)
    made.fit()
    told = {(prompt_id, step): outcomes for prompt_id, step, outcomes in reported(service.target)}
    for step, rows in enumerate(made.batches):
        for group in groups(fresh(rows)):
            # The service tells them mapped to [0, 1].
            assert told[(IDS[group[0].prompts[0]], step)] == tuple(float(row.info["length"]) / 16 for row in group)


def test_engines_that_sleep_are_woken_for_every_batch(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(
        tmp_path,
        config(service.target),
        engine,
        vllm__enable_sleep=True,
        train__colocate_all=True,
        train__num_episodes=1,
    )
    try:
        made.fit()
        assert len(made.batches) == 4
        made.samples_generator._rolled_out([IDS["0="]], made.generate_kwargs)
        with pytest.raises(AssertionError):
            ray.get(engine.generate.remote([4], SamplingParams(max_tokens=1)))
    finally:
        ray.get(engine.wake_up.remote())
