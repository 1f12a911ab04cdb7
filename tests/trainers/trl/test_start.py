"""What would silently train on something else is refused before the first step, and named."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from tests.trainers.service import Service
from tests.trainers.trl.tiny import GROUP_SIZE, FirstDigit, config, prompts, trainer
from trainer_adapters.checks import AdapterError
from trainer_adapters.trl import CurriculumMixin
from trainer_adapters.trl.start import check_loss, check_processes, check_replay_share

NOWHERE = "127.0.0.1:9"


def half(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    """A second reward."""
    return [0.5] * len(prompts)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"loss_type": "cispo"}, "loss_type"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level"),
        ({"scale_rewards": "batch"}, "scale_rewards"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"generation_kwargs": {"temperature": 0.6}}, "generation_kwargs.temperature"),
        ({"generation_kwargs": {"suppress_tokens": [5]}}, "generation_kwargs.suppress_tokens"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 1}, "steps_per_generation"),
    ],
)
def test_settings_that_change_the_loss_or_the_log_probs(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(AdapterError, match=f"^{name}"):
        trainer(tmp_path, config(NOWHERE), FirstDigit(), **changes)


@pytest.mark.parametrize("changes", [{"loss_type": "cispo"}, {"importance_sampling_level": "sequence"}, {"top_p": 0.9}])
def test_what_only_replay_needs_is_free_without_it(service: Service, tmp_path: Path, changes: dict[str, Any]) -> None:
    made = trainer(tmp_path, config(service.target, replay=False), FirstDigit(), max_steps=2, **changes)
    made.train()
    assert [each["curriculum/replayed_groups"] for each in made.state.log_history[:2]] == [0, 0]


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ({"sampling": {"temperature": 0.6}}, "sampling.temperature"),
        ({"sampling": {"log_prob_mode": "RAW"}}, "sampling.log_prob_mode"),
        ({"group_size": 8}, "group_size"),
    ],
)
def test_a_run_that_contradicts_the_trainer(tmp_path: Path, run: dict[str, Any], name: str) -> None:
    with pytest.raises(AdapterError, match=f"curriculum.run.{name}"):
        trainer(tmp_path, config(NOWHERE, run=run), FirstDigit())


def test_a_penalty_towards_a_reference_model(tmp_path: Path) -> None:
    made = trainer(tmp_path, config(NOWHERE), FirstDigit())
    # With it TRL loads the reference model from a hub before anything can be checked.
    made.beta = 0.1
    with pytest.raises(AdapterError, match=r"^beta: expected 0.0, got 0.1"):
        check_loss(made)


def test_the_default_correction_of_vllm_drops_rows(tmp_path: Path) -> None:
    made = trainer(tmp_path, config(NOWHERE), FirstDigit())
    # vLLM itself needs a GPU; the check looks at what TRL's configuration made of it.
    made.use_vllm = True
    with pytest.raises(AdapterError, match="vllm_importance_sampling_mode: expected 'token_truncate'"):
        check_loss(made)
    made.vllm_importance_sampling_mode = "token_truncate"
    with pytest.raises(
        AdapterError, match=r"vllm_importance_sampling_clip_max: expected None or at least 1000, got 3.0"
    ):
        check_loss(made)
    made.vllm_importance_sampling_clip_max = None
    check_loss(made)


def test_rollouts_of_a_function_that_may_mix_in_an_environment(tmp_path: Path) -> None:
    made = trainer(tmp_path, config(NOWHERE), FirstDigit())
    made.rollout_func = lambda prompts, trainer: {}
    with pytest.raises(AdapterError, match=r"^rollout_func"):
        check_loss(made)


def test_more_processes_than_groups_to_replay() -> None:
    def of(groups: int, processes: int) -> Any:
        return SimpleNamespace(
            args=SimpleNamespace(generation_batch_size=groups * GROUP_SIZE),
            num_generations=GROUP_SIZE,
            accelerator=SimpleNamespace(num_processes=processes),
        )

    for groups, processes, fresh_fraction in ((8, 4, 0.5), (8, 8, 1.0), (16, 8, 0.5), (12, 3, 0.75)):
        check_replay_share(of(groups, processes), fresh_fraction)
    for groups, processes, fresh_fraction in ((8, 8, 0.5), (12, 4, 0.75)):
        with pytest.raises(AdapterError, match=f"of {groups} groups .* shared out over {processes} processes"):
            check_replay_share(of(groups, processes), fresh_fraction)


def test_processes_that_would_not_wait_for_the_start() -> None:
    waiting = SimpleNamespace(accelerator=SimpleNamespace(num_processes=2), args=SimpleNamespace(ddp_timeout=1800))
    check_processes(waiting, config(NOWHERE))
    with pytest.raises(AdapterError, match=r"ddp_timeout: expected at least curriculum.start_timeout_s \(7200 s\)"):
        check_processes(waiting, config(NOWHERE, start_timeout_s=7200))


def test_a_data_set_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"train_dataset: expected a column 'prompt', got \['question'\]"):
        trainer(tmp_path, config(NOWHERE), FirstDigit(), dataset=Dataset.from_dict({"question": prompts()}))


@pytest.mark.parametrize("release", ["1.15.9", "2.0.0"])
def test_a_release_that_was_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: release if name == "trl" else real(name))
    with pytest.raises(AdapterError, match=f"trl: expected trl >= 1.16, < 2, got {release}"):
        trainer(tmp_path, config(NOWHERE), FirstDigit())


def test_prompts_without_ids_of_their_own(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"prompt": prompts(), "prompt_id": [0] * len(prompts())})
    with pytest.raises(AdapterError, match="'0' 24 times"):
        trainer(tmp_path, config(NOWHERE), FirstDigit(), dataset=dataset)


def test_fewer_prompts_than_a_batch_holds(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="train_dataset: expected at least the 6 prompts of a batch, got 5"):
        trainer(tmp_path, config(NOWHERE), FirstDigit(), dataset=Dataset.from_dict({"prompt": prompts(5)}))


def test_a_stream_of_prompts(tmp_path: Path) -> None:
    stream = Dataset.from_dict({"prompt": prompts()}).to_iterable_dataset()
    with pytest.raises(AdapterError, match="train_dataset: expected one with rows that can be picked"):
        trainer(tmp_path, config(NOWHERE), FirstDigit(), dataset=stream)


def test_several_rewards_and_none_named_the_outcome(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"curriculum.outcome: expected which of .'first_digit', 'half'."):
        trainer(tmp_path, config(NOWHERE), [FirstDigit(), half])
    with pytest.raises(AdapterError, match=r"curriculum.outcome: expected 'first_digit' or 'half', got 'reward'"):
        trainer(tmp_path, config(NOWHERE, outcome="reward"), [FirstDigit(), half])


def test_a_service_that_is_not_there_ends_the_training_at_its_start(tmp_path: Path) -> None:
    made = trainer(tmp_path, config(NOWHERE, timeout_s=1.0), FirstDigit())
    with pytest.raises((ConnectionError, TimeoutError)):
        made.train()


def test_the_mixin_is_what_the_trainer_is_made_of() -> None:
    from trl import GRPOTrainer

    from trainer_adapters.trl import CurriculumGRPOTrainer

    assert CurriculumGRPOTrainer.__mro__[1:3] == (CurriculumMixin, GRPOTrainer)
