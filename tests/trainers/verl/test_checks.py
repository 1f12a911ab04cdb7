"""What would silently train something else ends with an error that names it."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.config import validate_config
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from clients import AlreadyExists, DeadlineExceeded, NotFound, RolloutGroup, Unavailable
from tests.trainers.service import Service
from tests.trainers.verl.tiny import (
    GROUP_SIZE,
    PROMPTS,
    Trainer,
    client,
    config,
    data_files,
    documented_overrides,
    trainer,
)
from trainer_adapters.checks import AdapterError
from trainer_adapters.prompt_pool import content_ids
from trainer_adapters.verl import SnapshotCallback, classes
from trainer_adapters.verl.rows import check_fields, fresh_groups, with_replayed
from trainer_adapters.verl.start import check_reference_passes, sampling_settings

NOWHERE = "127.0.0.1:9"
CORRECTION = "algorithm.rollout_correction"
SAMPLER = "trainer.v1.sampler"


@pytest.mark.parametrize(
    "override, named",
    [
        (f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.rollout_is: expected 'token', got None"),
        (f"{CORRECTION}.rollout_is=sequence", f"{CORRECTION}.rollout_is: expected 'token', got 'sequence'"),
        (f"{CORRECTION}.rollout_is_threshold=2.0", f"{CORRECTION}.rollout_is_threshold: expected 1e6 or more, got 2.0"),
        (f"{CORRECTION}.rollout_is_threshold='0.5_5.0'", f"{CORRECTION}.rollout_is_threshold: expected 1e6 or more"),
        (f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.bypass_mode: expected False, got True"),
        (f"{CORRECTION}.rollout_is_batch_normalize=true", f"{CORRECTION}.rollout_is_batch_normalize: expected False"),
        (f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs: expected None, got 'token_k1'"),
        ("actor_rollout_ref.actor.clip_ratio_c=3.0", "actor.clip_ratio_c: expected 1e6 or more, got 3.0"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "loss_mode: expected 'vanilla', got 'gspo'"),
        ("actor_rollout_ref.rollout.calculate_log_probs=false", "calculate_log_probs: expected True, got False"),
        ("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_p: expected 1.0, got 0.9"),
        ("actor_rollout_ref.rollout.top_k=20", "actor_rollout_ref.rollout.top_k: expected -1 or 0, got 20"),
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator: expected 'grpo', got 'gae'"),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.enable: expected False, got True"),
        ("data.dataloader_num_workers=8", "data.dataloader_num_workers: expected 0, got 8"),
        ("data.gen_batch_size=null", "data.gen_batch_size: expected 1, got None"),
        ("data.custom_cls.path=/adapters/verl.py", "data.custom_cls.path: expected pkg://trainer_adapters.verl"),
        (f"{SAMPLER}.custom_sampler.path=verl.py", f"{SAMPLER}.custom_sampler.path: expected pkg://trainer_adapters"),
        ("trainer.v1.trainer_mode=colocate_async", "name: expected 'ServiceReplayBufferAsync', got"),
        (f"{SAMPLER}.sync_refill_failed_groups=true", f"{SAMPLER}.sync_refill_failed_groups: expected False, got True"),
        ("trainer.val_only=true", "trainer.val_only: expected False, got True"),
        ("trainer.total_training_steps=null", "trainer.total_training_steps: expected a number, got None"),
        ("reward.reward_model.enable=true", "reward.reward_model.enable_resource_pool: expected True, got False"),
        (
            "actor_rollout_ref.rollout={temperature: 0.6, logprobs_mode: raw_logprobs}",
            "rollout.logprobs_mode: expected",
        ),
        ("+data.curriculum.targets=x", "curriculum.targets: no such setting (did you mean 'target'?)"),
        ("~data.curriculum", "data.curriculum: expected target and run_id"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(tmp_path: Path, override: str, named: str) -> None:
    # The callback is what verl makes first; no service is needed to tell.
    with pytest.raises(AdapterError) as caught:
        Trainer(config(tmp_path, NOWHERE, "run", override))
    assert named in str(caught.value)


@pytest.mark.parametrize("override", ["{CORRECTION}.rollout_is=null", "actor_rollout_ref.actor.clip_ratio_c=3.0"])
def test_the_loss_of_a_training_without_replay_is_the_users(tmp_path: Path, override: str) -> None:
    Trainer(config(tmp_path, NOWHERE, "run", "+data.curriculum.replay=false", override.format(CORRECTION=CORRECTION)))


@pytest.mark.parametrize("installed", ["0.8.0", "0.9.0", "0.10.0"])
def test_another_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    composed = config(tmp_path, NOWHERE)
    monkeypatch.setattr(metadata, "version", lambda package: installed)
    with pytest.raises(AdapterError, match=r"verl: expected verl >= 0\.9\.1, < 0\.10, got " + installed):
        SnapshotCallback(composed)


def test_a_hook_that_moved_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = config(tmp_path, NOWHERE)
    monkeypatch.setattr(ReplayBuffer, "sample", lambda self, global_steps, batch_size: None)
    with pytest.raises(AdapterError, match=r"ReplayBuffer.sample: expected the parameters"):
        SnapshotCallback(composed)


@pytest.mark.parametrize(
    "override, named",
    [
        ("trainer.checkpoint_callback_class=null", "expected trainer.checkpoint_callback_class=trainer_adapters.verl."),
        (f"{SAMPLER}.sampler_kwargs.run_id=other", "run 'other': expected"),
    ],
)
def test_all_three_classes_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, named: str
) -> None:
    monkeypatch.setattr(classes, "_TRAININGS", {})
    with pytest.raises(AdapterError) as caught:
        Trainer(config(tmp_path, NOWHERE, "run", override))
    assert named in str(caught.value)


def test_verls_own_data_set_is_refused(tmp_path: Path) -> None:
    own = "data.custom_cls={path: 'pkg://verl.utils.dataset', name: RLHFDataset}"
    with pytest.raises(AdapterError, match=r"data.custom_cls: expected .* or a subclass, got RLHFDataset"):
        Trainer(config(tmp_path, NOWHERE, "run", own))


def test_a_service_that_cannot_be_reached_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises((Unavailable, DeadlineExceeded)):
        trainer(config(tmp_path, NOWHERE, "run", "data.curriculum.timeout_s=1"))


@pytest.mark.parametrize(
    "override, named",
    [
        ("+data.curriculum.run.sampling.temperature=0.6", "curriculum.run.sampling.temperature: the run says 0.6"),
        ("+data.curriculum.run.sampling.top_p=0.9", "curriculum.run.sampling.top_p: the run says 0.9, the trainer 1.0"),
        ("+data.curriculum.run.sampling.top_k=20", "curriculum.run.sampling.top_k: the run says 20, the trainer 0"),
        ("+data.curriculum.run.group_size=8", f"curriculum.run.group_size: the run says 8, the trainer {GROUP_SIZE}"),
        ("trainer.total_epochs=0", "trainer.total_epochs: expected at least 1, got 0"),
        ("data.train_batch_size=30", f"data.train_files: expected at least the 60 prompts of a batch, got {PROMPTS}"),
    ],
)
def test_what_the_run_and_verl_must_agree_on(
    shared: Service, run_id: str, tmp_path: Path, override: str, named: str
) -> None:
    with pytest.raises(AdapterError) as caught:
        trainer(config(tmp_path, shared.target, run_id, override))
    assert named in str(caught.value)


def test_another_temperature_than_the_runs_is_refused_when_resuming(
    shared: Service, run_id: str, tmp_path: Path
) -> None:
    trainer(config(tmp_path, shared.target, run_id))
    with pytest.raises(AlreadyExists, match="temperature"):
        trainer(config(tmp_path, shared.target, run_id, "actor_rollout_ref.rollout.temperature=0.6"))


@pytest.mark.parametrize(
    "override, named",
    [
        ("trainer.test_freq=3", "trainer.test_freq: expected 2, got 3"),
        ("trainer.val_before_train=false", "trainer.val_before_train: expected True, got False"),
        ("trainer.save_freq=3", "trainer.save_freq: expected a multiple of the run's reference.every_steps (2), got 3"),
        ("data.val_files=other.parquet", "data.val_files: expected"),
        ("actor_rollout_ref.rollout.val_kwargs.n=1", "val_kwargs.n: expected at least 2, got 1"),
        ("actor_rollout_ref.rollout.val_kwargs.do_sample=false", "val_kwargs.do_sample: expected True, got False"),
        ("actor_rollout_ref.rollout.val_kwargs.temperature=0", "val_kwargs.temperature: expected 1.0, got 0.0"),
    ],
)
def test_validation_must_be_the_reference_pass_of_a_run_with_them(
    shared: Service, run_id: str, tmp_path: Path, override: str, named: str
) -> None:
    passes = [
        "+data.curriculum.run.reference={mode: DEDICATED, size: 5, every_steps: 2}",
        "trainer.val_before_train=true",
        "trainer.test_freq=2",
        "actor_rollout_ref.rollout.val_kwargs={n: 3, do_sample: true, temperature: 1.0}",
    ]
    with pytest.raises(AdapterError) as caught:
        trainer(config(tmp_path, shared.target, run_id, *passes, override))
    assert named in str(caught.value)


# Prompts


def test_ids_that_are_all_zero_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    files = data_files(tmp_path, extra_info=[{"index": 0}] * PROMPTS)
    with pytest.raises(AdapterError, match=rf"prompt ids: .* got 1: 'digits/0' {PROMPTS} times"):
        trainer(config(tmp_path, shared.target, run_id, data=files))


def test_ids_that_some_rows_lack_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    files = data_files(tmp_path, extra_info=[{"index": index or None} for index in range(PROMPTS)])
    with pytest.raises(AdapterError, match=r"extra_info.index: .* got 1 rows without"):
        trainer(config(tmp_path, shared.target, run_id, data=files))


@pytest.mark.parametrize("extra_info", [None, [{"split": "train"}] * PROMPTS], ids=["no_column", "no_index"])
def test_prompts_without_ids_are_named_by_their_content(
    shared: Service, run_id: str, tmp_path: Path, extra_info: Any
) -> None:
    made = trainer(config(tmp_path, shared.target, run_id, data=data_files(tmp_path, extra_info=extra_info)))
    texts = [" ".join(str(index)) for index in range(PROMPTS)]
    with client(shared.target, run_id) as looked:
        assert [row.prompt_id for row in looked.export("prompts")] == list(content_ids(texts))
    rows = made.train_dataset.__getitems__([0, 0])
    assert [row["raw_prompt"][0]["content"] for row in rows] == [
        texts[content_ids(texts).index(row["curriculum_prompt_id"])] for row in rows
    ]


def test_pictures_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    files = data_files(tmp_path, images=[["picture.png"]] * PROMPTS)
    with pytest.raises(AdapterError, match="expected text alone, got rows with 'images'"):
        trainer(config(tmp_path, shared.target, run_id, data=files))


def test_prompts_of_another_data_set_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    trainer(config(tmp_path, shared.target, run_id))
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    with pytest.raises(AdapterError, match=r"curriculum.run_id: .* prompts that this training has not"):
        trainer(config(fewer, shared.target, run_id, data=data_files(fewer, 8)))


def test_a_checkpoint_of_another_run_is_taken_and_told(
    shared: Service, run_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ["trainer.total_training_steps=2", "trainer.save_freq=2"]
    trainer(config(tmp_path, shared.target, f"{run_id}-first", *options)).train()
    trainer(config(tmp_path, shared.target, run_id, *options, "trainer.total_training_steps=4")).train()
    said = [each.getMessage() for each in caplog.records]
    assert any(f"the checkpoint of step 2 is of run {run_id}-first" in each for each in said)
    assert any(f"run {run_id} is new, although the training goes on at step 2" in each for each in said)
    with client(shared.target, run_id) as looked:
        assert {row.record.step for row in looked.export("outcomes")} == {2, 3}


def test_a_run_of_a_refused_start_is_not_left_behind(shared: Service, run_id: str, tmp_path: Path) -> None:
    wanted = ["data.curriculum.run.replay.fresh_fraction=0.05"]
    with pytest.raises(AdapterError, match=r"data.train_files: expected at least the .* prompts of a batch"):
        trainer(config(tmp_path, shared.target, run_id, *wanted))
    with client(shared.target, run_id) as looked, pytest.raises(NotFound):
        looked.get_run()


def test_groups_of_one_rollout_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="at least 2 rollouts per prompt, got 1"):
        trainer(config(tmp_path, shared.target, run_id, "actor_rollout_ref.rollout.n=1"))


# Rows of the queue


def _without_log_probs(output: AgentLoopOutput) -> AgentLoopOutput:
    return output.model_copy(update={"response_logprobs": None})


def _with_routed_experts(output: AgentLoopOutput) -> AgentLoopOutput:
    return output.model_copy(update={"routed_experts": np.zeros((len(output.response_ids), 1, 1), dtype=np.int16)})


def test_a_field_that_one_row_lacks_is_loud(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    made.engine.spoil = lambda output, prompt_id, session: (
        _without_log_probs(output) if (made.engine.version, session) == (2, 3) else output
    )
    with pytest.raises(AdapterError, match=r"rows of the queue: expected rollout_log_probs on each of 12"):
        made.train()
    assert len(made.batches) == 2


def test_a_field_that_only_some_rows_have_is_loud(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    made.engine.spoil = lambda output, prompt_id, session: _with_routed_experts(output) if session == 0 else output
    with pytest.raises(AdapterError, match=r"rows of the queue: expected routed_experts on each of 24"):
        made.train()


def test_a_field_that_stored_rows_cannot_have_is_loud(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    made.engine.spoil = lambda output, prompt_id, session: _with_routed_experts(output)
    with pytest.raises(
        AdapterError, match=r"replayed ones cannot have routed_experts; set data.curriculum.replay=false"
    ):
        made.train()
    assert len(made.batches) == 1


def test_an_outcome_that_the_reward_does_not_have_is_loud(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id, "+data.curriculum.outcome=accuracy"))
    with pytest.raises(AdapterError, match=r"data.curriculum.outcome: .*, of \['acc'\], got \['accuracy'\]"):
        made.train()


def test_a_reward_that_is_not_finite_ends_the_training_before_the_weights_are_lost(
    shared: Service, run_id: str, tmp_path: Path
) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))

    def spoil(output: Any, prompt_id: str, session: int) -> Any:
        output.reward_score = float("nan") if session == 0 else output.reward_score
        return output

    made.engine.spoil = spoil
    with pytest.raises(AdapterError, match=r"rm_scores: expected finite rewards, got \[.*nan"):
        made.train()
    assert not made.batches


def test_rollouts_of_several_outputs_are_refused(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    made.engine.spoil = lambda output, prompt_id, session: [output, output.model_copy()]
    with pytest.raises(AdapterError, match="agent loop: expected one output per rollout"):
        made.train()


def test_a_step_that_verl_counts_otherwise_is_loud(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    with pytest.raises(AdapterError, match="verl's step: expected 1, got 5"):
        made.replay_buffer.sample(global_steps=5, partition_id="train", batch_size=3)


def test_without_the_check_the_correction_would_be_lost() -> None:
    rows = [{"uid": "a", "rollout_log_probs": np.float32(-1.0)}, {"uid": "a"}]
    for index, row in enumerate(rows):
        tq.kv_batch_put(
            keys=[f"a_{index}_0"], partition_id="check", fields=list_of_dict_to_tensordict([row]), tags=[{"seq_len": 1}]
        )
    keys = ["a_0_0", "a_1_0"]
    asked = ["uid", "rollout_log_probs"]
    assert list(tq.kv_batch_get(keys=keys, partition_id="check", select_fields=asked).keys()) == ["uid"]
    with pytest.raises(AdapterError, match="rollout_log_probs"):
        check_fields(tq.KVBatchMeta(keys=keys, tags=[{"seq_len": 1}] * 2, partition_id="check"))
    tq.kv_clear(keys=keys, partition_id="check")


def test_groups_come_out_of_the_queue_as_they_went_in(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id, "trainer.total_training_steps=1"))
    rng = np.random.default_rng(0)
    sampling = made.replay_buffer._training.sampling
    groups = [_random_group(rng, f"digits/{index}", sampling) for index in range(5)]
    made.prepare_step()
    made.replay_buffer.refill_fn(3)
    batch, _ = ReplayBuffer.sample(made.replay_buffer, 1, "train", 6)
    joined = with_replayed(batch, groups, made.train_dataset.row)
    behind = slice(len(batch), None)
    again = fresh_groups(
        tq.KVBatchMeta(keys=joined.keys[behind], tags=joined.tags[behind], partition_id="train"), None, sampling
    )
    for group, read in zip(groups, again, strict=True):
        for field in dataclasses.fields(RolloutGroup):
            before, after = getattr(group, field.name), getattr(read, field.name)
            if isinstance(before, np.ndarray):
                assert np.array_equal(before, after), field.name
            else:
                assert before == after, field.name
    tq.kv_clear(keys=joined.keys, partition_id="train")


def _random_group(rng: np.random.Generator, prompt_id: str, sampling: dict[str, Any]) -> RolloutGroup:
    lengths = rng.integers(1, 9, size=rng.integers(1, 7))
    scores = rng.integers(0, 16, size=len(lengths)) / 16
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=int(rng.integers(0, 100)),
        prompt_token_ids=rng.integers(0, 12, size=rng.integers(1, 6)),
        response_token_ids=[rng.integers(0, 2**31 - 1, size=length) for length in lengths],
        behavior_log_probs=[-rng.random(length, dtype=np.float32) for length in lengths],
        loss_masks=[rng.integers(0, 2, size=length) for length in lengths],
        rewards=scores,
        outcomes=scores,
        statuses=["COMPLETED"] * len(lengths),
        sampling=sampling,
        columns={"num_turns": rng.integers(1, 9, size=len(lengths)).astype(np.int32)},
    )


def test_the_documented_blocks_are_what_verl_and_the_adapter_ask_for(tmp_path: Path) -> None:
    per_gpu = "log_prob_micro_batch_size_per_gpu=1"
    sizes = [f"actor_rollout_ref.rollout.{per_gpu}", f"actor_rollout_ref.ref.{per_gpu}"]
    composed = config(tmp_path, NOWHERE, "run", *sizes)
    validate_config(config=composed, use_reference_policy=False, use_critic=False)
    assert composed.trainer.v1.sampler.sampler_kwargs.run_id == composed.data.curriculum.run_id == "run"
    composed = config(tmp_path, NOWHERE, "run", *sizes, *documented_overrides())
    assert composed.data.curriculum.run.reference == {"mode": "DEDICATED", "every_steps": 2}
    rollout = composed.actor_rollout_ref.rollout
    check_reference_passes(composed, 2, sampling_settings(rollout, "rollout"))
