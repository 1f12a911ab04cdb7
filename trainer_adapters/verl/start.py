"""What verl's configuration must say so that selection and replay are what they seem to be.

Every check raises ``AdapterError``, which names the option, what was expected and what was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from trainer_adapters.checks import AdapterError, expect

_PACKAGE = "pkg://"
# Token weights and ratios of any use stay far below it.
_NO_CAP = 1e6
_VALIDATION = "actor_rollout_ref.rollout.val_kwargs"


def check_config(config: Any, replay: bool) -> None:
    """Of everything that is known before the data is read.

    Args:
        replay: whether the training replays at all; without it, the loss is the user's.
    """
    _check_hooks(config)
    if config.trainer.total_training_steps is None:
        raise AdapterError("trainer.total_training_steps: expected a number, got None: there are no epochs")
    model = config.reward.reward_model
    if model.enable:
        expect(
            "reward.reward_model.enable_resource_pool",
            model.enable_resource_pool,
            True,
            "outcomes must be known when a batch is sampled",
        )
    if replay:
        _check_loss(config)


def check_length(config: Any, prompts: int, groups: int) -> None:
    """There must be prompts for a batch of ``groups``, and steps until the end."""
    if prompts < groups:
        raise AdapterError(f"data.train_files: expected at least the {groups} prompts of a batch, got {prompts}")
    epochs = math.ceil(config.trainer.total_training_steps / (prompts // config.data.train_batch_size))
    if config.trainer.total_epochs < epochs:
        raise AdapterError(
            f"trainer.total_epochs: expected at least {epochs}, got {config.trainer.total_epochs}: verl would end "
            "before trainer.total_training_steps"
        )


def check_reference_passes(config: Any, every_steps: int, sampling: Mapping[str, Any]) -> None:
    """Validation passes must be what the run takes for reference passes.

    Args:
        every_steps: the run's.
        sampling: how verl samples in training.
    """
    validation = config.actor_rollout_ref.rollout.val_kwargs
    drawn, rolled_out = "references are drawn from what is trained on", "references are rolled out as in training"
    expect("trainer.test_freq", config.trainer.test_freq, every_steps, "the run's reference.every_steps says so")
    expect("trainer.val_before_train", config.trainer.val_before_train, True, "the first selection rests on a pass")
    if validation.n < 2:
        raise AdapterError(f"{_VALIDATION}.n: expected at least 2, got {validation.n}: {rolled_out}, in groups")
    expect("data.val_files", config.data.val_files, config.data.train_files, drawn)
    expect(f"{_VALIDATION}.do_sample", validation.do_sample, True, rolled_out)
    if config.trainer.save_freq > 0 and config.trainer.save_freq % every_steps:
        raise AdapterError(
            f"trainer.save_freq: expected a multiple of the run's reference.every_steps ({every_steps}), got "
            f"{config.trainer.save_freq}: resuming in between begins with a pass that the training had not had"
        )
    for name, value in sampling_settings(validation, _VALIDATION).items():
        expect(f"{_VALIDATION}.{name}", value, sampling[name], rolled_out)


def sampling_settings(settings: Any, where: str) -> dict[str, Any]:
    """How verl samples, as a run states it.

    Args:
        settings: the section of verl's configuration.
        where: its name.
    """
    if settings.temperature != 1 and "logprobs_mode" in settings:
        why = "verl recomputes log-probs at the temperature"
        expect(f"{where}.logprobs_mode", settings.logprobs_mode, "processed_logprobs", why)
    return {
        "temperature": float(settings.temperature),
        "top_p": float(settings.top_p),
        # vLLM writes -1 for none, others 0.
        "top_k": max(int(settings.top_k), 0),
        "log_prob_mode": "PROCESSED",
    }


def _check_hooks(config: Any) -> None:
    mode = config.trainer.v1.trainer_mode
    buffer = "ServiceReplayBuffer" if mode == "sync" else "ServiceReplayBufferAsync"
    unused = "verl does not apply it to a custom sampler"
    for option, wanted, why in (
        ("trainer.val_only", False, "a start rewinds the run; validate without the adapter's classes"),
        ("trainer.use_v1", True, "the other trainer has no replay buffer"),
        ("trainer.v1.sampler.custom_sampler.name", buffer, f"trainer.v1.trainer_mode is {mode}"),
        (f"trainer.v1.{mode}.parameter_sync_step", frozenset({1, None}), "a step is one batch"),
        ("trainer.v1.sampler.sync_refill_failed_groups", False, unused),
        ("algorithm.filter_groups.enable", False, unused),
        ("data.dataloader_num_workers", 0, "workers would select in processes of their own"),
        ("actor_rollout_ref.rollout.calculate_log_probs", True, "groups are read with their log-probs"),
        ("data.gen_batch_size", 1, "when replay is short, a step needs some prompts more"),
        ("skip.rollout_tq.enable", False, "rollouts from disk are not of the prompts that were selected"),
    ):
        expect(option, OmegaConf.select(config, option), wanted, why)
    for option in ("data.custom_cls.path", "trainer.v1.sampler.custom_sampler.path"):
        path = OmegaConf.select(config, option)
        if not str(path).startswith(_PACKAGE):
            raise AdapterError(
                f"{option}: expected {_PACKAGE}trainer_adapters.verl, got {path!r}: a file would be loaded twice"
            )


def _check_loss(config: Any) -> None:
    correction = "algorithm.rollout_correction"
    for option, wanted, why in (
        ("algorithm.adv_estimator", "grpo", "replay is made for groups and their advantages"),
        (f"{correction}.rollout_is", "token", "replayed rows need their weights, token by token"),
        (f"{correction}.bypass_mode", False, "it clips around the behaviour policy"),
        (f"{correction}.rollout_is_batch_normalize", False, "fresh rows would be scaled by how stale others are"),
        (f"{correction}.rollout_rs", None, "it masks the tokens that replay is about"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla", "others do not use the weights, or differently"),
    ):
        expect(option, OmegaConf.select(config, option), wanted, why)
    rollout = config.actor_rollout_ref.rollout
    whole = "verl recomputes log-probs of the whole distribution"
    expect("actor_rollout_ref.rollout.top_p", float(rollout.top_p), 1.0, whole)
    expect("actor_rollout_ref.rollout.top_k", rollout.top_k, frozenset({-1, 0}), whole)
    for option in (f"{correction}.rollout_is_threshold", "actor_rollout_ref.actor.clip_ratio_c"):
        found = OmegaConf.select(config, option)
        try:
            uncapped = float(found) >= _NO_CAP
        except (TypeError, ValueError):
            # "0.5_5.0" drops tokens outside of the two.
            uncapped = False
        if not uncapped:
            raise AdapterError(f"{option}: expected 1e6 or more, got {found!r}: it would cut off what replay needs")
