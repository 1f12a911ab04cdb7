"""OpenRLHF (>= 0.11.2, < 0.12): its PPO trainer on the prompts that the service chooses, and on replayed rollouts.

    export SELECTOR_CURRICULUM='{"target": "127.0.0.1:50051", "run_id": "my-training"}'
    python -m trainer_adapters.openrlhf --actor.model_name_or_path … (as openrlhf.cli.train_ppo_ray)

The command puts ``CurriculumSamplesGenerator`` in the place of OpenRLHF's ``SamplesGenerator`` and runs OpenRLHF's own
command line. The trainers, synchronous and asynchronous, are as they are; where they ask for a batch, the generator

1. asks the service which prompts to roll out, and has OpenRLHF's engines and reward function do it;
2. reports the raw task scores of these rollouts, samples groups to replay, and stores the fresh ones with the log-probs
   that vLLM drew them with;
3. returns the fresh rows followed by the replayed ones: whole groups, the same number of rows every step. What comes
   after, the log-probs of pi_old and of the reference model, advantages and sharding, treats all rows alike.

With ``is_correction_level token``, ``is_correction_mode clip`` and a wide threshold, OpenRLHF's policy loss multiplies
each token by w = pi_old/pi_behaviour: the objective of ``trainer_adapters.loss`` with ``centre="old"``.

A step is a batch: step s is what the trainer counts as global step s + 1. The number of the next one is what the prompt
loader saves with a checkpoint instead of its position, so that a resumed training continues where the checkpoint was
made. An episode has as many steps as it has without the adapter.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from clients import RolloutGroup
from trainer_adapters.checks import AdapterError, accepts, expect, supported_version
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Chosen, Curriculum
from trainer_adapters.prompt_pool import PromptPool

try:
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
    from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
except ImportError:
    # Another release may not have these modules: say that rather than which of them is missing.
    supported_version("openrlhf", "0.11.2", "0.12")
    raise

__all__ = ["VARIABLE", "CurriculumConfig", "CurriculumSamplesGenerator", "configured", "install", "main"]

VARIABLE = "SELECTOR_CURRICULUM"
COMMAND_LINE = "openrlhf.cli.train_ppo_ray"
# In the state of the prompt loader, which OpenRLHF saves and restores with its checkpoints.
_STEP = "curriculum_step"
# The least upper bound of the token weight that counts as none: a larger weight is a broken log-prob.
_NO_CAP = 1e6


class CurriculumSamplesGenerator(SamplesGenerator):
    """What OpenRLHF's trainers draw their batches from.

    Args:
        strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines: as OpenRLHF gives them.
        curriculum: which service and run. ``curriculum.outcome`` names what the raw task score is called among the
            reward function's ``extra_logs``; None = its ``scores``, or its ``rewards`` where it gives no scores.

    Raises:
        AdapterError: settings with which selection or replay would silently be wrong; see docs/trainers/openrlhf.md.
        SelectorError: the service cannot be reached, or the run exists with another config.
    """

    def __init__(
        self,
        strategy: Any,
        prompts_dataloader: Any,
        eval_dataloader: Any,
        tokenizer: Any,
        vllm_engines: Any,
        *,
        curriculum: CurriculumConfig,
    ) -> None:
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines)
        self._config = curriculum
        self._batch, self._group_size = self.args.rollout.batch_size, self.args.rollout.n_samples_per_prompt
        self._sampling = {
            "temperature": float(self.args.rollout.temperature),
            "top_p": float(self.args.rollout.top_p),
            "top_k": 0,
            "log_prob_mode": "PROCESSED",
        }
        dataset = prompts_dataloader.dataset
        _check_batches(self.args, dataset)
        if curriculum.replay:
            _check_loss(self.args)
        pool = PromptPool.from_texts(dataset.prompts, tuple(map(str, dataset.datasources)))
        self._rows = dict(zip(pool.prompt_ids, zip(dataset.prompts, dataset.labels, strict=True), strict=True))
        run = curriculum.run_config(self._group_size, self.args.train.seed, self._sampling)
        client = curriculum.client()
        # The first batch is asked for after the models have been loaded; what is wrong with the run is told before.
        client.wait_ready()
        client.create_run(run)
        self._curriculum = Curriculum(curriculum, pool, run, client)
        self._episode_steps = -(-len(pool) // self._batch)
        self._step = 0
        self._begun = self._reference_due = self._episode_ended = False
        # OpenRLHF saves the loader's state with every checkpoint and restores it before the first batch.
        prompts_dataloader.state_dict = self._saved
        prompts_dataloader.load_state_dict = self._resumed

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """The rows of one step; none, and that the prompts are exhausted, where an episode ends.

        Returns:
            ``batch_size * n_samples_per_prompt`` experiences of one row each, None, prompts counted as consumed, and
            whether the episode has ended.

        Raises:
            AdapterError: rollouts without finite rewards or log-probs, or made with other settings than the run's.
        """
        self._check_call(generate_kwargs)
        if not self._begun:
            self._reference_due = self._curriculum.start(self._step).reference_due
            self._begun = True
        step = self._step
        if step and step % self._episode_steps == 0 and not self._episode_ended:
            self._episode_ended = True
            if step >= self._episode_steps * self.args.train.num_episodes:
                self._curriculum.close()
            return [], None, 0, True
        self._episode_ended = False
        if self._reference_due:
            references = self._rolled_out(self._curriculum.references(step), generate_kwargs)
            self._report(step, references, "reference")
        chosen = self._curriculum.select(step, self._batch)
        self._reference_due = chosen.reference_due
        replayed, prompt_ids = self._filled(step, chosen)
        fresh = self._rolled_out(prompt_ids, generate_kwargs)
        self._report(step, fresh, "train")
        if self._config.replay:
            self._curriculum.push(step, self._storable(step, fresh))
        self._step = step + 1
        return self._joined(step, [row for rows in fresh.values() for row in rows], replayed), None, self._batch, False

    # The state of the prompt loader

    def _saved(self) -> dict[str, Any]:
        return {_STEP: self._step}

    def _resumed(self, state: Mapping[str, Any]) -> None:
        if _STEP not in state:
            raise AdapterError(
                f"ckpt.load_enable: expected a checkpoint of a training with the adapter, which knows its step, "
                f"got one whose loader saved {sorted(state)}"
            )
        self._step = state[_STEP]

    # One step

    def _filled(self, step: int, chosen: Chosen) -> tuple[list[RolloutGroup], tuple[str, ...]]:
        """Groups to replay and prompts to roll out, together a whole batch, at least one of them fresh."""
        replayed = self._curriculum.replay(step, min(chosen.replay_groups, self._batch - 1))
        for group in replayed:
            expect(f"replayed group {group.group_id}: rollouts", len(group), self._group_size, "groups must be whole")
        missing = self._batch - len(replayed) - len(chosen.prompt_ids)
        more = self._curriculum.top_up(step, missing, 1, chosen.prompt_ids)
        return replayed, (*chosen.prompt_ids, *more)

    def _rolled_out(self, prompt_ids: Sequence[str], generate_kwargs: Mapping[str, Any]) -> dict[str, list[Experience]]:
        """By prompt id the experiences of its rollouts, in the order of the prompts."""
        if not prompt_ids:
            return {}
        prompts, labels = zip(*(self._row(prompt_id) for prompt_id in prompt_ids), strict=True)
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        answers = self._dispatch_prompts_to_vllm(list(prompts), list(labels), **generate_kwargs)
        groups = {
            prompt_id: [self._process_response_into_experience(each, **generate_kwargs) for each in ray.get(answer)]
            for prompt_id, answer in zip(prompt_ids, answers, strict=True)
        }
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")
        for prompt_id, rows in groups.items():
            expect(f"rollouts of {prompt_id!r}", len(rows), self._group_size, "groups must be whole")
            for row in rows:
                _check_reward(row, prompt_id)
        if self._config.replay:
            _check_log_probs(groups)
        return groups

    def _row(self, prompt_id: str) -> tuple[str, Any]:
        """A prompt's text and label."""
        if prompt_id not in self._rows:
            raise AdapterError(
                f"run {self._config.run_id}: expected the prompts of data.prompt_dataset, got {prompt_id!r}: the run "
                "was made with others; retire those or use another run id"
            )
        return self._rows[prompt_id]

    def _outcomes(self, rows: Sequence[Experience]) -> np.ndarray:
        """(G,) raw task scores; NaN where there is none."""
        name = self._config.outcome
        if name is None:
            return np.array([float(row.scores) for row in rows])
        for row in rows:
            if name not in row.info:
                raise AdapterError(f"curriculum.outcome: expected one of {sorted(row.info)}, got {name!r}")
        return np.array([float(row.info[name]) for row in rows])

    def _report(self, step: int, groups: Mapping[str, Sequence[Experience]], purpose: str) -> None:
        outcomes = {prompt_id: self._outcomes(rows) for prompt_id, rows in groups.items()}
        statuses = {prompt_id: _statuses(rows, outcomes[prompt_id]) for prompt_id, rows in groups.items()}
        if outcomes:
            self._curriculum.report(step, outcomes, statuses, purpose)

    def _storable(self, step: int, groups: Mapping[str, Sequence[Experience]]) -> list[RolloutGroup]:
        """Groups to be stored: all but those with a rollout that has no response or no score."""
        stored = []
        for prompt_id, rows in groups.items():
            outcomes = self._outcomes(rows)
            if np.isnan(outcomes).any() or not all(row.action_mask.any() for row in rows):
                continue
            parts = [_unpadded(row) for row in rows]
            if any(not np.array_equal(prompt, parts[0][0]) for prompt, *_ in parts):
                raise AdapterError(
                    f"rollouts of {prompt_id!r}: expected one prompt, got several: an agent whose first observation "
                    'differs between rollouts cannot be replayed; set "replay": false'
                )
            stored.append(
                RolloutGroup.from_arrays(
                    prompt_id=prompt_id,
                    policy_version=step,
                    prompt_token_ids=parts[0][0],
                    response_token_ids=[response for _, response, _, _ in parts],
                    behavior_log_probs=[log_probs for _, _, log_probs, _ in parts],
                    loss_masks=[mask for *_, mask in parts],
                    rewards=[float(row.rewards) for row in rows],
                    outcomes=outcomes,
                    statuses=_statuses(rows, outcomes),
                    sampling=self._sampling,
                )
            )
        return stored

    def _joined(self, step: int, fresh: list[Experience], replayed: Sequence[RolloutGroup]) -> list[Experience]:
        """Fresh rows, then replayed ones, with the same figures on all: OpenRLHF logs each one's mean over the rows.

        A replayed row gets the fresh rows' mean of what it does not have, so that the logged mean is of fresh rows.
        """
        means = {name: torch.stack([row.info[name].float() for row in fresh]).mean(dim=0) for name in fresh[0].info}
        ages = [float(group.age_steps or 0) for group in replayed]
        rows = [(row, 0.0, float(row.rewards)) for row in fresh]
        mean_reward = sum(reward for *_, reward in rows) / len(rows)
        for group in replayed:
            prompt, label = self._row(group.prompt_id)
            for index in range(len(group)):
                row = _experience(group, index, prompt, label)
                row.info = {**means, "reward": row.rewards.clone()}
                rows.append((row, 1.0, mean_reward))
        shared = {"age_steps": float(np.mean(ages)) if ages else 0.0, **self._curriculum.figures()}
        for row, is_replayed, reward in rows:
            for name, value in {"replayed": is_replayed, "fresh_reward": reward, **shared}.items():
                row.info[f"curriculum/{name}"] = torch.tensor([value])
        return [row for row, *_ in rows]

    def _check_call(self, generate_kwargs: Mapping[str, Any]) -> None:
        """What the trainer generates with is what it said at the start."""
        found = {
            "temperature": generate_kwargs.get("temperature", 1.0),
            "top_p": generate_kwargs.get("top_p", 1.0),
            "top_k": max(generate_kwargs.get("top_k", -1), 0),
        }
        for name, value in found.items():
            expect(f"generate_samples({name})", value, self._sampling[name], "the run was made with it")
        size = generate_kwargs.get("n_samples_per_prompt", self._group_size)
        expect("generate_samples(n_samples_per_prompt)", size, self._group_size, "it is the run's group_size")


