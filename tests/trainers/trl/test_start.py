"""What would silently train on something else is refused before the first step, and named."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from tests.trainers.service import Service
from tests.trainers.trl.tiny import FirstDigit, config, prompts, trainer
from trainer_adapters.checks import AdapterError
from trainer_adapters.trl import CurriculumMixin
from trainer_adapters.trl.start import check_loss

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
