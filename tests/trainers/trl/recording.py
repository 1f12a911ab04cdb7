"""Trainers that keep what they trained on, and compare every loss with the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from clients import RolloutGroup
from trainer_adapters.loss import grpo_replay_loss
from trainer_adapters.rows import padded
from trainer_adapters.trl import CurriculumGRPOTrainer


class AtStep(TrainerCallback):
    """Does something before a step."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self._actions = actions

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self._actions:
            self._actions[state.global_step]()


class Recording(CurriculumGRPOTrainer):
    """Keeps what is trained on: per batch the rows, and the groups that were replayed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.trained: list[dict[str, Any]] = []
        self.replayed: list[list[Any]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.replayed.append([])
        output = super()._generate_and_score_completions(inputs)
        self.trained.append(output)
        return output

    def _joined(self, output: dict[str, Any], groups: Any) -> dict[str, Any]:
        self.replayed[-1] = list(groups)
        return super()._joined(output, groups)


class Compared(Recording):
    """Computes every micro-batch's loss and gradient once more with ``grpo_replay_loss``, from what the groups hold.

    Attributes:
        differences: per micro-batch with replayed rows the largest difference of loss and of gradient.
        weights: per such micro-batch the largest |w - 1|, so that a test can tell that there was something to correct.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.differences: list[tuple[float, float]] = []
        self.weights: list[float] = []
        self.replayed_rows: list[int] = []
        super().__init__(*args, **kwargs)

    def _rolled_out(self, prompt_ids: Sequence[str], step: int) -> tuple[dict[str, Any], list[RolloutGroup]]:
        output, groups = super()._rolled_out(prompt_ids, step)
        mine = {prompt_id: None for prompt_id in prompt_ids}
        self._fresh = [group for group in groups if group.prompt_id in mine]
        return output, groups

    def _joined(self, output: dict[str, Any], groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        joined = super()._joined(output, groups)
        rows = [(group, index) for group in (*self._fresh, *groups) for index in range(len(group))]
        width = joined["completion_ids"].size(1)
        behavior = padded([group.log_probs(index) for group, index in rows], 0.0, width)
        # TRL shuffles and splits whatever has a row per rollout.
        joined["expected_behavior"] = torch.from_numpy(behavior)
        joined["expected_advantages"] = torch.tensor([self._expected(group)[index] for group, index in rows])
        joined["expected_replayed"] = torch.arange(len(rows)) >= len(rows) - sum(map(len, groups))
        return joined

    def _expected(self, group: RolloutGroup) -> np.ndarray:
        centred = group.rewards - group.rewards.mean()
        divided = centred / (group.rewards.std(ddof=1) + 1e-4)
        return (divided if self.scale_rewards == "group" else centred).astype(np.float32)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        if "expected_behavior" in inputs:
            self._compare(model, inputs, loss)
        return loss

    def _compare(self, model: Any, inputs: dict[str, Any], loss: Tensor) -> None:
        mask = inputs["completion_mask"]
        log_probs = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], mask], dim=1),
            mask.size(1),
        )[0]
        old = inputs.get("old_per_token_logps", log_probs.detach())
        accumulated = self.current_gradient_accumulation_steps
        reduction, denominator, divisor = {
            "grpo": ("sequence_mean", None, accumulated),
            "bnpo": ("token_mean", None, accumulated),
            "dr_grpo": ("sum", float(len(mask) * self.max_completion_length), accumulated),
            "dapo": (
                "sum",
                inputs["num_items_in_batch"].item()
                / self.accelerator.num_processes
                * accumulated
                / self.args.steps_per_generation,
                1,
            ),
        }[self.loss_type]
        expected = grpo_replay_loss(
            log_probs,
            old,
            inputs["expected_behavior"],
            inputs["expected_advantages"],
            mask,
            clip_low=self.epsilon_low,
            clip_high=self.epsilon_high,
            reduction=reduction,
            denominator=denominator,
            counted_rows=inputs["expected_replayed"],
        )
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        real = torch.autograd.grad(loss, weights, retain_graph=True)
        ours = torch.autograd.grad(expected.loss / divisor, weights)
        gradient = max(float((a - b).abs().max()) for a, b in zip(real, ours, strict=True))
        self.differences.append((abs(float(loss.detach()) - float(expected.loss.detach()) / divisor), gradient))
        corrected = ((old - inputs["expected_behavior"]) * mask).exp() - 1
        replayed = corrected[inputs["expected_replayed"]].abs()
        self.weights.append(float(replayed.max()) if len(replayed) else 0.0)
        self.replayed_rows.append(int(inputs["expected_replayed"].sum()))


class _WithRatio(GRPOTrainer):
    """Stands for vLLM with its correction, which needs a GPU: adds a ratio of its own to each batch, here 1."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.use_vllm = False
        output = super()._generate_and_score_completions(inputs)
        output["importance_sampling_ratio"] = torch.ones(output["completion_ids"].shape)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self.use_vllm, self.vllm_importance_sampling_correction = True, True
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.use_vllm = False


class ComparedWithRatio(Compared, _WithRatio):
    """The adapter over such a trainer."""
