"""verl (>= 0.9.1, < 0.10, V1 trainer): three classes that its configuration names; ``docs/trainers/verl.md`` has it.

=========================  ============================================================================================
class                      what it does
=========================  ============================================================================================
``SnapshotCallback``       verl makes it first: checks the configuration, finds the step of the checkpoint that will be
                           resumed from; after a checkpoint it reports how stale replayed rows were
``CurriculumDataset``      registers the prompts, rewinds the run to that step; gives verl's loader the service's
                           prompts, whatever positions it asks for
``ServiceReplayBuffer``    per step: groups to replay, more prompts where they are too few, verl's own sampling of the
(``…Async``)               fresh rows, outcomes and groups to the service, replayed rows into the queue behind them
=========================  ============================================================================================

verl makes all of them in the trainer's process, each from configuration alone. What they share is in a registry of this
module under the run's id, so the module must be named by package (``pkg://``): a file path would load it twice.

The service's step is verl's number of the policy that generates: rollouts of verl's step g are of step g - 1, and a
validation pass after step g, or a resume from its checkpoint, is of step g.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from clients import RolloutGroup
from clients.names import short_name
from selector.v1 import run_pb2
from trainer_adapters.checks import AdapterError, accepts, expect, supported_version
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum
from trainer_adapters.loss import grpo_replay_loss
from trainer_adapters.prompt_pool import PromptPool, content_ids

if TYPE_CHECKING:
    _Sampling = object
else:
    _Sampling = ReplayBuffer

LOGGER = logging.getLogger("selector.adapter")

# The column that carries a prompt's id from the data set through the queue to the replay buffer.
PROMPT_ID = "curriculum_prompt_id"
_PACKAGE = "pkg://"
# A correction cut off lower than this would bias every row that is not quite on policy.
_NO_CAP = 1e6
_OF_A_ROW = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask")
_REQUIRED = frozenset((*_OF_A_ROW, "rollout_log_probs", "rm_scores", "uid", "num_turns", PROMPT_ID))

_TRAININGS: dict[str, _Training] = {}


class SnapshotCallback(CheckpointCallback):
    """``trainer.checkpoint_callback_class``.

    Raises:
        AdapterError: the configuration would silently train something else; names the option.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._training = _Training(config)
        _TRAININGS[self._training.config.run_id] = self._training

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """A checkpoint of step g is the service's state as of step g: there is nothing to copy, a resume rewinds."""
        self._training.report_staleness()
        unsent = self._training.curriculum.figures()["unsent_writes"]
        if unsent:
            LOGGER.error("%s: the service has still to get %d reports or pushes before it", checkpoint_dir, unsent)


