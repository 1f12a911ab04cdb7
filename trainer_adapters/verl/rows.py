"""Rows of verl's queue as rollout groups, and stored groups as rows.

A row is one rollout, under the key ``{uid}_{session}_{output}``, its tensors unpadded; a group is the rows of a uid.
The queue answers a read with the fields that *all* of the rows have and says nothing of others, so a field that one row
lacks is lost for the whole batch: ``check_fields`` before anything is read.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from clients import RolloutGroup
from trainer_adapters.checks import AdapterError
from trainer_adapters.rows import first_number

# The field that carries a prompt's id from the data set through the queue.
PROMPT_ID = "curriculum_prompt_id"
_TENSORS = (
    *("prompts", "responses", "input_ids", "position_ids"),
    *("response_mask", "loss_mask", "rollout_log_probs", "rm_scores"),
)
_REQUIRED = frozenset((*_TENSORS, "uid", "num_turns", "extra_fields", PROMPT_ID))
_NO_REPLAY = "set data.curriculum.replay=false"


def check_fields(batch: KVBatchMeta) -> None:
    """Every row must have every field.

    Raises:
        AdapterError: names the fields that are missing on some.
    """
    # Putting the tags again changes nothing and answers which fields all of the rows have, without reading them.
    of_all = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, tags=batch.tags).fields
    of_first = tq.kv_batch_put(keys=batch.keys[:1], partition_id=batch.partition_id, tags=batch.tags[:1]).fields
    missing = sorted({*_REQUIRED, *of_first} - {*of_all})
    if missing:
        raise AdapterError(
            f"rows of the queue: expected {', '.join(missing)} on each of {len(batch)}, got some without: verl would "
            "leave it out for all of them"
        )


def outcomes_by_prompt(batch: KVBatchMeta, outcome: Sequence[str]) -> dict[str, list[float]]:
    """Raw task scores.

    Args:
        outcome: fields of what the reward function returns, of which the first that is there counts; none = the reward.
    """
    result: dict[str, list[float]] = {}
    for prompt_id, value in zip(_read(batch, [PROMPT_ID])[PROMPT_ID], _scores(batch, outcome)[1], strict=True):
        result.setdefault(prompt_id, []).append(value)
    return result


def fresh_groups(batch: KVBatchMeta, outcome: Sequence[str], sampling: Mapping[str, Any]) -> list[RolloutGroup]:
    """The rows of a batch by uid, those of a group by session.

    Raises:
        AdapterError: rollouts of several outputs, or of one prompt with different tokens.
    """
    data = _read(batch, ["prompts", "responses", "response_mask", "rollout_log_probs", "num_turns", PROMPT_ID])
    prompts, responses, masks = (data[name].unbind() for name in ("prompts", "responses", "response_mask"))
    log_probs, turns, prompt_ids = data["rollout_log_probs"].unbind(), list(data["num_turns"]), list(data[PROMPT_ID])
    rewards, outcomes = _scores(batch, outcome)
    rows: dict[str, dict[int, int]] = {}
    for position, key in enumerate(batch.keys):
        uid, session, output = key.rsplit("_", 2)
        if output != "0":
            raise AdapterError(
                f"agent loop: expected one output per rollout, got {key}: a group is one row per rollout"
            )
        rows.setdefault(uid, {})[int(session)] = position
    groups = []
    for sessions in rows.values():
        part = [sessions[session] for session in sorted(sessions)]
        first = part[0]
        if not all(torch.equal(prompts[row], prompts[first]) for row in part):
            raise AdapterError(f"agent loop: expected the same prompt tokens in all rollouts of {prompt_ids[first]!r}")
        groups.append(
            RolloutGroup.from_arrays(
                prompt_id=prompt_ids[first],
                # Partial rollouts go on under a later policy; the oldest part is what a limit of age is about.
                policy_version=min(int(batch.tags[row]["min_global_steps"]) for row in part),
                prompt_token_ids=prompts[first],
                response_token_ids=[responses[row] for row in part],
                behavior_log_probs=[log_probs[row] for row in part],
                loss_masks=[masks[row] for row in part],
                rewards=[rewards[row] for row in part],
                outcomes=[outcomes[row] for row in part],
                statuses=["UNSCORABLE" if math.isnan(outcomes[row]) else "COMPLETED" for row in part],
                sampling=sampling,
                columns={"num_turns": np.array([turns[row] for row in part], dtype=np.int32)},
            )
        )
    return groups


def with_replayed(
    batch: KVBatchMeta, groups: Sequence[RolloutGroup], prompt: Callable[[str], Mapping[str, Any]]
) -> KVBatchMeta:
    """The batch with stored groups behind it, put into the queue as fresh groups of a uid of their own.

    Args:
        prompt: a prompt's row of the data set, by id.

    Raises:
        AdapterError: fresh rows have what a stored one cannot have.
    """
    if not groups:
        return batch
    template = _template(batch)
    keys: list[str] = []
    tags: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for group in groups:
        # verl takes what stands before an underscore for the uid.
        uid = f"replay{uuid.uuid4().hex}"
        shared = {**template, **prompt(group.prompt_id), "uid": uid}
        for index in range(len(group)):
            rows.append({**shared, **_row(group, index), "session_id": index})
            keys.append(f"{uid}_{index}_0")
            tags.append(_tag(group, index))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(rows), tags=tags)
    joined = KVBatchMeta(
        keys=[*batch.keys, *keys],
        tags=[*batch.tags, *tags],
        partition_id=batch.partition_id,
        extra_info=batch.extra_info,
    )
    check_fields(joined)
    return joined


def _read(batch: KVBatchMeta, fields: list[str] | None) -> Any:
    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def _scores(batch: KVBatchMeta, outcome: Sequence[str]) -> tuple[list[float], list[float]]:
    """Reward and raw task score of each row."""
    data = _read(batch, ["rm_scores", "extra_fields"])
    rewards = [float(scores.sum()) for scores in data["rm_scores"].unbind()]
    if not all(map(math.isfinite, rewards)):
        raise AdapterError(
            f"rm_scores: expected finite rewards, got {rewards}: advantages of the group, and the loss, would be NaN"
        )
    if not outcome:
        return rewards, rewards
    outcomes = []
    for extra in data["extra_fields"]:
        known = extra.get("reward_extra_info") or {}
        if not any(name in known for name in outcome):
            raise AdapterError(
                f"data.curriculum.outcome: expected fields of what the reward function returns, of "
                f"{sorted(known)}, got {list(outcome)}"
            )
        outcomes.append(first_number(_number(name, known.get(name)) for name in outcome))
    return rewards, outcomes


def _number(name: str, value: Any) -> float:
    """NaN where there is none."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        raise AdapterError(f"data.curriculum.outcome: expected a number in {name!r}, got {value!r}") from None


