"""GRPO on the testbed's policy: rollouts, advantages, and one step of updates on fresh and replayed groups.

Reward and outcome are the same here: 1 for the right answer, else 0. The advantage is ``r - mean(r)`` within a group
(arXiv 2506.05316, section 3). At the start of a step the log-probs of the current policy are computed for fresh and
replayed groups alike; every row then goes through the same importance-corrected loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selector.testbed.policy import PAD, RESPONSE_WIDTH, Policy, pad_prompts, pad_responses, response_mask
from selector.testbed.tasks import Prompt
from trainer_adapters.loss import ReplayLoss, grpo_replay_loss


@dataclass(frozen=True)
class GRPOConfig:
    """Settings of the optimiser; ``clip`` is both the lower and the upper one.

    A pass takes as many ``minibatches``, whatever the batch is made of, so that no way of choosing prompts gets more
    steps of the optimiser than another: what is more informative makes them larger. With ``drop_constant`` they are
    made of groups with contrast alone; otherwise groups without take places, and count in the means.
    """

    learning_rate: float = 5e-4
    warm_up_steps: int = 10
    beta2: float = 0.98
    clip: float = 0.2
    gradient_clip: float = 1.0
    minibatches: int = 8
    drop_constant: bool = False
    epochs: int = 1


@dataclass(frozen=True)
class Group:
    """The G rollouts of one prompt by one policy version.

    ``responses`` (G, RESPONSE_WIDTH) int64 padded with PAD, ``behavior_log_probs`` (G, RESPONSE_WIDTH), 0 on the
    padding, ``outcomes`` (G,) in {0, 1}.
    """

    prompt: Prompt
    responses: Tensor
    behavior_log_probs: Tensor
    outcomes: Tensor

    @property
    def lengths(self) -> Tensor:
        """(G,) tokens of each response."""
        return response_mask(self.responses).sum(dim=1)

    @property
    def informative(self) -> bool:
        """Whether the outcomes differ; without that the advantages, and so the gradient, are zero."""
        return bool(self.outcomes.min() != self.outcomes.max())


@dataclass(frozen=True)
class StepFigures:
    """What a step looked like. The last two are over the tokens of replayed rows, None when there were none.

    ``trained_rollouts``: of groups in minibatches, as often as they were gone through.
    """

    updates: int
    trained_rollouts: int
    clip_fraction: float
    effective_sample_size: float | None
    max_importance_weight: float | None


@dataclass(frozen=True)
class _Rows:
    """Rollouts of several groups, stacked: prompts (P, ·), columns (P, G, T), advantages (P, G)."""

    prompts: Tensor
    responses: Tensor
    behavior: Tensor
    advantages: Tensor

    def take(self, index: Tensor) -> _Rows:
        return _Rows(self.prompts[index], self.responses[index], self.behavior[index], self.advantages[index])


def rollout(
    policy: Policy, prompts: Sequence[Prompt], counts: Sequence[int], generator: torch.Generator
) -> list[Group]:
    """``counts[i]`` rollouts of ``prompts[i]`` by the current policy, scored, in the order of the prompts."""
    groups: dict[int, Group] = {}
    for count in sorted(set(counts)):
        chosen = [i for i, wanted in enumerate(counts) if wanted == count]
        tokens = pad_prompts([prompts[i] for i in chosen])
        answers = pad_responses([prompts[i].answer for i in chosen])
        sampled = policy.sample(tokens, count, generator)
        outcomes = (sampled.tokens == answers[:, None, :]).all(dim=2).float()
        for row, i in enumerate(chosen):
            groups[i] = Group(prompts[i], sampled.tokens[row], sampled.log_probs[row], outcomes[row])
    return [groups[i] for i in range(len(prompts))]


class Trainer:
    """Holds the optimiser of one policy; ``update`` is one step."""

    def __init__(self, policy: Policy, config: GRPOConfig, generator: torch.Generator) -> None:
        self.policy = policy
        self.config = config
        self.steps = 0
        self._generator = generator
        self._optimiser = torch.optim.AdamW(
            policy.parameters(), lr=config.learning_rate, betas=(0.9, config.beta2), weight_decay=0.0
        )

    def update(self, fresh: Sequence[Group], replayed: Sequence[Group] = ()) -> StepFigures:
        """``epochs`` passes over the groups in shuffled minibatches of whole groups, as even in size as can be.

        Groups without contrast have no gradient, and are not computed. Unless they are dropped they count in every
        mean, so that leaving them out changes nothing but the time.
        """
        groups = [*fresh, *replayed]
        rows = _stack(groups)
        tokens = response_mask(rows.responses).sum(dim=(1, 2))
        contrast = torch.tensor([group.informative for group in groups])
        old = self._old_log_probs(rows, contrast | (torch.arange(len(groups)) >= len(fresh)))
        rate = self.config.learning_rate * min(1.0, (self.steps + 1) / self.config.warm_up_steps)
        for parameters in self._optimiser.param_groups:
            parameters["lr"] = rate
        counted = torch.flatten(contrast.nonzero()) if self.config.drop_constant else torch.arange(len(groups))
        updates, clipped = 0, 0.0
        for _ in range(self.config.epochs):
            for index in self._minibatches(counted):
                self._optimiser.zero_grad(set_to_none=False)
                taught = index[contrast[index]]
                if len(taught):
                    part = rows.take(taught)
                    log_probs = self.policy.log_probs(part.prompts, part.responses)
                    result = self._loss(log_probs, old[taught], part, float(tokens[index].sum()))
                    result.backward()
                    clipped += result.clip_fraction * result.tokens
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.gradient_clip)
                self._optimiser.step()
                updates += 1
        self.steps += 1
        sample_size, largest = self._replay_weights(rows, old, len(fresh))
        seen = float(tokens[counted].sum()) * self.config.epochs
        trained = sum(len(groups[i].outcomes) for i in counted.tolist()) * self.config.epochs
        return StepFigures(updates, trained, clipped / max(seen, 1.0), sample_size, largest)

    def _minibatches(self, groups: Tensor) -> Sequence[Tensor]:
        order = groups[torch.randperm(len(groups), generator=self._generator)]
        count = min(self.config.minibatches, len(groups))
        return torch.tensor_split(order, count) if count else ()

    @torch.no_grad()
    def _old_log_probs(self, rows: _Rows, needed: Tensor) -> Tensor:
        """(P, G, T) of the current policy; zeros for groups that are not ``needed`` (P,)."""
        old = torch.zeros(rows.responses.shape)
        if needed.any():
            old[needed] = self.policy.log_probs(rows.prompts[needed], rows.responses[needed])
        return old

    def _loss(self, log_probs: Tensor, old: Tensor, rows: _Rows, denominator: float) -> ReplayLoss:
        """The loss over real rollouts; rows without tokens only pad the smaller groups."""
        mask = response_mask(rows.responses)
        real = mask.any(dim=2)
        return grpo_replay_loss(
            log_probs[real],
            old[real],
            rows.behavior[real],
            rows.advantages[real],
            mask[real],
            clip_low=self.config.clip,
            clip_high=self.config.clip,
            centre="old",
            denominator=denominator,
        )

    @torch.no_grad()
    def _replay_weights(self, rows: _Rows, old: Tensor, fresh: int) -> tuple[float | None, float | None]:
        replayed = torch.arange(fresh, len(rows.prompts))
        if not len(replayed):
            return None, None
        result = self._loss(old[replayed], old[replayed], rows.take(replayed), 1.0)
        return result.effective_sample_size, result.max_weight


def _stack(groups: Sequence[Group]) -> _Rows:
    size = max(len(group.outcomes) for group in groups)
    shape = (len(groups), size, RESPONSE_WIDTH)
    responses = torch.full(shape, PAD, dtype=torch.int64)
    behavior = torch.zeros(shape)
    advantages = torch.zeros(len(groups), size)
    for i, group in enumerate(groups):
        count = len(group.outcomes)
        responses[i, :count] = group.responses
        behavior[i, :count] = group.behavior_log_probs
        advantages[i, :count] = group.outcomes - group.outcomes.mean()
    return _Rows(pad_prompts([group.prompt for group in groups]), responses, behavior, advantages)
