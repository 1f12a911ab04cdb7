"""What must be true of OpenRLHF's settings before the first step; every check raises ``AdapterError``."""

from __future__ import annotations

from typing import Any

from trainer_adapters.checks import AdapterError, expect

AT_LEAST, BELOW = "0.11.2", "0.12"
# The least upper bound of the token weight that counts as none: a larger weight is a broken log-prob.
_NO_CAP = 1e6


def sampling_settings(args: Any) -> dict[str, Any]:
    """How OpenRLHF samples: its log-probs are vLLM's after temperature and top-p, and it sets no top-k."""
    return {
        "temperature": float(args.rollout.temperature),
        "top_p": float(args.rollout.top_p),
        "top_k": 0,
        "log_prob_mode": "PROCESSED",
    }


def check_batches(args: Any, dataset: Any) -> None:
    """Settings with which prompts would not be those that were selected, or not be reported.

    Args:
        args: OpenRLHF's, as its command line leaves them.
        dataset: a ``PromptDataset``.
    """
    why = "selection takes its place"
    expect("algo.dynamic_filtering_enable", bool(args.algo.dynamic_filtering_enable), False, why)
    rollout = args.rollout
    expect(
        "rollout.vllm_generate_batch_size",
        getattr(rollout, "vllm_generate_batch_size", None) or rollout.batch_size,
        rollout.batch_size,
        "a batch is selected just before it is generated",
    )
    if not args.reward.remote_url:
        raise AdapterError(
            "reward.remote_url: expected a reward function, a reward server or train.agent_func_path, got none: "
            "scores of a reward model come after the batch has been put together"
        )
    images = getattr(args.data, "max_images_per_prompt", 0) or sum(map(bool, dataset.images))
    expect("data.image_key: images", images, 0, "images of replayed rows are not kept")
    for prompt in dataset.prompts:
        if not isinstance(prompt, str):
            raise AdapterError(
                f"data.input_key: expected text, got {prompt!r:.80}: conversations need data.apply_chat_template"
            )
    if len(dataset) < rollout.batch_size:
        raise AdapterError(
            f"data.prompt_dataset: expected at least the {rollout.batch_size} prompts of a batch, got {len(dataset)}"
        )


def check_loss(args: Any) -> None:
    """Settings with which OpenRLHF's loss of replayed rows would not be the paper's."""
    why = 'the loss of replayed rows would be another; change it, or set "replay": false'
    advantage = args.algo.advantage
    expect("algo.advantage.estimator", advantage.estimator, frozenset({"group_norm", "dr_grpo"}), why)
    expect("algo.advantage.is_correction_level", advantage.is_correction_level, "token", why)
    expect("algo.advantage.is_correction_mode", advantage.is_correction_mode, "clip", why)
    expect("algo.advantage.is_correction_gating", advantage.is_correction_gating, "ratio", why)
    low, high = advantage.is_correction_threshold
    expect("algo.advantage.is_correction_threshold", (float(low), min(float(high), _NO_CAP)), (0.0, _NO_CAP), why)
    expect("actor.policy_loss_type", args.actor.policy_loss_type, "ppo", why)
    expect("actor.dual_clip", args.actor.dual_clip, None, why)
