"""Selection through the adapter teaches at least as much per rollout as uniform prompts do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from tests.trainers.service import Service
from tests.trainers.trl.tiny import FirstDigit, config, prompts, tokenizer, trainer
from trainer_adapters.trl import CurriculumGRPOTrainer

SEEDS = (1, 2, 3)
STEPS = 40
LEARNABLE = prompts(24)
# No answer to these is ever right, as with prompts far beyond the policy.
HOPELESS = [f"{prompt[:-1]}==" for prompt in prompts(72)]


class Learnable(FirstDigit):
    """Hopeless prompts score 0 whatever the answer is."""

    def __call__(self, prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        scores = super().__call__(prompts, completions)
        return [0.0 if prompt.endswith("==") else score for prompt, score in zip(prompts, scores, strict=True)]


def learned(made: CurriculumGRPOTrainer) -> float:
    """Probability of the right first digit, over the learnable prompts."""
    tokens = tokenizer()
    right = []
    for prompt in LEARNABLE:
        with torch.no_grad():
            logits = made.model(input_ids=torch.tensor([tokens(prompt)["input_ids"]])).logits[0, -1]
        right.append(float(logits.softmax(-1)[tokens(prompt[0])["input_ids"][0]]))
    return sum(right) / len(right)


@pytest.mark.parametrize("replay", [False, True])
def test_selection_learns_more_from_the_same_rollouts(service: Service, tmp_path: Path, replay: bool) -> None:
    dataset = Dataset.from_dict({"prompt": LEARNABLE + HOPELESS})
    reached: dict[str, list[float]] = {"UNIFORM": [], "DEFAULT": []}
    rollouts: dict[str, int] = {"UNIFORM": 0, "DEFAULT": 0}
    for seed in SEEDS:
        for preset, finals in reached.items():
            reward = Learnable()
            curriculum = config(
                service.target, f"{preset}-{seed}", run={"preset": preset}, replay=replay and preset == "DEFAULT"
            )
            made = trainer(
                tmp_path, curriculum, reward, dataset=dataset, max_steps=STEPS, seed=seed, logging_steps=STEPS
            )
            made.train()
            finals.append(learned(made))
            rollouts[preset] += sum(map(len, reward.batches))
    selected, uniform = (sum(reached[preset]) / len(SEEDS) for preset in ("DEFAULT", "UNIFORM"))
    assert rollouts["DEFAULT"] <= rollouts["UNIFORM"]
    assert uniform > 0.15, "the task must be one that can be learned at all"
    assert selected > uniform, reached
    if replay:
        # Half as many, but for steps before which the last eight had too few groups with contrast.
        assert rollouts["DEFAULT"] < 0.7 * rollouts["UNIFORM"]
