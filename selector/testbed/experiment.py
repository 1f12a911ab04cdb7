"""One arm with one seed, trained through the service: the loop a trainer writes around ``SelectorClient``.

What differs between arms is only who chooses and what is replayed; base policy, pool, held-out prompts, optimiser and
random seeds are the same. Difficulty and accuracy are measured exactly, outside of the CPU seconds that are counted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from clients import RolloutGroup, SelectorClient
from selector.testbed.arms import Arm
from selector.testbed.grpo import Group, GRPOConfig, StepFigures, Trainer, rollout
from selector.testbed.oracle import OracleSelector
from selector.testbed.policy import RESPONSE_WIDTH, Policy, pad, prompt_tokens, success_probability
from selector.testbed.record import ArmRun, Evaluation, correlation, mean_or_none
from selector.testbed.tasks import Prompt, PromptSets

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "log_prob_mode": "processed"}
_REGISTER_TIMEOUT_S = 600.0
# Of a step, while dropped groups are refilled.
_MOST_ROUNDS = 10


@dataclass(frozen=True)
class ExperimentConfig:
    """Size of the job: steps, groups in a batch, rollouts in a group, and steps between two measurements.

    An arm that replays, or has smaller batches, generates less in a step and takes more steps: a training ends when it
    has taken ``steps`` and generated as many rollouts as uniform does in them. ``most_rollouts`` ends it earlier, after
    the step that reaches it; 0 = never. Accuracy is measured whenever as many rollouts were generated as uniform does
    in ``evaluate_every`` steps.
    """

    steps: int = 60
    batch_groups: int = 64
    group_size: int = 8
    evaluate_every: int = 3
    measure_pool_every: int = 20
    most_rollouts: int = 0
    grpo: GRPOConfig = field(default_factory=GRPOConfig)

    @property
    def step_rollouts(self) -> int:
        """What uniform generates in a step."""
        return self.batch_groups * self.group_size

    def done(self, steps: int, rollouts: int) -> float:
        """How much of a training that is, 1 = all of it."""
        share = min(steps, rollouts / self.step_rollouts) / self.steps
        return max(share, rollouts / self.most_rollouts) if self.most_rollouts else share


@dataclass(frozen=True)
class _Plan:
    """What to roll out and replay in a round of a step."""

    prompts: list[Prompt]
    counts: list[int]
    predicted: np.ndarray
    replay_groups: int


def prepare_run(client: SelectorClient, arm: Arm, seed: int, pool: Sequence[Prompt], config: ExperimentConfig) -> None:
    """Creates the arm's run and registers the pool. Again with the same arguments it changes nothing."""
    client.create_run(
        {**arm.config, "seed": seed, "group_size": config.group_size, "sampling": SAMPLING},
    )
    client.register_prompts(
        [prompt.prompt_id for prompt in pool],
        texts=[prompt.text for prompt in pool],
        domains=[prompt.task for prompt in pool],
        token_counts=[len(prompt_tokens(prompt)) for prompt in pool],
        timeout_s=_REGISTER_TIMEOUT_S,
    )


def run_arm(
    client: SelectorClient,
    base: Policy,
    sets: PromptSets,
    arm: Arm,
    seed: int,
    config: ExperimentConfig,
    progress: Callable[[], None] = lambda: None,
    cpu_clock: Callable[[], float] = time.process_time,
) -> ArmRun:
    """Trains a copy of ``base``.

    Args:
        client: of the arm's own, fresh run.
        progress: called ``config.steps`` times as the training goes on; may raise to stop.
        cpu_clock: CPU seconds of this process.

    Raises:
        SelectorError: the service refused a call or could not be reached.
    """
    prepare_run(client, arm, seed, sets.training, config)
    loop = _ArmLoop(client, copy.deepcopy(base), sets, arm, seed, config, cpu_clock)
    step, told = 0, 0
    while told < config.steps:
        loop.step(step)
        step += 1
        done = int(min(config.done(step, loop.rollouts), 1.0) * config.steps)
        for _ in range(told, done):
            progress()
        told = done
    return loop.finish()


