"""What is made sure of before TRL's first step, and what of the trainer's settings the run is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer_adapters.checks import AdapterError, expect
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import replay_share
from trainer_adapters.prompt_pool import PromptPool, content_ids

# Of generation_kwargs: what leaves the distribution that tokens are drawn from alone.
_HARMLESS = {"cache_implementation", "max_new_tokens", "use_cache"}
# A cap that weights of sound rows do not reach.
_WIDE = 1e3
_OF_THE_CONFIG = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample"}


def outcome_functions(trainer: Any, config: CurriculumConfig) -> list[int]:
    """Positions of the reward functions that are the raw task score, in the order in which they are asked."""
    names = list(trainer.reward_func_names)
    if not config.outcomes:
        if len(names) > 1:
            raise AdapterError(f"curriculum.outcome: expected which of {names} is the raw task score, got none")
        return [0]
    for name in config.outcomes:
        expect("curriculum.outcome", name, frozenset(names), "it names the reward function of the task score")
    return [names.index(name) for name in config.outcomes]


def sampling_of(trainer: Any) -> dict[str, Any]:
    """How TRL samples. Its log-probs are of the logits divided by the temperature."""
    for name in sorted(set(trainer.args.generation_kwargs or ()) & _OF_THE_CONFIG):
        raise AdapterError(f"generation_kwargs.{name}: expected it in GRPOConfig itself, where log-probs follow it")
    top_k = trainer.top_k or 0
    return {
        "temperature": float(trainer.temperature),
        "top_p": float(trainer.top_p),
        "top_k": max(int(top_k), 0),
        "log_prob_mode": "PROCESSED",
    }


def check_batches(trainer: Any) -> None:
    """Every step must be selected for once, and every process must have whole groups."""
    args = trainer.args
    every = args.steps_per_generation * trainer.num_iterations
    if every % args.gradient_accumulation_steps:
        raise AdapterError(
            f"steps_per_generation * num_iterations: expected a multiple of gradient_accumulation_steps "
            f"({args.gradient_accumulation_steps}), got {every}: a step would be selected for several times"
        )
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if rows % trainer.num_generations:
        raise AdapterError(
            f"per_device_train_batch_size * steps_per_generation: expected a multiple of num_generations "
            f"({trainer.num_generations}), got {rows}: every process needs whole groups"
        )
    if not hasattr(trainer.train_dataset, "__getitem__") or not hasattr(trainer.train_dataset, "__len__"):
        raise AdapterError("train_dataset: expected one with rows that can be picked, got a stream")
    if "prompt" not in trainer.train_dataset.column_names:
        raise AdapterError(f"train_dataset: expected a column 'prompt', got {trainer.train_dataset.column_names}")


def check_loss(trainer: Any) -> None:
    """Settings with which TRL's loss of replayed rows would not be the paper's."""
    replay = "the loss of replayed rows would be another; change it, or use CurriculumConfig(replay=False)"
    expect("loss_type", trainer.loss_type, frozenset({"grpo", "bnpo", "dr_grpo", "dapo"}), replay)
    expect("importance_sampling_level", trainer.importance_sampling_level, "token", replay)
    expect("beta", float(trainer.beta), 0.0, replay)
    expect("scale_rewards", trainer.scale_rewards, frozenset({"group", "none"}), replay)
    expect("multi_objective_aggregation", trainer.multi_objective_aggregation, "sum_then_normalize", replay)
    expect("off_policy_mask_threshold", trainer.off_policy_mask_threshold, None, replay)
    expect("tools", bool(trainer.tools), False, "tool tokens of replayed rows are not kept")
    expect("rollout_func", trainer.rollout_func, None, "tokens that an environment put in are not kept apart")
    expect("environment_factory", trainer.environment_factories, None, "what environments answered is not kept")
    images = sorted({"image", "images"} & set(getattr(trainer.train_dataset, "column_names", None) or ()))
    expect("train_dataset", images, [], "images of replayed rows are not kept")
    if trainer.use_vllm:
        if trainer.vllm_importance_sampling_correction:
            expect("vllm_importance_sampling_mode", trainer.vllm_importance_sampling_mode, "token_truncate", replay)
            largest, smallest = trainer.vllm_importance_sampling_clip_max, trainer.vllm_importance_sampling_clip_min
            if largest is not None and largest < _WIDE:
                raise AdapterError(
                    f"vllm_importance_sampling_clip_max: expected None or at least {_WIDE:g}, got {largest}: {replay}"
                )
            expect("vllm_importance_sampling_clip_min", smallest or 0.0, 0.0, replay)
        return
    # The model's log-probs are of the whole distribution at this temperature, which must be what was drawn from.
    drawn = "behaviour log-probs would not be those of the distribution that was drawn from"
    expect("top_p", float(trainer.top_p), 1.0, drawn)
    expect("top_k", trainer.top_k or 0, 0, drawn)
    expect("min_p", trainer.min_p or 0.0, 0.0, drawn)
    expect("repetition_penalty", float(trainer.repetition_penalty), 1.0, drawn)
    for name in sorted(set(trainer.args.generation_kwargs or ()) - _HARMLESS):
        raise AdapterError(f"generation_kwargs.{name}: expected none but {sorted(_HARMLESS)}: {drawn}")


def check_replay_share(trainer: Any, fresh_fraction: float) -> None:
    """With so many processes some of the batch must be left to replay."""
    groups, processes = trainer.args.generation_batch_size // trainer.num_generations, trainer.accelerator.num_processes
    replayed = replay_share(fresh_fraction, groups)
    if replayed and (replayed < processes or groups < 2 * processes):
        raise AdapterError(
            f"generation_batch_size: of {groups} groups {replayed} are to be replayed, which cannot be shared out over "
            f"{processes} processes: take a larger batch, or CurriculumConfig(replay=False)"
        )


def check_processes(trainer: Any, config: CurriculumConfig) -> None:
    """The others wait for the one that registers the prompts, and torch.distributed does not wait for ever."""
    if trainer.accelerator.num_processes > 1 and trainer.args.ddp_timeout < config.start_timeout_s:
        raise AdapterError(
            f"ddp_timeout: expected at least curriculum.start_timeout_s ({config.start_timeout_s:g} s), got "
            f"{trainer.args.ddp_timeout}: the other processes would give up while prompts are embedded"
        )


def prompts_of(dataset: Any) -> tuple[PromptPool, dict[str, int]]:
    """The pool, and where in the data set each prompt id stands."""
    columns = set(dataset.column_names)
    texts = [_text(prompt) for prompt in dataset["prompt"]]
    ids = tuple(map(str, dataset["prompt_id"])) if "prompt_id" in columns else content_ids(texts)
    domains = None
    if "domain" in columns:
        domains = tuple(None if each is None else str(each) for each in dataset["domain"])
    return PromptPool(ids, tuple(texts), domains), {each: row for row, each in enumerate(ids)}


def _text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """A prompt, or the messages of a conversation, as one text."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