class CurriculumDataset(RLHFDataset):  # type: ignore[misc]
    """``data.custom_cls``. verl makes the training's first, then the one of validation.

    Prompts are named ``data_source/extra_info.index``, or, where no row has an index, by their content.

    Raises:
        AdapterError: ids that are not unique, rows that are not text alone, too few prompts.
        SelectorError: the service cannot be reached, or refuses the run's config or a prompt.
    """

    def __init__(self, data_files: Any, tokenizer: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(data_files, tokenizer, config, *args, **kwargs)
        self._training = _training((config.get("curriculum") or {}).get("run_id"))
        self._trains = self._training.dataset is None
        if self._trains:
            pool = self._pool()
            self._positions = {prompt_id: position for position, prompt_id in enumerate(pool.prompt_ids)}
            self._training.open(self, pool)

    def __len__(self) -> int:
        """Prompts that are trained on; of a validation that is a reference pass, those of the pass."""
        if not self._trains and self._training.references_per_pass:
            return self._training.references_per_pass
        return int(super().__len__())

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
        """As many rows as positions: those that the service chooses, except in a validation that only validates."""
        if self._trains:
            return [self.row(prompt_id) for prompt_id in self._training.next_prompts(len(positions))]
        if self._training.references_per_pass:
            rows = self._training.dataset
            return [rows.row(prompt_id) for prompt_id in self._training.next_references(len(positions))]
        return [self[position] for position in positions]

    def row(self, prompt_id: str) -> dict[str, Any]:
        """One prompt as verl's loader hands it on."""
        if prompt_id not in self._positions:
            raise AdapterError(
                f"data.train_files: the run {self._training.config.run_id} has a prompt {prompt_id!r} that is not in "
                "them; a run is of one set of prompts: choose another data.curriculum.run_id"
            )
        return {**self[self._positions[prompt_id]], PROMPT_ID: prompt_id}

    def state_dict(self) -> dict[str, Any]:
        """Where the training is; verl keeps it in the checkpoint's ``data.pt``."""
        return {"run_id": self._training.config.run_id, "step": self._training.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ``AdapterError`` when the checkpoint is of another run or step."""
        if self._trains:
            why = "the checkpoint that is resumed from belongs to it"
            expect("data.curriculum.run_id", self._training.config.run_id, state.get("run_id"), why)
            expect("step of the checkpoint's data.pt", state.get("step"), self._training.step, "verl resumes from it")

    def _pool(self) -> PromptPool:
        rows = self.dataframe
        for key in (self.image_key, self.video_key, self.audio_key):
            if key in rows.column_names and any(rows[key]):
                raise AdapterError(
                    f"data.train_files: expected text alone, got rows with {key!r}: replay has no place for it"
                )
        texts = ["\n\n".join(_text(message) for message in messages) for messages in rows[self.prompt_key]]
        sources = [str(source) for source in rows["data_source"]]
        infos = rows["extra_info"] if "extra_info" in rows.column_names else [None] * len(texts)
        indices = [(info or {}).get("index") for info in infos]
        if all(index is None for index in indices):
            LOGGER.warning("data.train_files: no row has extra_info.index, so prompts are named by their content")
            return PromptPool(content_ids(texts), tuple(texts), tuple(sources))
        if None in indices:
            raise AdapterError(
                f"extra_info.index: expected one on each of {len(texts)} rows, or on none; missing on "
                f"{indices.count(None)}, where verl takes 0"
            )
        ids = tuple(f"{source}/{index}" for source, index in zip(sources, indices, strict=True))
        return PromptPool(ids, tuple(texts), tuple(sources))


class _ServiceSampling(_Sampling):
    """What both replay buffers add to verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._training = _training(self.sampler_kwargs.get("run_id"))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As verl's: a batch and its metrics. A batch of ``train`` has the replayed groups behind the fresh ones."""
        training = self._training
        if partition_id != "train":
            # A validation pass comes before the step's rows leave the queue.
            training.report_staleness()
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            if training.references_per_pass:
                training.report(_outcomes(batch, training.config.outcome), "reference")
            return batch, metrics
        expect(
            "verl's global step", global_steps, training.step + 1, "selection has followed it from the checkpoint on"
        )
        replayed = training.replay()
        more = training.groups - len(replayed) - batch_size
        if more > 0:
            training.reserve(more)
            self.refill_fn(more)
        batch, metrics = super().sample(global_steps, partition_id, batch_size + max(more, 0))
        _check_fields(batch)
        fresh = _groups(batch, training)
        training.deliver(fresh)
        joined = _with_replayed(batch, replayed, training)
        training.advance(global_steps, joined.keys[len(batch) :])
        return joined, {**metrics, **_figures(fresh, replayed, training)}


class ServiceReplayBuffer(_ServiceSampling, ReplayBuffer):  # type: ignore[misc]
    """``trainer.v1.sampler.custom_sampler`` with ``trainer.v1.trainer_mode=sync``."""


class ServiceReplayBufferAsync(_ServiceSampling, ReplayBufferAsync):  # type: ignore[misc]
    """``trainer.v1.sampler.custom_sampler`` with ``colocate_async`` or ``separate_async``."""


class _Training:
    """One training: its configuration, where it is, and what was chosen for its step.

    Attributes:
        step: the service's, see the module.
        dataset: the training's, once verl has made it.
        groups: B, what a batch of verl holds.
        references_per_pass: prompts of a validation pass; 0 = validation is nobody's but the user's.
    """

    def __init__(self, config: Any) -> None:
        settings = OmegaConf.select(config, "data.curriculum")
        if settings is None:
            raise AdapterError("data.curriculum: is missing")
        self.config = CurriculumConfig.from_mapping(OmegaConf.to_container(settings, resolve=True))
        _check(config, self.config.replay)
        self.sampling = _sampling_settings(config.actor_rollout_ref.rollout, "actor_rollout_ref.rollout")
        self._verl = config
        self.step = _resumed_step(config.trainer)
        self.dataset: Any = None
        self.groups = 0
        self.references_per_pass = 0
        self._curriculum: Curriculum | None = None
        self._chosen_for: int | None = None
        self._issued: list[str] = []
        self._queue: deque[str] = deque()
        self._replay_groups = 0
        self._round = 0
        self._references: deque[str] = deque()
        self._replayed_keys: list[str] = []

    @property
    def curriculum(self) -> Curriculum:
        """Raises ``AdapterError`` before the data set is there."""
        if self._curriculum is None:
            raise AdapterError(
                f"data.custom_cls: expected {_PACKAGE}{__name__} and CurriculumDataset, or a subclass of it"
            )
        return self._curriculum

    def open(self, dataset: Any, pool: PromptPool) -> None:
        """Starts the run where the training starts."""
        verl = self._verl
        run = self.config.run_config(
            int(verl.actor_rollout_ref.rollout.n), int(verl.data.get("seed") or 0), self.sampling
        )
        curriculum = Curriculum(self.config, pool, run)
        info = curriculum.start(self.step)
        fresh = int(verl.data.train_batch_size)
        share = info.config.replay.fresh_fraction if self.config.replay else 1.0
        # The largest batch of which the service leaves as many prompts to generate as verl generates.
        self.groups = int(fresh / share + 1e-9)
        if len(pool) < self.groups:
            raise AdapterError(
                f"data.train_files: expected at least the {self.groups} prompts of a batch, got {len(pool)}"
            )
        epochs = math.ceil(verl.trainer.total_training_steps / (len(pool) // fresh))
        if verl.trainer.total_epochs < epochs:
            raise AdapterError(
                f"trainer.total_epochs: expected at least {epochs}, got {verl.trainer.total_epochs}: verl would end "
                "before trainer.total_training_steps"
            )
        reference = info.config.reference
        if short_name(run_pb2.ReferenceMode.DESCRIPTOR, reference.mode) == "DEDICATED":
            _check_reference_passes(verl, reference.every_steps, self.sampling)
            self.references_per_pass = min(int(reference.size), len(pool))
        self.dataset, self._curriculum = dataset, curriculum

    def next_prompts(self, count: int) -> list[str]:
        """The next ``count`` prompts of the step."""
        self.reserve(count)
        return [self._queue.popleft() for _ in range(count)]

    def reserve(self, count: int) -> None:
        """Has ``count`` prompts of the step ready, so that the loader's fetches of one are not a call each."""
        if self._chosen_for != self.step:
            chosen = self.curriculum.select(self.step, self.groups)
            self._chosen_for, self._round, self._replay_groups = self.step, 0, chosen.replay_groups
            self._issued, self._queue = list(chosen.prompt_ids), deque(chosen.prompt_ids)
        while len(self._queue) < count:
            self._round += 1
            more = self.curriculum.top_up(self.step, count - len(self._queue), self._round, self._issued)
            if not more:
                raise AdapterError(
                    f"data.train_files: expected more than {len(self._issued)} prompts for one step, got no more"
                )
            self._issued += more
            self._queue += more

    def next_references(self, count: int) -> list[str]:
        """The next ``count`` prompts of a reference pass."""
        if not self._references:
            drawn = self.curriculum.references(self.step)[: self.references_per_pass]
            seed, missing = int(self._verl.data.get("seed") or 0), self.references_per_pass - len(drawn)
            # Validation cannot be left out, so a service that is away is told later of prompts drawn here.
            self._references += (*drawn, *self.curriculum.pool.uniform(missing, seed, self.step, drawn))
        return [self._references.popleft() for _ in range(count)]

    def replay(self) -> list[RolloutGroup]:
        """The step's groups to replay."""
        if self._chosen_for != self.step:
            return []
        return self.curriculum.replay(self.step, self._replay_groups)

    def deliver(self, groups: Sequence[RolloutGroup]) -> None:
        """Reports and stores fresh groups."""
        outcomes: dict[str, list[float]] = {}
        for group in groups:
            # Asynchronous trainers may have a prompt in a batch twice.
            outcomes.setdefault(group.prompt_id, []).extend(group.outcomes.tolist())
        if self._verl.trainer.v1.trainer_mode == "sync":
            # What came to nothing is not waited for any longer.
            issued = [prompt_id for prompt_id in self._issued if prompt_id not in self._queue]
            outcomes.update({prompt_id: [] for prompt_id in issued if prompt_id not in outcomes})
        self.report(outcomes, "train")
        once = {group.prompt_id: group for group in reversed(groups) if np.isfinite(group.rewards).all()}
        self.curriculum.push(self.step, [group for group in groups if once.get(group.prompt_id) is group])

    def report(self, outcomes: Mapping[str, Sequence[float]], purpose: str) -> None:
        """Outcomes of fresh rollouts by prompt; none = they were aborted, NaN = they could not be scored."""
        given = {prompt_id: list(values) or [math.nan] for prompt_id, values in outcomes.items()}
        statuses = {
            prompt_id: ["ABORTED"]
            if not outcomes[prompt_id]
            else ["UNSCORABLE" if math.isnan(value) else "COMPLETED" for value in values]
            for prompt_id, values in given.items()
        }
        if given:
            self.curriculum.report(self.step, given, statuses, purpose)

    def advance(self, step: int, replayed_keys: Sequence[str]) -> None:
        """The next fetch is of this step of the service."""
        self.step = step
        self._replayed_keys = list(replayed_keys)

    def report_staleness(self) -> None:
        """Effective sample size and largest weight of the last batch's replayed rows, while they are in the queue."""
        if not self._replayed_keys:
            return
        names = ["old_log_probs", "rollout_log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=self._replayed_keys, partition_id="train", select_fields=names)
        self._replayed_keys = []
        old, behavior, mask = (data[name].to_padded_tensor(0) for name in names)
        figures = grpo_replay_loss(old, old, behavior, torch.zeros_like(old), mask)
        self.curriculum.report_training(
            self.step - 1,
            effective_sample_size=figures.effective_sample_size,
            max_importance_weight=figures.max_weight,
        )


def _training(run_id: str | None) -> _Training:
    if run_id not in _TRAININGS:
        raise AdapterError(
            f"no training of run {run_id!r} in this process: expected trainer.checkpoint_callback_class="
            f"{__name__}.SnapshotCallback, which verl makes first, and the same run id in data.curriculum and in "
            "trainer.v1.sampler.sampler_kwargs"
        )
    return _TRAININGS[run_id]


# Rows of the queue


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def _check_fields(batch: KVBatchMeta) -> None:
    """Every row must have every field: the queue drops one that a single row lacks, and the correction with it."""
    # Putting the tags again stores nothing new and answers what all of the rows have, without reading them.
    of_all = set(tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, tags=batch.tags).fields)
    of_first = set(tq.kv_batch_put(keys=batch.keys[:1], partition_id=batch.partition_id, tags=batch.tags[:1]).fields)
    missing = sorted((_REQUIRED | of_first) - of_all)
    if missing:
        raise AdapterError(
            f"rows of the queue: expected {', '.join(missing)} on each of {len(batch)}, missing on some: verl would "
            "leave it out of the whole batch"
        )


def _scores(batch: KVBatchMeta, outcome: str | None) -> tuple[list[float], list[float]]:
    """Reward and raw task score of each row."""
    names = ["rm_scores", *(["extra_fields"] if outcome else [])]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    rewards = [float(scores.sum()) for scores in data["rm_scores"].unbind()]
    if not outcome:
        return rewards, rewards
    outcomes = []
    for extra in data["extra_fields"]:
        known = (extra or {}).get("reward_extra_info") or {}
        if outcome not in known:
            raise AdapterError(
                f"data.curriculum.outcome: expected one of {sorted(known)} of the reward function, got {outcome!r}"
            )
        outcomes.append(float(known[outcome]))
    return rewards, outcomes


def _outcomes(batch: KVBatchMeta, outcome: str | None) -> dict[str, list[float]]:
    """Raw task scores by prompt."""
    named = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[PROMPT_ID])
    result: dict[str, list[float]] = {}
    for prompt_id, value in zip(named[PROMPT_ID], _scores(batch, outcome)[1], strict=True):
        result.setdefault(prompt_id, []).append(value)
    return result


def _groups(batch: KVBatchMeta, training: _Training) -> list[RolloutGroup]:
    """The fresh rows as groups, one per uid."""
    names = ["prompts", "responses", "response_mask", "rollout_log_probs", "num_turns", PROMPT_ID]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    prompts, responses, masks, log_probs = (data[name].unbind() for name in names[:4])
    turns, prompt_ids = list(data["num_turns"]), list(data[PROMPT_ID])
    rewards, outcomes = _scores(batch, training.config.outcome)
    rows: dict[str, list[int]] = {}
    for position, key in enumerate(batch.keys):
        uid, _, index = key.rsplit("_", 2)
        if index != "0":
            raise AdapterError(
                f"agent loop: expected one output per rollout, got {key}: groups of several are not supported"
            )
        rows.setdefault(uid, []).append(position)
    groups = []
    for part in rows.values():
        first = part[0]
        if not all(torch.equal(prompts[row], prompts[first]) for row in part):
            raise AdapterError(
                f"agent loop: expected the same prompt tokens in a group, got others for {prompt_ids[first]}"
            )
        groups.append(
            RolloutGroup.from_arrays(
                prompt_id=prompt_ids[first],
                policy_version=min(int(batch.tags[row]["min_global_steps"]) for row in part),
                prompt_token_ids=prompts[first],
                response_token_ids=[responses[row] for row in part],
                behavior_log_probs=[log_probs[row] for row in part],
                loss_masks=[masks[row] for row in part],
                rewards=[rewards[row] for row in part],
                outcomes=[outcomes[row] for row in part],
                statuses=["UNSCORABLE" if math.isnan(outcomes[row]) else "COMPLETED" for row in part],
                sampling=training.sampling,
                columns={"num_turns": np.array([turns[row] for row in part], dtype=np.int32)},
            )
        )
    return groups


def _with_replayed(batch: KVBatchMeta, groups: Sequence[RolloutGroup], training: _Training) -> KVBatchMeta:
    """The batch with the groups' rows, put into the queue behind the fresh ones."""
    if not groups:
        return batch
    template = _template(batch)
    keys: list[str] = []
    tags: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for group in groups:
        # verl takes what stands before the first underscore for the group.
        uid = f"replay{uuid.uuid4().hex}"
        shared = {**template, **training.dataset.row(group.prompt_id), "uid": uid}
        for index in range(len(group)):
            row = _row(group, index)
            rows.append({**shared, **row, "session_id": index})
            keys.append(f"{uid}_{index}_0")
            tags.append(_tag(group, len(row["prompts"]), len(row["responses"])))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(rows), tags=tags)
    joined = KVBatchMeta(
        keys=[*batch.keys, *keys],
        tags=[*batch.tags, *tags],
        partition_id=batch.partition_id,
        extra_info=batch.extra_info,
    )
    _check_fields(joined)
    return joined


def _template(batch: KVBatchMeta) -> dict[str, Any]:
    """A fresh row's fields, for those that replayed rows need and that say nothing about the rollout."""
    first = tq.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id)[0]
    template = {name: first[name] for name in first.keys()}  # noqa: SIM118
    if template.get("multi_modal_inputs") or template["position_ids"].dim() != 1:
        raise AdapterError(
            "rows of the queue: expected text alone, got multi-modal ones; set data.curriculum.replay=false"
        )
    known = {*_REQUIRED, "dummy_tensor"}
    unknown = sorted(
        name for name, value in template.items() if isinstance(value, Tensor) and value.dim() and name not in known
    )
    if unknown:
        raise AdapterError(
            f"rows of the queue: replayed ones cannot have {', '.join(unknown)}; set data.curriculum.replay=false"
        )
    return template


def _row(group: RolloutGroup, index: int) -> dict[str, Any]:
    """One stored rollout as verl's agent loop writes it: its own length, no padding."""
    prompt = torch.from_numpy(group.prompt_token_ids.astype(np.int64))
    response = torch.from_numpy(group.response(index).astype(np.int64))
    mask = torch.from_numpy(group.mask(index).astype(np.int64))
    scores = torch.zeros(len(response), dtype=torch.float32)
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
        "num_turns": int(group.column("num_turns")[index]),
        "extra_fields": {
            "reward_extra_info": {},
            "min_global_steps": group.policy_version,
            "max_global_steps": group.policy_version,
        },
    }


