"""Between OpenRLHF's experiences of one row and stored groups.

An experience has ``sequences`` and ``attention_mask`` (1, T) int64; ``action_mask`` (1, T - 1) int64 and
``rollout_log_probs`` (1, T - 1) float32, where place t is of token t + 1 and both are 0 on the prompt. The prompt is
what comes before the first token that was drawn; what an environment says later is response with mask 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from clients import RolloutGroup
from trainer_adapters.checks import AdapterError
from trainer_adapters.curriculum import LOGGER

# Of a row's ``info``: 1 where it is replayed, and the service's step of its batch.
REPLAYED, STEP = "curriculum/replayed", "curriculum/step"
# So many tokens in a row are not drawn with certainty.
_SURE = 32


def check_reward(row: Experience, prompt_id: str) -> None:
    """Gives a fresh row's reward and score the form (1,), whatever the reward function answers, such as lists of one.

    Raises:
        AdapterError: there is no reward, several, or one that is not finite.
    """
    where = f"rollouts of {prompt_id!r} ({str(row.prompts[0])[:60]!r})"
    if row.rewards is None:
        raise AdapterError(
            f"{where}: expected a reward, got none: the reward function failed; the engine's log says why"
        )
    if row.rewards.numel() != 1 or not torch.isfinite(row.rewards.float()).all():
        raise AdapterError(f"{where}: expected one finite reward, got {row.rewards.tolist()} of the reward function")
    row.rewards = row.rewards.reshape(1)
    # Executors of one's own need not give scores.
    row.scores = row.rewards.clone() if row.scores is None else row.scores.reshape(1)
    row.info = {name: value.reshape(1) if value.numel() == 1 else value for name, value in row.info.items()}


def check_log_probs(groups: Mapping[str, Sequence[Experience]]) -> None:
    """Fresh rows have vLLM's log-probs of the tokens it drew.

    Raises:
        AdapterError: there would be nothing to correct with.
    """
    wanted = "expected vLLM's log-prob of every token it drew"
    some = False
    for prompt_id, rows in groups.items():
        nonzero = tokens = 0
        for row in rows:
            if row.rollout_log_probs is None or row.rollout_log_probs.shape != row.action_mask.shape:
                found = None if row.rollout_log_probs is None else tuple(row.rollout_log_probs.shape)
                raise AdapterError(
                    f"rollouts of {prompt_id!r}: {wanted}, {tuple(row.action_mask.shape)}, got {found}: replay would "
                    "train without importance correction"
                )
            drawn = row.rollout_log_probs[row.action_mask != 0]
            if not torch.isfinite(drawn).all():
                raise AdapterError(f"rollouts of {prompt_id!r}: {wanted}, got {drawn[~torch.isfinite(drawn)][0]}")
            nonzero, tokens = nonzero + int((drawn != 0).sum()), tokens + len(drawn)
        some = some or nonzero > 0
        if nonzero == 0 and tokens > _SURE:
            LOGGER.warning(
                "rollouts of %r: log-probs of all %d tokens are 0: does an engine keep none?", prompt_id, tokens
            )
    # OpenRLHF puts 0 where vLLM gave none.
    if groups and not some:
        raise AdapterError(f"rollouts: {wanted}, got 0 for all of them")


def statuses(rows: Sequence[Experience], outcomes: np.ndarray) -> list[str]:
    """One name of RolloutStatus per row; outcomes are (rows,), NaN where a rollout could not be scored."""
    return [
        "UNSCORABLE" if np.isnan(outcome) else "TRUNCATED" if bool(row.truncated) else "COMPLETED"
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def stored(
    rows: Sequence[Experience], outcomes: np.ndarray, prompt_id: str, step: int, sampling: Mapping[str, Any]
) -> RolloutGroup:
    """The fresh rows of a prompt as a group; each has at least one token that was drawn.

    Raises:
        AdapterError: the rows do not begin with the same prompt.
    """
    parts = [_parts(row) for row in rows]
    prompt = parts[0][0]
    if any(not np.array_equal(prompt, other) for other, *_ in parts):
        raise AdapterError(
            f"rollouts of {prompt_id!r}: expected one prompt, got several: an agent whose first observation differs "
            'between rollouts cannot be replayed; set "replay": false'
        )
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=step,
        prompt_token_ids=prompt,
        response_token_ids=[response for _, response, _, _ in parts],
        behavior_log_probs=[log_probs for _, _, log_probs, _ in parts],
        loss_masks=[mask for *_, mask in parts],
        rewards=[float(row.rewards) for row in rows],
        outcomes=outcomes,
        statuses=statuses(rows, outcomes),
        sampling=sampling,
    )


def experience(group: RolloutGroup, index: int, prompt: str, label: Any) -> Experience:
    """One replayed rollout as ``SamplesGenerator`` makes a fresh one, but for ``info``."""
    # Copies: what the service sent is read-only.
    sequence = np.concatenate([group.prompt_token_ids, group.response(index)]).astype(np.int64)
    on_prompt = np.zeros(len(group.prompt_token_ids) - 1)
    mask = np.concatenate([on_prompt, group.mask(index)]).astype(np.int64)
    log_probs = np.concatenate([on_prompt, group.log_probs(index)]).astype(np.float32)
    drawn = np.flatnonzero(mask)
    return Experience(
        sequences=torch.from_numpy(sequence)[None],
        attention_mask=torch.ones((1, len(sequence)), dtype=torch.long),
        action_mask=torch.from_numpy(mask)[None],
        rollout_log_probs=torch.from_numpy(log_probs)[None],
        prompts=[prompt],
        labels=[label],
        images=[None],
        mm_train_inputs=[None],
        rewards=torch.tensor([group.rewards[index]], dtype=torch.float32),
        scores=torch.tensor([group.outcomes[index]], dtype=torch.float32),
        response_length=torch.tensor([int(drawn[-1] - drawn[0] + 1)]),
        truncated=torch.tensor([bool(group.statuses) and group.statuses[index] == "TRUNCATED"]),
        total_length=torch.tensor([float(len(sequence))]),
    )


def _parts(row: Experience) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Prompt tokens; response tokens with their log-probs and mask."""
    sequence, mask = row.sequences[0].numpy(), row.action_mask[0].numpy()
    first = int(np.argmax(mask != 0))
    return sequence[: first + 1], sequence[first + 1 :], row.rollout_log_probs[0, first:].numpy(), mask[first:]
