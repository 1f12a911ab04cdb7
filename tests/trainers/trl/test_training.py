"""Real trainings: what the service is told and what is trained on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.service import Service
from tests.trainers.trl.recording import AtStep, Recording
from tests.trainers.trl.tiny import GROUP_SIZE, FirstDigit, client, config, prompts, trainer
from trainer_adapters.prompt_pool import content_ids

IDS = dict(zip(prompts(), content_ids(prompts()), strict=True))


def test_outcomes_of_fresh_rollouts_are_reported_and_groups_replayed(service: Service, tmp_path: Path) -> None:
    reward = FirstDigit()
    made = trainer(tmp_path, config(service.target), reward, Recording, max_steps=8)
    made.train()
    with client(service.target) as looked:
        run = looked.get_run()
        reported = [(row.prompt_id, row.record.step, tuple(row.record.outcomes)) for row in looked.export("outcomes")]
    generated = [
        (IDS[prompt], step, tuple(score for asked, score in batch if asked == prompt))
        for step, (batch, asked_for) in enumerate(zip(reward.batches, reward.prompts, strict=True))
        for prompt in asked_for
    ]
    assert sorted(reported) == sorted(generated)
    assert run.last_step == 7 and run.selections == 8
    replayed = [len(groups) for groups in made.replayed]
    assert sum(replayed) > 0
    for step, (rows, groups, fresh) in enumerate(zip(made.trained, made.replayed, reward.prompts, strict=True)):
        assert len(rows["completion_ids"]) == 6 * GROUP_SIZE
        assert len(fresh) + len(groups) == 6
        # What is replayed was generated before, by this training, and is whole.
        for group in groups:
            assert len(group) == GROUP_SIZE and 0 <= group.policy_version < step
            assert (group.prompt_id, group.policy_version, tuple(group.outcomes)) in generated
    # TRL's own reward is of fresh rollouts alone.
    for logged, batch in zip(
        (each for each in made.state.log_history if "reward" in each), reward.batches, strict=True
    ):
        assert logged["reward"] == pytest.approx(sum(score for _, score in batch) / len(batch), abs=1e-6)
    figures = [each for each in made.state.log_history if "curriculum/replayed_groups" in each]
    assert [figure["curriculum/replayed_groups"] for figure in figures] == replayed
    assert all(figure["curriculum/available"] == 1 for figure in figures)


def test_no_prompt_is_twice_among_the_fresh_of_a_batch(service: Service, tmp_path: Path) -> None:
    reward = FirstDigit()
    trainer(tmp_path, config(service.target), reward).train()
    for batch in reward.batches:
        assert set(Counter(prompt for prompt, _ in batch).values()) == {GROUP_SIZE}


def test_a_resumed_training_goes_on_exactly(service: Service, tmp_path: Path) -> None:
    whole = FirstDigit()
    trainer(tmp_path, config(service.target), whole, max_steps=8, save_strategy="steps", save_steps=4).train()
    resumed = FirstDigit()
    again = trainer(tmp_path, config(service.target), resumed, max_steps=8)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.batches == whole.batches[4:]


def test_a_restart_of_the_service_changes_nothing(service: Service, tmp_path: Path) -> None:
    def restart() -> None:
        service.kill()
        service.start()

    undisturbed, disturbed = FirstDigit(), FirstDigit()
    trainer(tmp_path / "a", config(service.target, "a"), undisturbed).train()
    made = trainer(tmp_path / "b", config(service.target, "b"), disturbed, callbacks=[AtStep({2: restart, 4: restart})])
    made.train()
    assert disturbed.batches == undisturbed.batches


def test_a_service_that_dies_is_survived_and_told_later(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reward = FirstDigit()
    made = trainer(
        tmp_path,
        config(service.target, timeout_s=6.0, probe_s=3.0),
        reward,
        callbacks=[AtStep({2: service.kill, 5: service.start})],
        max_steps=8,
    )
    made.train()
    assert "training goes on with prompts drawn uniformly" in caplog.text
    last = made.state.log_history[-2]
    assert 3 <= last["curriculum/uniform_selections"] < 8
    assert last["curriculum/unsent_writes"] == last["curriculum/dropped_writes"] == 0
    with client(service.target) as looked:
        steps = Counter(row.record.step for row in looked.export("outcomes"))
        replayed = looked.get_run().replay_groups
    assert steps == {step: len(fresh) for step, fresh in enumerate(reward.prompts)}
    assert replayed > 0


def test_a_training_that_asks_for_it_ends_with_the_service(service: Service, tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        config(service.target, timeout_s=2.0, on_failure="closed"),
        FirstDigit(),
        callbacks=[AtStep({2: service.kill})],
    )
    with pytest.raises(ConnectionError):
        made.train()
    assert made.state.global_step == 2


def test_dedicated_references_are_rolled_out_apart(service: Service, tmp_path: Path) -> None:
    reward = FirstDigit()
    run = {"reference": {"mode": "DEDICATED", "size": 9, "every_steps": 2}}
    made = trainer(tmp_path, config(service.target, run=run), reward, max_steps=4)
    made.train()
    with client(service.target) as looked:
        purposes = Counter((row.record.step, row.record.purpose) for row in looked.export("outcomes"))
    assert [purposes[(step, "REFERENCE")] for step in range(4)] == [9, 0, 9, 0]
    # Six groups at a time; the second part of a pass is filled up, and only three of its groups count.
    assert [len(asked) for asked in reward.prompts if len(asked) == 3][:1] == [3]
    assert all(each["reward"] <= 1 for each in made.state.log_history if "reward" in each)


def test_each_domain_may_have_a_score_of_its_own(service: Service, tmp_path: Path) -> None:
    def odd(prompts: list[str], **kwargs: Any) -> list[float | None]:
        return [1.0 if int(prompt[0]) % 2 else None for prompt in prompts]

    def even(prompts: list[str], **kwargs: Any) -> list[float | None]:
        return [None if int(prompt[0]) % 2 or prompt[0] == "2" else 0.25 for prompt in prompts]

    rewards = [odd, even]
    made = trainer(tmp_path, config(service.target, outcome=["odd", "even"]), rewards, Recording, max_steps=4)
    made.train()
    with client(service.target) as looked:
        told = {row.prompt_id: set(row.record.outcomes) for row in looked.export("outcomes")}
    names = {prompt_id: prompt for prompt, prompt_id in IDS.items()}
    assert {names[prompt_id][0]: values for prompt_id, values in told.items()} == {"0": {0.25}, "1": {1.0}, "3": {1.0}}
    # Those that no function scores count nowhere, and are counted.
    assert made.state.log_history[-2]["curriculum/unscored_groups"] > 0


def test_evaluation_is_left_alone(service: Service, tmp_path: Path) -> None:
    from datasets import Dataset

    reward = FirstDigit()
    made = trainer(tmp_path, config(service.target), reward, max_steps=2, per_device_eval_batch_size=2 * GROUP_SIZE)
    made.train()
    before = len(reward.batches)
    made.evaluate(Dataset.from_dict({"prompt": ["0=", "1="]}))
    assert {prompt for batch in reward.batches[before:] for prompt, _ in batch} == {"0=", "1="}
    with client(service.target) as looked:
        assert looked.get_run().selections == 2