def _tag(group: RolloutGroup, prompt: int, response: int) -> dict[str, Any]:
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": group.policy_version + 1,
        "min_global_steps": group.policy_version,
        "max_global_steps": group.policy_version,
    }


def _figures(fresh: Sequence[RolloutGroup], replayed: Sequence[RolloutGroup], training: _Training) -> dict[str, float]:
    """For verl's log, whose own reward metrics are of fresh and replayed rows together."""
    figures = {
        "fresh_groups": float(len(fresh)),
        "replayed_groups": float(len(replayed)),
        "fresh_reward": float(np.concatenate([group.rewards for group in fresh]).mean()),
        "fresh_outcome": float(np.concatenate([group.outcomes for group in fresh]).mean()),
        **training.curriculum.figures(),
    }
    if replayed:
        figures["replay_age_steps"] = float(np.mean([group.age_steps or 0 for group in replayed]))
    return {f"curriculum/{name}": value for name, value in figures.items()}


# Checks before the first step


def _resumed_step(trainer: Any) -> int:
    """The step of the checkpoint that verl is going to resume from, found as verl does; 0 without one."""
    folder = None
    if trainer.resume_mode == "auto":
        folder = find_latest_ckpt_path(os.path.abspath(trainer.default_local_dir))
    elif trainer.resume_mode == "resume_path":
        folder = trainer.resume_from_path
    return int(folder.split("global_step_")[-1]) if folder else 0


