"""What OpenRLHF's trainers draw their batches from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from clients import RolloutGroup, RunInfo
from trainer_adapters.checks import AdapterError, expect
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum, check_replay_capacity
from trainer_adapters.openrlhf.rows import REPLAYED, STEP, check_log_probs, check_reward, experience, statuses, stored
from trainer_adapters.openrlhf.start import check_batches, check_loss, sampling_settings
from trainer_adapters.prompt_pool import PromptPool
from trainer_adapters.rows import first_number

# In the state of the prompt loader, which OpenRLHF saves and restores with its checkpoints.
_STEP, _EPISODE = "curriculum_step", "curriculum_episode_steps"
_OTHER = (
    "rollout.batch_size or the number of prompts is not the checkpoint's, and its place in the training would be lost"
)


class CurriculumSamplesGenerator(SamplesGenerator):
    """What OpenRLHF's trainers draw their batches from.

    Args:
        strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines: as OpenRLHF gives them.
        curriculum: which service and run. ``curriculum.outcome`` names what the raw task score is called among the
            reward function's ``extra_logs``, of several names the first that is not NaN; None = its ``scores``, or its
            ``rewards`` where it gives no scores.

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
        dataset = prompts_dataloader.dataset
        check_batches(self.args, dataset)
        if curriculum.replay:
            check_loss(self.args)
        self._batch, self._group_size = self.args.rollout.batch_size, self.args.rollout.n_samples_per_prompt
        self._sampling = sampling_settings(self.args)
        pool = PromptPool.from_texts(dataset.prompts, tuple(map(str, dataset.datasources)))
        self._rows = dict(zip(pool.prompt_ids, zip(dataset.prompts, dataset.labels, strict=True), strict=True))
        run = curriculum.run_config(self._group_size, self.args.train.seed, self._sampling)
        self._curriculum = Curriculum(curriculum, pool, run)
        # The first batch is asked for after the models have been loaded; what is wrong with the run is told before.
        self._curriculum.create(self._check_run)
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
        plan = self._curriculum.plan(step, self._batch)
        self._reference_due = plan.reference_due
        for group in plan.replayed:
            expect(f"replayed group {group.group_id}: rollouts", len(group), self._group_size, "groups must be whole")
        fresh = self._rolled_out(plan.prompt_ids, generate_kwargs)
        outcomes = self._report(step, fresh, "train")
        if self._config.replay:
            self._curriculum.push(step, self._storable(step, fresh, outcomes))
        self._step = step + 1
        rows = self._joined(step, [row for rows in fresh.values() for row in rows], plan.replayed)
        return rows, None, self._batch, False

    # The state of the prompt loader

    def _saved(self) -> dict[str, Any]:
        return {_STEP: self._step, _EPISODE: self._episode_steps}

    def _resumed(self, state: Mapping[str, Any]) -> None:
        if _STEP not in state:
            raise AdapterError(
                f"ckpt.load_enable: expected a checkpoint of a training with the adapter, which knows its step, "
                f"got one whose loader saved {sorted(state)}"
            )
        expect("ckpt.load_enable: steps of an episode", self._episode_steps, state.get(_EPISODE), _OTHER)
        self._step = state[_STEP]

    # One step

    def _rolled_out(self, prompt_ids: Sequence[str], generate_kwargs: Mapping[str, Any]) -> dict[str, list[Experience]]:
        """By prompt id the experiences of its rollouts, in the order of the prompts."""
        if not prompt_ids:
            return {}
        prompts, labels = zip(*(self._rows[prompt_id] for prompt_id in prompt_ids), strict=True)
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
                check_reward(row, prompt_id)
        if self._config.replay:
            check_log_probs(groups)
        return groups

    def _outcomes(self, rows: Sequence[Experience]) -> np.ndarray:
        """(G,) raw task scores; NaN where there is none."""
        names = self._config.outcomes
        if not names:
            return np.array([float(row.scores) for row in rows])
        # Domains may answer with different keys.
        if not any(name in row.info for name in names for row in rows):
            raise AdapterError(f"curriculum.outcome: expected one of {sorted(rows[0].info)}, got {list(names)}")
        return np.array([first_number(float(row.info[name]) for name in names if name in row.info) for row in rows])

    def _report(self, step: int, groups: Mapping[str, Sequence[Experience]], purpose: str) -> dict[str, np.ndarray]:
        """By prompt id the (G,) raw task scores that were reported."""
        outcomes = {prompt_id: self._outcomes(rows) for prompt_id, rows in groups.items()}
        if groups:
            states = {prompt_id: statuses(rows, outcomes[prompt_id]) for prompt_id, rows in groups.items()}
            self._curriculum.report(step, outcomes, states, purpose)
        return outcomes

    def _storable(
        self, step: int, groups: Mapping[str, Sequence[Experience]], outcomes: Mapping[str, np.ndarray]
    ) -> list[RolloutGroup]:
        """All groups but those with a rollout of which no token was drawn."""
        return [
            stored(rows, outcomes[prompt_id], prompt_id, step, self._sampling)
            for prompt_id, rows in groups.items()
            if all(row.action_mask.any() for row in rows)
        ]

    def _joined(self, step: int, fresh: Sequence[Experience], replayed: Sequence[RolloutGroup]) -> list[Experience]:
        """Fresh rows, then replayed ones, with the same figures on all: OpenRLHF logs each one's mean over the rows.

        A replayed row gets the fresh rows' mean of what it does not have, so that the logged mean is of fresh rows.
        """
        names = {name for row in fresh for name in row.info}
        means = {
            name: torch.stack([row.info[name].float() for row in fresh if name in row.info]).mean(dim=0)
            for name in names
        }
        ages = [float(group.age_steps or 0) for group in replayed]
        rows = [(row, 0.0, float(row.rewards)) for row in fresh]
        mean_reward = sum(reward for *_, reward in rows) / len(rows)
        for group in replayed:
            # A prompt that was retired may have left the data set; its groups may be replayed until they are too old.
            prompt, label = self._rows.get(group.prompt_id, ("", ""))
            for index in range(len(group)):
                row = experience(group, index, prompt, label)
                row.info = {**means, "reward": row.rewards.clone()}
                rows.append((row, 1.0, mean_reward))
        figures = {"age_steps": float(np.mean(ages)) if ages else 0.0, **self._curriculum.figures()}
        shared = {STEP: float(step), **{f"curriculum/{name}": value for name, value in figures.items()}}
        for row, is_replayed, reward in rows:
            for name, value in {REPLAYED: is_replayed, "curriculum/fresh_reward": reward, **shared}.items():
                row.info[name] = torch.tensor([value])
        return [row for row, *_ in rows]

    def _check_run(self, run: RunInfo) -> None:
        if self._config.replay:
            check_replay_capacity(run, self._batch)

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