def install(config: CurriculumConfig) -> None:
    """Lets both of OpenRLHF's trainers draw from the curriculum, in this process and in the Ray actors it starts.

    To be called before the first trainer is made. The settings travel with the class; the package must be importable
    where the actors run.

    Raises:
        AdapterError: this release of OpenRLHF is not supported.
    """
    supported_version("openrlhf", "0.11.2", "0.12")
    own = ["strategy", "prompts_dataloader", "eval_dataloader", "tokenizer", "vllm_engines"]
    for name, parameters in {
        "__init__": own,
        "generate_samples": ["generate_kwargs"],
        "_dispatch_prompts_to_vllm": ["prompts", "labels", "images", "generate_kwargs"],
        "_process_response_into_experience": ["response", "generate_kwargs"],
    }.items():
        accepts(getattr(SamplesGenerator, name), f"SamplesGenerator.{name}", parameters)
    # Not before: engine processes must not import DeepSpeed.
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async

    for module in (ppo_trainer, ppo_trainer_async):
        module.SamplesGenerator = partial(CurriculumSamplesGenerator, curriculum=config)


def configured(environment: Mapping[str, str]) -> CurriculumConfig:
    """The settings that the variable SELECTOR_CURRICULUM holds: a JSON object, or the path of a file with one.

    Raises:
        AdapterError: it is missing, cannot be read, or has unknown or missing names.
    """
    value = environment.get(VARIABLE, "").strip()
    if not value:
        raise AdapterError(f'{VARIABLE}: expected {{"target": "host:port", "run_id": "…"}} or a file with it, got none')
    try:
        settings = json.loads(value if value.startswith("{") else Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{VARIABLE}: expected a JSON object or the path of a file with one: {error}") from error
    if not isinstance(settings, dict):
        raise AdapterError(f"{VARIABLE}: expected a JSON object, got {settings!r}")
    return CurriculumConfig.from_mapping(settings)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """OpenRLHF's PPO command line with the adapter; ``arguments`` are all its own."""
    install(configured(environment))
    sys.argv = [COMMAND_LINE, *arguments]
    runpy.run_module(COMMAND_LINE, run_name="__main__", alter_sys=True)


# Checks before the first step


def _check_batches(args: Any, dataset: Any) -> None:
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
    images = getattr(args.data, "max_images_per_prompt", 0) or sum(image is not None for image in dataset.images)
    expect("data.image_key: images", images, 0, "images of replayed rows are not kept")
    if len(dataset) < rollout.batch_size:
        raise AdapterError(
            f"data.prompt_dataset: expected at least the {rollout.batch_size} prompts of a batch, got {len(dataset)}"
        )


def _check_loss(args: Any) -> None:
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


# Rows


def _check_reward(row: Experience, prompt_id: str) -> None:
    if row.rewards is None or not torch.isfinite(row.rewards.float()).all():
        raise AdapterError(
            f"rollouts of {prompt_id!r}: expected a finite reward, got {row.rewards}: the reward function failed; the "
            "engine's log says why"
        )


def _check_log_probs(groups: Mapping[str, Sequence[Experience]]) -> None:
    """vLLM's log-probs of the tokens it drew, without which there is nothing to correct with."""
    wanted = "expected vLLM's log-prob of every token it drew"
    some = False
    for prompt_id, rows in groups.items():
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
            some = some or bool((drawn != 0).any())
    # OpenRLHF puts 0 where vLLM gave none.
    if groups and not some:
        raise AdapterError(f"rollouts: {wanted}, got 0 for all of them")


def _statuses(rows: Sequence[Experience], outcomes: np.ndarray) -> list[str]:
    return [
        "UNSCORABLE" if np.isnan(outcome) else "TRUNCATED" if bool(row.truncated) else "COMPLETED"
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def _unpadded(row: Experience) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Prompt tokens, and response tokens with log-probs and mask: what follows the first token that was drawn.

    ``action_mask`` and ``rollout_log_probs`` are one shorter than ``sequences``: place t is of token t + 1.
    """
    sequence, mask = row.sequences[0].numpy(), row.action_mask[0].numpy()
    first = int(np.argmax(mask != 0))
    return sequence[: first + 1], sequence[first + 1 :], row.rollout_log_probs[0, first:].numpy(), mask[first:]


def _experience(group: RolloutGroup, index: int, prompt: str, label: Any) -> Experience:
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


if __name__ == "__main__":
    # Under its real name, so that Ray's workers can import what is in it.
    from trainer_adapters.openrlhf import main as run

    run(sys.argv[1:], os.environ)
