"""A GRPO step makes rewarded answers likelier; groups without contrast change nothing; old rows are told apart."""

from __future__ import annotations

import copy

import pytest
import torch

from selector.testbed.grpo import Group, GRPOConfig, Trainer, rollout
from selector.testbed.policy import Policy, pad_prompts, response_tokens, success_probability
from selector.testbed.tasks import make_prompt_sets

PROMPTS = [prompt for prompt in make_prompt_sets(0).training if prompt.level == 1][:48]
CONFIG = GRPOConfig(warm_up_steps=1)


def trainer(policy: Policy) -> Trainer:
    return Trainer(policy, CONFIG, torch.Generator().manual_seed(1))


def generate(policy: Policy, counts: list[int], seed: int = 2) -> list[Group]:
    return rollout(policy, PROMPTS[: len(counts)], counts, torch.Generator().manual_seed(seed))


def test_outcomes_score_each_response_and_keep_the_order_of_the_prompts(base: Policy) -> None:
    counts = [8, 3, 8, 1] * 6
    groups = generate(base, counts)
    assert [group.prompt for group in groups] == PROMPTS[:24]
    assert [len(group.outcomes) for group in groups] == counts
    scored = set()
    for group in groups:
        answer = response_tokens(group.prompt.answer).tolist()
        for i, length in enumerate(group.lengths.tolist()):
            right = group.responses[i, :length].tolist() == answer
            scored.add(right)
            assert group.outcomes[i] == float(right)
    assert scored == {True, False}


def test_a_step_makes_rewarded_responses_likelier_and_the_others_less_likely(base: Policy) -> None:
    policy = copy.deepcopy(base)
    groups = [group for group in generate(policy, [8] * 48) if group.informative]
    assert len(groups) >= 16
    figures = trainer(policy).update(groups)
    assert figures.updates == CONFIG.minibatches < len(groups)
    assert figures.effective_sample_size is None
    with torch.no_grad():
        after = policy.log_probs(
            pad_prompts([group.prompt for group in groups]), torch.stack([group.responses for group in groups])
        ).sum(dim=2)
    before = torch.stack([group.behavior_log_probs for group in groups]).sum(dim=2)
    right = torch.stack([group.outcomes for group in groups]) == 1
    assert (after - before)[right].mean() > 0.02
    assert (after - before)[~right].mean() < (after - before)[right].mean() - 0.02


def test_a_few_steps_raise_the_exact_success_probability(base: Policy) -> None:
    policy = copy.deepcopy(base)
    training = trainer(policy)
    generator = torch.Generator().manual_seed(3)
    for _ in range(4):
        training.update(rollout(policy, PROMPTS, [8] * len(PROMPTS), generator))
    assert success_probability(policy, PROMPTS).mean() > success_probability(base, PROMPTS).mean() + 0.05


def test_groups_without_contrast_change_nothing(base: Policy) -> None:
    policy = copy.deepcopy(base)
    groups = [
        Group(g.prompt, g.responses, g.behavior_log_probs, torch.full_like(g.outcomes, value))
        for value in (0.0, 1.0)
        for g in generate(policy, [8] * 8)
    ]
    trainer(policy).update(groups)
    for name, value in policy.state_dict().items():
        assert torch.equal(value, base.state_dict()[name]), name


def test_a_smaller_group_trains_the_same_beside_a_larger_one(base: Policy) -> None:
    """The larger group has no contrast. Adam's first step has one size whatever the gradient's scale."""
    larger, three = generate(base, [8, 3])
    small = Group(three.prompt, three.responses, three.behavior_log_probs, torch.tensor([1.0, 0.0, 0.0]))
    silent = Group(larger.prompt, larger.responses, larger.behavior_log_probs, torch.zeros(8))
    alone, beside = copy.deepcopy(base), copy.deepcopy(base)
    trainer(alone).update([small])
    trainer(beside).update([small, silent])
    after_alone, after_beside = (success_probability(policy, PROMPTS) for policy in (alone, beside))
    assert abs(after_alone - success_probability(base, PROMPTS)).max() > 0.01
    assert after_alone == pytest.approx(after_beside, abs=2e-3)


def test_replayed_rows_report_how_stale_they_are(base: Policy) -> None:
    policy = copy.deepcopy(base)
    old = generate(policy, [8] * 16)
    training = trainer(policy)
    own = training.update(generate(policy, [8] * 16, seed=4), old)
    assert own.effective_sample_size == pytest.approx(1.0, abs=1e-4)
    assert own.max_importance_weight == pytest.approx(1.0, abs=1e-3)
    for seed in range(5, 9):
        training.update(generate(policy, [8] * 32, seed=seed))
    stale = training.update(generate(policy, [8] * 16, seed=9), old)
    assert stale.effective_sample_size is not None
    assert stale.effective_sample_size < 0.995
    assert stale.max_importance_weight is not None
    assert stale.max_importance_weight > 1.05


def test_dropping_leaves_constant_groups_out_of_minibatches_and_epochs_repeat_them(base: Policy) -> None:
    generator = torch.Generator().manual_seed(3)
    groups = rollout(base, PROMPTS[:24], [8] * 24, generator)
    informative = sum(group.informative for group in groups)
    assert 0 < informative < 24
    config = GRPOConfig(minibatches=4, drop_constant=True, epochs=3)
    done = Trainer(copy.deepcopy(base), config, generator).update(groups)
    assert done.updates == 3 * min(4, informative)
    assert done.trained_rollouts == 3 * 8 * informative
    kept = Trainer(copy.deepcopy(base), GRPOConfig(minibatches=4), generator).update(groups)
    assert (kept.updates, kept.trained_rollouts) == (4, 24 * 8)