def _sampling_settings(settings: Any, where: str) -> dict[str, Any]:
    """How verl samples; -1 and 0 are both no top-k."""
    mode = "processed_logprobs"
    if settings.get("logprobs_mode", mode) != mode and settings.temperature != 1:
        expect(f"{where}.logprobs_mode", settings.logprobs_mode, mode, "verl recomputes log-probs at the temperature")
    return {
        "temperature": float(settings.temperature),
        "top_p": float(settings.top_p),
        "top_k": max(int(settings.top_k), 0),
        "log_prob_mode": "PROCESSED",
    }


def _check(config: Any, replay: bool) -> None:
    supported_version("verl", "0.9.1", "0.10")
    for buffer in (ReplayBuffer, ReplayBufferAsync):
        accepts(buffer.sample, f"{buffer.__name__}.sample", ["global_steps", "partition_id", "batch_size"])
    mode = config.trainer.v1.trainer_mode
    buffers = {"sync": "ServiceReplayBuffer"}
    always = [
        ("trainer.use_v1", True, "the other trainer has no place for replay"),
        (
            "trainer.v1.sampler.custom_sampler.name",
            buffers.get(mode, "ServiceReplayBufferAsync"),
            f"the mode is {mode}",
        ),
        ("data.dataloader_num_workers", 0, "workers would select in processes of their own"),
        ("data.gen_batch_size", 1, "a step needs more prompts by ones when replay is short"),
        (
            "algorithm.filter_groups.enable",
            False,
            "verl does not filter for custom samplers; the service selects instead",
        ),
        ("skip.rollout_tq.enable", False, "rollouts from disk are not of the prompts that are selected"),
        (f"trainer.v1.{mode}.parameter_sync_step", frozenset({1, None}), "a step is one batch"),
    ]
    corrected = [
        ("algorithm.adv_estimator", "grpo", "replayed rows are tested with it alone"),
        ("algorithm.rollout_correction.rollout_is", "token", "replayed rows need their token weights"),
        ("algorithm.rollout_correction.bypass_mode", False, "it clips around the behaviour policy"),
        (
            "algorithm.rollout_correction.rollout_is_batch_normalize",
            False,
            "it scales all rows by the staleness of some",
        ),
        ("algorithm.rollout_correction.rollout_rs", None, "it would mask the tokens that replay is about"),
        ("actor_rollout_ref.rollout.calculate_log_probs", True, "they are what the weights are taken from"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla", "others use the token weights differently or not"),
    ]
    for option, wanted, why in [*always, *(corrected if replay else [])]:
        expect(option, OmegaConf.select(config, option), wanted, why)
    for option in ("data.custom_cls.path", "trainer.v1.sampler.custom_sampler.path"):
        path = OmegaConf.select(config, option)
        if not str(path).startswith(_PACKAGE):
            raise AdapterError(f"{option}: expected {_PACKAGE}{__name__}, got {path!r}: a file would be loaded twice")
    if config.trainer.total_training_steps is None:
        raise AdapterError("trainer.total_training_steps: expected a number, got None: epochs mean nothing here")
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise AdapterError(
            "reward.reward_model.enable_resource_pool: expected True, got False: outcomes are needed when a batch is sampled"
        )
    for option in ("algorithm.rollout_correction.rollout_is_threshold", "actor_rollout_ref.actor.clip_ratio_c"):
        _check_uncapped(option, OmegaConf.select(config, option), replay)


def _check_uncapped(option: str, found: Any, replay: bool) -> None:
    try:
        capped = float(found) < _NO_CAP
    except (TypeError, ValueError):
        capped = True
    if capped and replay:
        raise AdapterError(f"{option}: expected at least {_NO_CAP:.0e}, got {found!r}: weights would be cut off")


def _check_reference_passes(config: Any, every_steps: int, sampling: Mapping[str, Any]) -> None:
    """Validation passes must be what the run takes them for."""
    where = "actor_rollout_ref.rollout.val_kwargs"
    validation = config.actor_rollout_ref.rollout.val_kwargs
    due = "data.curriculum.run.reference.mode is DEDICATED and every_steps"
    expect("trainer.test_freq", config.trainer.test_freq, every_steps, f"{due} is {every_steps}")
    expect("trainer.val_before_train", config.trainer.val_before_train, True, "the first selection rests on a pass")
    expect(
        "data.val_files", config.data.val_files, config.data.train_files, "references are drawn from what is trained on"
    )
    expect(f"{where}.do_sample", validation.do_sample, True, "references are rolled out as in training")
    for name, value in _sampling_settings(validation, where).items():
        expect(f"{where}.{name}", value, sampling[name], "references are rolled out as in training")