def _template(batch: KVBatchMeta) -> dict[str, Any]:
    """A fresh row, for the fields that say nothing about prompt or rollout."""
    first = _read(KVBatchMeta(keys=batch.keys[:1], tags=batch.tags[:1], partition_id=batch.partition_id), None)[0]
    template = {name: first[name] for name in first.keys()}  # noqa: SIM118
    if template.get("multi_modal_inputs") or template["position_ids"].dim() != 1:
        raise AdapterError(f"rows of the queue: expected text alone, got multi-modal ones; {_NO_REPLAY}")
    unknown = sorted(
        name
        for name, value in template.items()
        if isinstance(value, Tensor) and value.dim() and name not in (*_TENSORS, "dummy_tensor")
    )
    if unknown:
        raise AdapterError(f"rows of the queue: replayed ones cannot have {', '.join(unknown)}; {_NO_REPLAY}")
    return template


def _row(group: RolloutGroup, index: int) -> dict[str, Any]:
    """One rollout as verl's agent loop writes it."""
    prompt = torch.from_numpy(group.prompt_token_ids.astype(np.int64))
    response = torch.from_numpy(group.response(index).astype(np.int64))
    mask = torch.from_numpy(group.mask(index).astype(np.int64))
    scores = torch.zeros(len(response))
    scores[-1] = float(group.rewards[index])
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(len(prompt) + len(response)),
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": torch.from_numpy(group.log_probs(index).astype(np.float32)),
        "rm_scores": scores,
        "num_turns": int(np.asarray(group.column("num_turns"))[index]),
        "extra_fields": {"reward_extra_info": {}, **_policy(group)},
    }


def _tag(group: RolloutGroup, index: int) -> dict[str, Any]:
    prompt, response = len(group.prompt_token_ids), int(group.lengths[index])
    lengths = {"prompt_len": prompt, "response_len": response, "seq_len": prompt + response}
    return {"status": "success", "global_steps": group.policy_version + 1, **lengths, **_policy(group)}


def _policy(group: RolloutGroup) -> dict[str, int]:
    return {"min_global_steps": group.policy_version, "max_global_steps": group.policy_version}
