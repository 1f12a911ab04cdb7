"""The trainer: see the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from clients import RolloutGroup, RunInfo
from trainer_adapters.checks import AdapterError, accepts, supported_version
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum, check_replay_capacity
from trainer_adapters.loss import MAX_LOG_RATIO
from trainer_adapters.processes import on_main, share
from trainer_adapters.rows import padded
from trainer_adapters.trl.start import (
    check_batches,
    check_loss,
    check_processes,
    check_replay_share,
    outcome_functions,
    prompts_of,
    sampling_of,
)

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Trainer
else:
    _Trainer = object

# As TRL divides by a group's standard deviation.
_STD_OFFSET = 1e-4
# What replayed rows can be given; anything else that TRL adds to a batch would be missing from them.
_LEFT_PADDED = ("prompt_ids", "prompt_mask")
_RIGHT_PADDED = (
    "completion_ids",
    "completion_mask",
    "old_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
_KNOWN = {*_LEFT_PADDED, *_RIGHT_PADDED, "advantages", "num_items_in_batch"}


@dataclass(frozen=True)
class _Scores:
    """Of this process's fresh rollouts, in the order of their rows: what is optimised, and the raw task score."""

    rewards: np.ndarray
    outcomes: np.ndarray
    statuses: list[str]


class CurriculumMixin(_Trainer):
    """To be put before ``GRPOTrainer`` or a subclass of it.

    Args:
        curriculum: which service and run. ``curriculum.outcome`` names the reward function that is the raw task score,
            or several for domains with functions of their own; it may be left out where there is one.

    The columns ``prompt_id`` and ``domain`` of the data set are used where it has them; otherwise prompts are named by
    their content.

    Raises:
        AdapterError: settings with which selection or replay would silently be wrong; see ``docs/trainers/trl.md``.
    """

    def __init__(self, *args: Any, curriculum: CurriculumConfig, **kwargs: Any) -> None:
        supported_version("trl", "1.16", "2")
        accepts(GRPOTrainer._generate_and_score_completions, "GRPOTrainer._generate_and_score_completions", ["inputs"])
        accepts(GRPOTrainer._generate, "GRPOTrainer._generate", ["prompts"])
        super().__init__(*args, **kwargs)
        self._config = curriculum
        self._outcome = outcome_functions(self, curriculum)
        self._sampling = sampling_of(self)
        check_batches(self)
        check_processes(self, curriculum)
        if curriculum.replay:
            check_loss(self)
        self._pool, self._rows = prompts_of(self.train_dataset)
        groups = self.args.generation_batch_size // self.num_generations
        if len(self._pool) < groups:
            raise AdapterError(
                f"train_dataset: expected at least the {groups} prompts of a batch, got {len(self._pool)}"
            )
        self._run = curriculum.run_config(self.num_generations, self.args.seed, self._sampling)
        self._curriculum: Curriculum | None = None
        self._reference_due = False
        self._staleness: dict[str, float] = {}
        self.add_callback(CurriculumCallback(self))

    # What the callback calls

    def begin_curriculum(self, step: int) -> None:
        """Makes the run what a training that begins at ``step`` needs."""
        self._curriculum = Curriculum(self._config, self._pool, self._run)
        self._reference_due = on_main(self._curriculum.start, step, self._check_run).reference_due

    def _check_run(self, run: RunInfo) -> None:
        if self._config.replay:
            check_replay_share(self, run.config.replay.fresh_fraction)
            check_replay_capacity(run, self.args.generation_batch_size // self.num_generations)

    def report_curriculum_training(self, step: int) -> None:
        """Tells the service what the step that has just been trained saw."""
        clipped = self._metrics["train"].get("clip_ratio/region_mean", [])[-self.current_gradient_accumulation_steps :]
        fraction = sum(clipped) / len(clipped) if clipped else None
        on_main(self._service.report_training, step, clip_fraction=fraction, updates=1, **self._staleness)
        self._staleness = {}

    def end_curriculum(self) -> None:
        """Sends what is kept, and disconnects."""
        # Without a broadcast: when the interpreter ends just after one, gloo's thread aborts the process now and then.
        if self.accelerator.is_main_process:
            self._service.close()
        self._curriculum = None

    # What TRL calls

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        step, groups = self.state.global_step, len(inputs) // self.num_generations
        if self._reference_due:
            self._reference_pass(step, groups)
        processes = self.accelerator.num_processes
        plan = on_main(self._service.plan, step, groups * processes, processes)
        self._reference_due = plan.reference_due
        # TRL shows the latest generation batch, which its own would have filled whole.
        _clear(self._logs)
        prompt_ids = share(plan.prompt_ids)
        output, scores = self._rolled_out(prompt_ids)
        self._report(step, prompt_ids, scores)
        if self._config.replay:
            on_main(self._service.push, step, gather_object(self._groups(output, step, prompt_ids, scores)))
        replayed = share(plan.replayed)
        if replayed:
            output = self._joined(output, replayed)
        self._log_replay(len(plan.prompt_ids), len(plan.replayed))
        return output

    def _generate(self, prompts: list[Any]) -> Any:
        generated = super()._generate(prompts)
        # Before padding, and before truncated completions are masked.
        self._generated = generated
        return generated

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards
        return rewards

    # One batch

    @property
    def _service(self) -> Curriculum:
        """What asks the service, in process 0 alone."""
        if self._curriculum is None:
            raise AdapterError("train(): batches are chosen while it runs, and there only")
        return self._curriculum

    def _rolled_out(self, prompt_ids: Sequence[str]) -> tuple[dict[str, Any], _Scores]:
        """TRL's batch of this process's fresh rows, and how they were scored."""
        # A row of its own for each rollout, because TRL adds fields to them.
        rows = [
            dict(self.train_dataset[self._rows[prompt_id]])
            for prompt_id in prompt_ids
            for _ in range(self.num_generations)
        ]
        output = super()._generate_and_score_completions(rows)
        first = self.accelerator.process_index * len(rows)
        per_function = self._rewards[first : first + len(rows)].double().cpu()
        rewards = (per_function * self.reward_weights.double().cpu()).nansum(dim=1).numpy()
        outcomes = np.full(len(rows), np.nan)
        for position in self._outcome:
            outcomes = np.where(np.isnan(outcomes), per_function[:, position].numpy(), outcomes)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        statuses = [
            "UNSCORABLE" if np.isnan(outcome) else "COMPLETED" if completion[-1] in ends else "TRUNCATED"
            for outcome, completion in zip(outcomes, self._generated[1], strict=True)
        ]
        return output, _Scores(rewards, outcomes, statuses)

    def _report(self, step: int, prompt_ids: Sequence[str], scores: _Scores, purpose: str = "train") -> None:
        """Outcomes of all processes' fresh rollouts; of a prompt that occurs twice, the first group's."""
        mine: dict[str, tuple[np.ndarray, list[str]]] = {}
        for start, prompt_id in zip(range(0, len(scores.outcomes), self.num_generations), prompt_ids, strict=True):
            part = slice(start, start + self.num_generations)
            mine.setdefault(prompt_id, (scores.outcomes[part], scores.statuses[part]))
        everybodys = dict(reversed(gather_object(list(mine.items()))))
        outcomes = {prompt_id: outcome for prompt_id, (outcome, _) in everybodys.items()}
        statuses = {prompt_id: status for prompt_id, (_, status) in everybodys.items()}
        on_main(self._service.report, step, outcomes, statuses, purpose)

    def _groups(
        self, output: Mapping[str, Any], step: int, prompt_ids: Sequence[str], scores: _Scores
    ) -> list[RolloutGroup]:
        """This process's fresh groups, with the log-probs that their tokens were drawn with."""
        prompts, completions, _, _, log_probs = self._generated[:5]
        if log_probs is None:
            log_probs = self._log_probs(output, completions)
        masks = output["completion_mask"].cpu().numpy()
        groups = []
        for start, prompt_id in zip(range(0, len(completions), self.num_generations), prompt_ids, strict=True):
            part = range(start, start + self.num_generations)
            kept = [masks[row, : len(completions[row])] for row in part]
            groups.append(
                RolloutGroup.from_arrays(
                    prompt_id=prompt_id,
                    policy_version=step,
                    prompt_token_ids=prompts[start],
                    response_token_ids=[completions[row] for row in part],
                    behavior_log_probs=[_floats(log_probs[row]) for row in part],
                    # Truncated completions, where TRL leaves them out.
                    loss_masks=None if all(mask.all() for mask in kept) else kept,
                    rewards=scores.rewards[part.start : part.stop],
                    outcomes=scores.outcomes[part.start : part.stop],
                    statuses=scores.statuses[part.start : part.stop],
                    sampling=self._sampling,
                )
            )
        return groups

    def _log_probs(self, output: Mapping[str, Any], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Of the fresh rows under the model that has just generated them."""
        old = output.get("old_per_token_logps")
        if old is None:
            old = self._recomputed(output)
        values = old.float().cpu().numpy()
        return [row[: len(completion)] for row, completion in zip(values, completions, strict=True)]

    def _recomputed(self, rows: Mapping[str, Any]) -> Tensor:
        """(rows, completion) log-probs of pi_old: the model as it is, without gradient."""
        with torch.no_grad():
            return self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1),
                torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1),
                rows["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
            )[0]

    def _joined(self, output: dict[str, Any], groups: Sequence[RolloutGroup]) -> dict[str, Any]:
        """The batch with replayed rows behind the fresh ones."""
        unknown = sorted(output.keys() - _KNOWN)
        if unknown:
            raise AdapterError(
                f"batch: replayed rows cannot have {', '.join(unknown)}; use CurriculumConfig(replay=False)"
            )
        rows = self._replayed_rows(groups)
        old = self._recomputed(rows)
        log_weight = (old - rows["sampling_per_token_logps"]).clamp(max=MAX_LOG_RATIO) * rows["completion_mask"]
        weight = log_weight.exp()
        advantages = torch.cat([self._advantages(group) for group in groups]).to(weight.device)[:, None]
        fresh = output["advantages"][:, None].expand(-1, output["completion_ids"].size(1))
        joined = dict(output)
        if "importance_sampling_ratio" in output:
            low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
            rows["importance_sampling_ratio"] = weight.clamp(0.0 if low is None else low, high)
            rows["advantages"] = advantages.expand_as(weight)
        else:
            rows["advantages"] = advantages * weight
        joined["advantages"] = fresh
        rows["old_per_token_logps"] = old
        for name in (*_LEFT_PADDED, *_RIGHT_PADDED, "advantages"):
            if name in output:
                joined[name] = _stacked(
                    joined[name], rows[name], left=name in _LEFT_PADDED, multiple_of=self.pad_to_multiple_of or 1
                )
        joined["num_items_in_batch"] = self.accelerator.gather(joined["completion_mask"].sum()).sum()
        self._measure(log_weight[rows["completion_mask"] != 0])
        return joined

    def _replayed_rows(self, groups: Sequence[RolloutGroup]) -> dict[str, Tensor]:
        """Stored rows as TRL keeps them: prompts padded on the left, completions on the right."""
        pairs = [(group, index) for group in groups for index in range(len(group))]
        pad = self._tokenizer.pad_token_id
        prompts = [group.prompt_token_ids for group, _ in pairs]
        columns = {
            "prompt_ids": padded(prompts, pad, left=True).astype(np.int64),
            "prompt_mask": padded([np.ones_like(prompt) for prompt in prompts], 0, left=True).astype(np.int64),
            "completion_ids": padded([group.response(index) for group, index in pairs], pad).astype(np.int64),
            "completion_mask": padded([group.mask(index) for group, index in pairs], 0).astype(np.int64),
            "sampling_per_token_logps": padded([group.log_probs(index) for group, index in pairs], 0.0),
        }
        return {name: torch.from_numpy(values).to(self.accelerator.device) for name, values in columns.items()}

    def _advantages(self, group: RolloutGroup) -> Tensor:
        """(G,) from the stored rewards, by TRL's formula."""
        rewards = torch.tensor(group.rewards, dtype=torch.float32)
        centred = rewards - rewards.mean()
        return centred / (rewards.std() + _STD_OFFSET) if self.scale_rewards == "group" else centred

    def _reference_pass(self, step: int, local_groups: int) -> None:
        """Rolls out and reports a dedicated reference set; TRL's metrics are left as they were."""
        prompt_ids = on_main(self._service.references, step)
        kept = {name: list(values) for name, values in self._metrics["train"].items()}
        batch = local_groups * self.accelerator.num_processes
        for start in range(0, len(prompt_ids), batch):
            part = prompt_ids[start : start + batch]
            # Every process generates as much as the others: the last part is filled up with prompts it already has.
            mine = share([part[index % len(part)] for index in range(batch)])
            self._report(step, mine, self._rolled_out(mine)[1], "reference")
        self._metrics["train"].clear()
        self._metrics["train"].update(kept)

    # What is logged

    def _measure(self, log_weight: Tensor) -> None:
        """Effective sample size and largest weight over all processes' replayed tokens."""
        weight = log_weight.exp()
        largest = weight.max() if weight.numel() else weight.new_zeros(())
        local = torch.stack([weight.sum(), weight.square().sum(), weight.new_tensor(float(weight.numel())), largest])
        total, squares, tokens, _ = self.accelerator.gather(local[None]).sum(dim=0).tolist()
        maximum = self.accelerator.gather(largest[None]).max().item()
        size = min(total**2 / (tokens * squares), 1.0) if squares else 1.0
        self._staleness = {"effective_sample_size": size, "max_importance_weight": maximum}

    def _log_replay(self, fresh: int, replayed: int) -> None:
        figures: dict[str, float] = {"fresh_groups": fresh, "replayed_groups": replayed, **self._staleness}
        figures |= self._service.figures()
        for name, value in figures.items():
            self._metrics["train"][f"curriculum/{name}"].append(float(value))


class CurriculumGRPOTrainer(CurriculumMixin, GRPOTrainer):
    """``GRPOTrainer`` with the service's prompts and replayed rollouts; takes ``curriculum=`` besides its arguments."""


class CurriculumCallback(TrainerCallback):
    """Begins the run at the step that training begins or resumes at, and reports every step; added by the mixin."""

    def __init__(self, trainer: CurriculumMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Rewinds the run to the step of the checkpoint, or to 0."""
        self._trainer.begin_curriculum(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """TRL counts a step before this is called."""
        self._trainer.report_curriculum_training(state.global_step - 1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Also after an early stop."""
        self._trainer.end_curriculum()


def _floats(log_probs: Any) -> np.ndarray:
    """(length,) float32; None, as vLLM's log-prob that is not known comes, is NaN."""
    return np.array([np.nan if each is None else each for each in log_probs], dtype=np.float32)


def _stacked(fresh: Tensor, replayed: Tensor, left: bool, multiple_of: int) -> Tensor:
    """Rows under one another, the narrower ones padded; a padded place is masked, so that anything may stand there."""
    width = -(-max(fresh.size(1), replayed.size(1)) // multiple_of) * multiple_of
    parts = []
    for part in (fresh, replayed.to(fresh.dtype)):
        missing = width - part.size(1)
        parts.append(torch.nn.functional.pad(part, (missing, 0) if left else (0, missing)))
    return torch.cat(parts)


def _clear(logs: Mapping[str, Any]) -> None:
    """TRL's table of completions: deques, and mappings of them by reward function or column."""
    for column in logs.values():
        column.clear()
