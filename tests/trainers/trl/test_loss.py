"""TRL's own loss on fresh and replayed rows is the paper's formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.service import Service
from tests.trainers.trl.recording import Compared, ComparedWithRatio
from tests.trainers.trl.tiny import FirstDigit, client, config, trainer


@pytest.mark.parametrize(
    ("loss_type", "scale_rewards"), [("dapo", "group"), ("grpo", "none"), ("bnpo", "group"), ("dr_grpo", "none")]
)
def test_loss_and_gradient_equal_the_formula(
    service: Service, tmp_path: Path, loss_type: str, scale_rewards: str
) -> None:
    # Two passes over two halves of a batch: the policy moves away from pi_old, and some tokens are clipped.
    made = trainer(
        tmp_path,
        config(service.target),
        FirstDigit(),
        Compared,
        loss_type=loss_type,
        scale_rewards=scale_rewards,
        max_steps=16,
        num_iterations=2,
        steps_per_generation=2,
    )
    made.train()
    assert len(made.differences) >= 8 and sum(made.replayed_rows) > 0
    # There was something to correct, and something was clipped.
    assert max(made.weights) > 0.5
    assert any(each.get("clip_ratio/region_mean", 0) > 0 for each in made.state.log_history)
    assert max(loss for loss, _ in made.differences) < 1e-6
    assert max(gradient for _, gradient in made.differences) < 1e-5


def test_temperature_truncated_completions_and_padding_keep_the_formula(service: Service, tmp_path: Path) -> None:
    changes = {"temperature": 0.7, "mask_truncated_completions": True, "pad_to_multiple_of": 8}
    made = trainer(tmp_path, config(service.target), FirstDigit(), Compared, max_steps=10, **changes)
    made.train()
    assert sum(made.replayed_rows) > 0 and max(made.weights) > 0.1
    assert max(loss for loss, _ in made.differences) < 1e-6
    for rows in made.trained:
        assert {rows[name].size(1) % 8 for name in ("prompt_ids", "completion_ids")} == {0}
    # Some were truncated and left out, among the replayed ones too.
    assert any((rows["completion_mask"].sum(1) == 0).any() for rows in made.trained)
    with client(service.target) as looked:
        assert looked.get_run().config.sampling.temperature == 0.7


def test_gradient_accumulation_keeps_the_formula(service: Service, tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        config(service.target),
        FirstDigit(),
        Compared,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
    )
    made.train()
    assert made.state.global_step == 6 and sum(made.replayed_rows) > 0
    assert max(loss for loss, _ in made.differences) < 1e-6


def test_the_weight_goes_where_vllm_keeps_its_ratio_and_only_there(service: Service, tmp_path: Path) -> None:
    uncapped = {"vllm_importance_sampling_clip_max": None}
    made = trainer(tmp_path, config(service.target), FirstDigit(), ComparedWithRatio, **uncapped)
    made.train()
    assert sum(made.replayed_rows) > 0 and max(made.weights) > 0.5
    assert max(loss for loss, _ in made.differences) < 1e-6
