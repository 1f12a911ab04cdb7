"""A training small enough for a CPU: a Qwen2 of a few thousand weights, characters as tokens, digits to repeat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from clients import SelectorClient
from tests.trainers.digits import DIGITS, prompts
from trainer_adapters.trl import CurriculumConfig, CurriculumGRPOTrainer

GROUP_SIZE = 4


def tokenizer() -> PreTrainedTokenizerFast:
    """Characters: four digits, the sign that asks for them, and three that a tokenizer needs."""
    vocabulary = {
        token: index for index, token in enumerate(["<pad>", "<eos>", "<unk>", "=", *map(str, range(DIGITS))])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def model(seed: int = 0) -> Qwen2ForCausalLM:
    """Two layers of width 32, from nothing."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=4 + DIGITS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


class FirstDigit:
    """Reward 1 for a completion that begins with the prompt's first digit; remembers its batches."""

    __name__ = "first_digit"

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, float]]] = []

    def __call__(self, prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        scores = [
            float(completion.strip()[:1] == prompt[0]) for prompt, completion in zip(prompts, completions, strict=True)
        ]
        self.batches.append(list(zip(prompts, scores, strict=True)))
        return scores

    @property
    def prompts(self) -> list[list[str]]:
        """Per batch its prompts, once each."""
        return [list(dict.fromkeys(prompt for prompt, _ in batch)) for batch in self.batches]


def config(target: str, run_id: str = "trl", **changes: Any) -> CurriculumConfig:
    """Of a run that trains on its own evidence alone, and replays what it can."""
    return CurriculumConfig(target=target, run_id=run_id, **{"timeout_s": 60.0, **changes})


def arguments(folder: Path, **changes: Any) -> GRPOConfig:
    """Six groups of four a step."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 6 * GROUP_SIZE,
        "num_generations": GROUP_SIZE,
        "max_completion_length": 3,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "temperature": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 5,
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(
    folder: Path,
    curriculum: CurriculumConfig,
    reward: Callable[..., list[float]] | list[Callable[..., list[float]]],
    kind: type[CurriculumGRPOTrainer] = CurriculumGRPOTrainer,
    dataset: Dataset | None = None,
    callbacks: list[Any] | None = None,
    **changes: Any,
) -> CurriculumGRPOTrainer:
    """TRL's real trainer with the adapter."""
    return kind(
        model=model(),
        reward_funcs=reward,
        args=arguments(folder, **changes),
        train_dataset=dataset or Dataset.from_dict({"prompt": prompts()}),
        processing_class=tokenizer(),
        callbacks=callbacks,
        curriculum=curriculum,
    )


def client(target: str, run_id: str = "trl") -> SelectorClient:
    """A second look at the run."""
    return SelectorClient(target, run_id, timeout_s=60)