class _ArmLoop:
    def __init__(
        self,
        client: SelectorClient,
        policy: Policy,
        sets: PromptSets,
        arm: Arm,
        seed: int,
        config: ExperimentConfig,
        cpu_clock: Callable[[], float],
    ) -> None:
        self._client, self._policy, self._sets, self._arm, self._seed = client, policy, sets, arm, seed
        self._config, self._cpu_clock = config, cpu_clock
        self._generator = torch.Generator().manual_seed(seed)
        self._trainer = Trainer(policy, replace(config.grpo, epochs=arm.epochs), self._generator)
        self._prompt_of = {prompt.prompt_id: prompt for prompt in sets.training}
        self._oracle = OracleSelector(len(sets.training), seed, arm.oracle) if arm.oracle else None
        self._reference_due = client.get_run().reference_due
        self.rollouts = self._evaluate_at = 0
        self._generated = self._informative = self._degraded = 0
        self._cpu_seconds = 0.0
        self._tried: set[str] = set()
        self._evaluations: list[Evaluation] = []
        self._predicted: list[np.ndarray] = []
        self._true: list[np.ndarray] = []
        self._pool_correlations: list[float | None] = []
        self._figures: list[StepFigures] = []

    def step(self, step: int) -> None:
        if self.rollouts >= self._evaluate_at:
            self._evaluate(step)
            every = self._config.evaluate_every * self._config.step_rollouts
            self._evaluate_at = (self.rollouts // every + 1) * every
        if step % self._config.measure_pool_every == 0 and step and self._oracle is None:
            self._measure_pool()
        with self._counted():
            if self._reference_due:
                self._measure_references(step)
        fresh, replay_groups = self._roll_out(step)
        with self._counted():
            replayed = [self._replayed(g) for g in self._client.sample_rollouts(step, replay_groups)]
            if self._arm.replay:
                self._client.push_rollouts(step, [_stored(group, step) for group in fresh])
            figures = self._trainer.update(fresh, replayed)
            self._client.report_training(
                step,
                effective_sample_size=figures.effective_sample_size,
                max_importance_weight=figures.max_importance_weight,
                clip_fraction=figures.clip_fraction,
                updates=figures.updates,
            )
        self._informative += sum(group.informative for group in fresh)
        self._figures.append(figures)

    def _roll_out(self, step: int) -> tuple[list[Group], int]:
        """The step's groups, from as many rounds as it takes, and how many are to be replayed."""
        groups: list[Group] = []
        wanted, replay_groups = int(self._arm.batch_share * self._config.batch_groups), 0
        for round_ in range(_MOST_ROUNDS if self._arm.refill else 1):
            plan = self._plan(step, round_, wanted)
            if not plan.prompts:
                break
            replay_groups += plan.replay_groups
            self._predicted.append(plan.predicted)
            self._true.append(1.0 - success_probability(self._policy, plan.prompts))
            with self._counted():
                fresh = self._generate(plan.prompts, plan.counts)
                self._client.report_outcomes(step, _outcomes(fresh))
            groups += fresh
            wanted -= sum(group.informative for group in fresh)
            if wanted <= 0:
                break
        if self._arm.refill:
            # An update needs groups, be they without contrast.
            groups = [group for group in groups if group.informative] or groups
        return groups, replay_groups

    def finish(self) -> ArmRun:
        self._evaluate(len(self._figures))
        weights = [f.max_importance_weight for f in self._figures if f.max_importance_weight is not None]
        return ArmRun(
            arm=self._arm.name,
            seed=self._seed,
            steps=len(self._figures),
            rollouts=self.rollouts,
            generated_groups=self._generated,
            informative_groups=self._informative,
            cpu_seconds=self._cpu_seconds,
            evaluations=tuple(self._evaluations),
            predicted=np.concatenate(self._predicted),
            true=np.concatenate(self._true),
            pool_correlation=mean_or_none(self._pool_correlations),
            coverage=len(self._tried) / len(self._sets.training),
            effective_sample_size=tuple(
                f.effective_sample_size for f in self._figures if f.effective_sample_size is not None
            ),
            max_importance_weight=max(weights, default=None),
            degraded_selections=self._degraded,
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        start = self._cpu_clock()
        yield
        self._cpu_seconds += self._cpu_clock() - start

    def _evaluate(self, step: int) -> None:
        accuracy = float(success_probability(self._policy, self._sets.held_out).mean())
        trained = sum(figures.trained_rollouts for figures in self._figures)
        self._evaluations.append(Evaluation(step, self.rollouts, self._cpu_seconds, accuracy, trained))

    def _measure_pool(self) -> None:
        predictions = self._client.predict_difficulty()
        prompts = [self._prompt_of[prompt_id] for prompt_id in predictions.prompt_ids]
        true = 1.0 - success_probability(self._policy, prompts)
        self._pool_correlations.append(correlation(predictions.predicted_difficulties, true))

    def _measure_references(self, step: int) -> None:
        selection = self._client.select_batch(step, purpose="reference")
        prompts = [self._prompt_of[prompt_id] for prompt_id in selection.prompt_ids]
        groups = self._generate(prompts, selection.rollouts.tolist())
        self._client.report_outcomes(step, _outcomes(groups), purpose="reference")

    def _plan(self, step: int, round_: int, groups: int) -> _Plan:
        if self._oracle is not None:
            difficulty = 1.0 - success_probability(self._policy, self._sets.training)
            chosen = self._oracle.choose(difficulty, groups, step)
            prompts = [self._sets.training[i] for i in chosen]
            return _Plan(prompts, [self._config.group_size] * len(prompts), difficulty[chosen], 0)
        with self._counted():
            selection = self._client.select_batch(step, groups, round=round_)
        self._reference_due = selection.reference_due
        self._degraded += selection.degraded
        return _Plan(
            [self._prompt_of[prompt_id] for prompt_id in selection.prompt_ids],
            selection.rollouts.tolist(),
            selection.predicted_difficulties,
            selection.replay_groups,
        )

    def _generate(self, prompts: list[Prompt], counts: list[int]) -> list[Group]:
        groups = rollout(self._policy, prompts, counts, self._generator)
        self.rollouts += sum(counts)
        self._generated += len(groups)
        self._tried.update(prompt.prompt_id for prompt in prompts)
        return groups

    def _replayed(self, stored: RolloutGroup) -> Group:
        log_probs = torch.zeros(len(stored), RESPONSE_WIDTH)
        for i in range(len(stored)):
            log_probs[i, : stored.lengths[i]] = torch.tensor(stored.log_probs(i))
        return Group(
            self._prompt_of[stored.prompt_id],
            pad([stored.response(i) for i in range(len(stored))], RESPONSE_WIDTH),
            log_probs,
            torch.tensor(stored.rewards, dtype=torch.float32),
        )


def _outcomes(groups: Sequence[Group]) -> dict[str, list[float]]:
    return {group.prompt.prompt_id: group.outcomes.tolist() for group in groups}


def _stored(group: Group, step: int) -> RolloutGroup:
    lengths = group.lengths.tolist()
    outcomes = group.outcomes.numpy()
    return RolloutGroup.from_arrays(
        prompt_id=group.prompt.prompt_id,
        policy_version=step,
        prompt_token_ids=prompt_tokens(group.prompt),
        response_token_ids=[group.responses[i, :length].numpy() for i, length in enumerate(lengths)],
        behavior_log_probs=[group.behavior_log_probs[i, :length].numpy() for i, length in enumerate(lengths)],
        rewards=outcomes,
        outcomes=outcomes,
        sampling=SAMPLING,
    )
