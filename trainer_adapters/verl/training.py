"""What verl's data set, replay buffer and callback share: one training, where it is, and what was chosen for its step.

=============  ========================================================================================================
in a step      what is asked for
=============  ========================================================================================================
first prompt   the service's selection for the step: prompts to roll out, and how many groups to replay
more prompts   further rounds of the same step, when replay is short or rollouts run ahead
sampling       the groups; afterwards the outcomes of the fresh rollouts are reported, and they are stored
=============  ========================================================================================================
"""

from __future__ import annotations

import atexit
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from clients import RolloutGroup, RunInfo
from clients.names import short_name
from selector.v1 import run_pb2
from trainer_adapters.checks import AdapterError
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum, check_replay_capacity
from trainer_adapters.loss import staleness
from trainer_adapters.prompt_pool import PromptPool
from trainer_adapters.verl.start import check_config, check_length, check_reference_passes, sampling_settings


class Training:
    """One training.

    Args:
        config: verl's, of everything.

    Attributes:
        config: the part about the service.
        sampling: how verl samples, as the run states it.
        step: the service's step, that of the next selection.
        dataset: the training's ``CurriculumDataset``; None until verl has made it.
        groups: B, how many a batch holds.
        references_per_pass: prompts of a validation pass; 0 = validation is not about references.
    """

    def __init__(self, config: Any) -> None:
        settings = OmegaConf.select(config, "data.curriculum")
        if settings is None:
            raise AdapterError("data.curriculum: expected target and run_id of a service, got nothing")
        self.config = CurriculumConfig.from_mapping(OmegaConf.to_container(settings, resolve=True))
        check_config(config, self.config.replay)
        self.sampling = sampling_settings(config.actor_rollout_ref.rollout, "actor_rollout_ref.rollout")
        self.step = resumed_step(config.trainer)
        self.dataset: Any = None
        self.groups = 0
        self.references_per_pass = 0
        self._verl = config
        self._seed = int(config.data.get("seed") or 0)
        self._curriculum: Curriculum | None = None
        self._selected_for: int | None = None
        self._issued: list[str] = []
        self._queue: deque[str] = deque()
        self._replay_groups = 0
        self._round = 0
        self._references: deque[str] = deque()
        self._replayed_keys: list[str] = []

    @property
    def curriculum(self) -> Curriculum:
        """Present once verl has made the data set."""
        assert self._curriculum is not None
        return self._curriculum

    def open(self, dataset: Any, pool: PromptPool) -> None:
        """Makes the run what a training needs that starts, or resumes, at ``step``.

        Raises:
            AdapterError: the run and verl's configuration do not go together.
            SelectorError: the service cannot be reached, or refuses.
        """
        group_size = int(self._verl.actor_rollout_ref.rollout.n)
        curriculum = Curriculum(self.config, pool, self.config.run_config(group_size, self._seed, self.sampling))
        curriculum.start(self.step, lambda run: self._fit(run, len(pool)))
        self.dataset, self._curriculum = dataset, curriculum
        # verl says nothing at the end of a training, when an outage may have left something to send.
        atexit.register(curriculum.close)

    def _fit(self, run: RunInfo, prompts: int) -> None:
        """Sizes that follow from the run's config, which verl's must go with."""
        fresh = int(self._verl.data.train_batch_size)
        share = run.config.replay.fresh_fraction if self.config.replay else 1.0
        # The largest batch of which the service leaves ``fresh`` to generate. 1e-9: 7 / 0.07 is a hair below 100.
        self.groups = int(fresh / share + 1e-9)
        check_length(self._verl, prompts, self.groups)
        if self.config.replay:
            check_replay_capacity(run, self.groups)
        self.references_per_pass = self._reference_pass(run, prompts)

    def _reference_pass(self, run: RunInfo, prompts: int) -> int:
        reference = run.config.reference
        if short_name(run_pb2.ReferenceMode.DESCRIPTOR, reference.mode) != "DEDICATED":
            return 0
        check_reference_passes(self._verl, reference.every_steps, self.sampling)
        return min(int(reference.size), prompts)

    # What verl's loaders ask for

    def next_prompts(self, count: int) -> list[str]:
        """The next ``count`` prompts of the step."""
        self.reserve(count)
        return [self._queue.popleft() for _ in range(count)]

    def reserve(self, count: int) -> None:
        """Has ``count`` prompts of the step ready, so that fetches of one prompt are not a call each.

        Raises:
            AdapterError: a step needs more prompts than there are.
        """
        if self._selected_for != self.step:
            chosen = self.curriculum.select(self.step, self.groups)
            self._selected_for, self._round, self._replay_groups = self.step, 0, chosen.replay_groups
            self._issued, self._queue = list(chosen.prompt_ids), deque(chosen.prompt_ids)
        while len(self._queue) < count:
            self._round += 1
            more = self.curriculum.top_up(self.step, count - len(self._queue), self._round, self._issued)
            if not more:
                raise AdapterError(
                    f"data.train_files: step {self.step} needs more than the {len(self._issued)} there are"
                )
            self._issued += more
            self._queue += more

    def next_references(self, count: int) -> list[str]:
        """The next ``count`` prompts of a reference pass; verl needs them even while the service is away."""
        if not self._references:
            drawn = self.curriculum.references(self.step)[: self.references_per_pass]
            missing = self.references_per_pass - len(drawn)
            self._references += (*drawn, *self.curriculum.pool.uniform(missing, self._seed, self.step, drawn))
        return [self._references.popleft() for _ in range(count)]

    # What the replay buffer does in a step

    def replay(self) -> list[RolloutGroup]:
        """The groups of the step's batch that are not generated."""
        selected = self._selected_for == self.step
        return self.curriculum.replay(self.step, self._replay_groups if selected else 0)

    def deliver(self, groups: Sequence[RolloutGroup]) -> None:
        """Reports and stores fresh groups."""
        outcomes: dict[str, list[float]] = {}
        for group in groups:
            # Asynchronous trainers may have a prompt in a batch twice.
            outcomes.setdefault(group.prompt_id, []).extend(group.outcomes.tolist())
        if self._verl.trainer.v1.trainer_mode == "sync":
            # Nothing is still under way, so what has no rows has failed.
            waiting = set(self._queue)
            outcomes.update({each: [] for each in self._issued if each not in waiting and each not in outcomes})
        self.report(outcomes, "train")
        self.curriculum.push(self.step, {group.prompt_id: group for group in groups}.values())

    def report(self, outcomes: Mapping[str, Sequence[float]], purpose: str) -> None:
        """Outcomes of fresh rollouts by prompt; none of a prompt = they failed, NaN = they could not be scored."""
        if not outcomes:
            return
        statuses = {
            prompt_id: ["UNSCORABLE" if math.isnan(value) else "COMPLETED" for value in values] or ["ABORTED"]
            for prompt_id, values in outcomes.items()
        }
        given = {prompt_id: list(values) or [math.nan] for prompt_id, values in outcomes.items()}
        self.curriculum.report(self.step, given, statuses, purpose)

    def advance(self, step: int, replayed_keys: Sequence[str]) -> None:
        """What is fetched from now on is of ``step``."""
        self.step = step
        self._replayed_keys = list(replayed_keys)

    def report_staleness(self) -> None:
        """Effective sample size and largest weight of the last batch's replayed rows, once pi_old is in the queue.

        verl calls nothing of ours in every step between that and the end of the rows: only after a checkpoint, and
        in a validation.
        """
        if not self._replayed_keys:
            return
        names = ["old_log_probs", "rollout_log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=self._replayed_keys, partition_id="train", select_fields=names)
        self._replayed_keys = []
        old, behavior, mask = (data[name].to_padded_tensor(0) for name in names)
        size, largest = staleness((old - behavior)[mask != 0])
        self.curriculum.report_training(self.step - 1, effective_sample_size=size, max_importance_weight=largest)

    def figures(self, fresh: Sequence[RolloutGroup], replayed: Sequence[RolloutGroup]) -> dict[str, float]:
        """For verl's log, whose own metrics of rewards and lengths are of fresh and replayed rows together."""
        figures = {
            "fresh_groups": float(len(fresh)),
            "replayed_groups": float(len(replayed)),
            "fresh_reward": float(np.concatenate([group.rewards for group in fresh]).mean()),
            "fresh_outcome": float(np.nanmean(np.concatenate([group.outcomes for group in fresh]))),
            **self.curriculum.figures(),
        }
        if replayed:
            figures["replay_age_steps"] = float(np.mean([group.age_steps or 0 for group in replayed]))
        return {f"curriculum/{name}": value for name, value in figures.items()}


def resumed_step(trainer: Any) -> int:
    """The step of the checkpoint that verl is going to resume from, found as verl finds it; 0 without one.

    Args:
        trainer: the section of verl's configuration.
    """
    folder = None
    if trainer.resume_mode == "auto":
        folder = find_latest_ckpt_path(os.path.abspath(trainer.default_local_dir))
    elif trainer.resume_mode == "resume_path":
        folder = trainer.resume_from_path
    return int(folder.split("global_step_")[-1]) if folder else 0
