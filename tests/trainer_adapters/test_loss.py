"""grpo_replay_loss against the formulas, written out token by token in float64, and by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer_adapters.loss import ReplayLoss, group_advantages, grpo_replay_loss

ROWS, TOKENS = 6, 9
CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}


@dataclass
class Batch:
    """Six rows of up to nine tokens whose policies differ enough that every branch of the clip is taken."""

    log_probs: Tensor
    old: Tensor
    behavior: Tensor
    advantages: Tensor
    mask: Tensor

    def loss(self, **options: Any) -> Tensor:
        return self.result(**options).loss

    def result(self, **options: Any) -> ReplayLoss:
        return grpo_replay_loss(
            self.log_probs, self.old, self.behavior, self.advantages, self.mask, **{**CLIP, **options}
        )


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    behavior = -normal(ROWS, TOKENS).abs() - 0.5
    old = behavior + 0.4 * normal(ROWS, TOKENS)
    mask = torch.rand(ROWS, TOKENS, generator=generator) < 0.7
    mask[0] = True
    return Batch(
        log_probs=(old + 0.3 * normal(ROWS, TOKENS)).requires_grad_(),
        old=old,
        behavior=behavior,
        advantages=normal(ROWS),
        mask=mask,
    )


def authors_token(current: float, old: float, behavior: float, advantage: float) -> float:
    """The authors' clip: r = pi_theta/pi_b, clipped to [w (1 - low), w (1 + high)]."""
    r, w = math.exp(current - behavior), math.exp(old - behavior)
    clipped = min(max(r, w * (1 - CLIP["clip_low"])), w * (1 + CLIP["clip_high"]))
    return min(r * advantage, clipped * advantage)


def paper_token(current: float, old: float, behavior: float, advantage: float) -> float:
    """The paper's text: r = pi_theta/pi_b, clipped to [1 - low, 1 + high]."""
    r = math.exp(current - behavior)
    clipped = min(max(r, 1 - CLIP["clip_low"]), 1 + CLIP["clip_high"])
    return min(r * advantage, clipped * advantage)


def capped_token(current: float, old: float, behavior: float, advantage: float) -> float:
    """Truncated importance sampling at 1.1 of ordinary PPO."""
    rho = math.exp(current - old)
    clipped = min(max(rho, 1 - CLIP["clip_low"]), 1 + CLIP["clip_high"])
    return min(math.exp(old - behavior), 1.1) * min(rho * advantage, clipped * advantage)


Token = Callable[[float, float, float, float], float]


def looped(batch: Batch, token: Token) -> list[list[float]]:
    """Objective of the unmasked tokens, by row."""
    return [
        [
            token(
                batch.log_probs[i, t].item(),
                float(batch.old[i, t]),
                float(batch.behavior[i, t]),
                float(batch.advantages[i]),
            )
            for t in range(TOKENS)
            if batch.mask[i, t]
        ]
        for i in range(ROWS)
    ]


@pytest.mark.parametrize(
    ("token", "options"),
    [
        (authors_token, {"centre": "old"}),
        (paper_token, {"centre": "behavior"}),
        (capped_token, {"centre": "old", "weight_cap": 1.1}),
    ],
)
def test_equals_the_formula_token_by_token(batch: Batch, token: Token, options: dict[str, Any]) -> None:
    rows = looped(batch, token)
    flat = [value for row in rows for value in row]
    expected = {
        "token_mean": -sum(flat) / len(flat),
        "sequence_mean": -sum(sum(row) / len(row) for row in rows if row) / sum(bool(row) for row in rows),
        "sum": -sum(flat),
    }
    for reduction, value in expected.items():
        assert batch.loss(reduction=reduction, **options).item() == pytest.approx(value, abs=1e-10)


def test_gradient_equals_that_of_the_authors_formula(batch: Batch) -> None:
    weight = (batch.old - batch.behavior).exp()
    advantage = batch.advantages[:, None]
    r = (batch.log_probs - batch.behavior).exp()
    clipped = torch.minimum(torch.maximum(r, weight * (1 - 0.2)), weight * (1 + 0.28))
    objective = torch.minimum(r * advantage, clipped * advantage)
    expected = torch.autograd.grad(-(objective * batch.mask).sum() / batch.mask.sum(), batch.log_probs)[0]
    got = torch.autograd.grad(batch.loss(), batch.log_probs)[0]
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    assert (expected != 0).any()


def test_gradient_by_finite_differences(batch: Batch) -> None:
    variants: list[dict[str, Any]] = [{}, {"centre": "behavior"}, {"weight_cap": 1.1}, {"reduction": "sequence_mean"}]
    for options in variants:

        def loss(log_probs: Tensor, options: dict[str, Any] = options) -> Tensor:
            return grpo_replay_loss(
                log_probs, batch.old, batch.behavior, batch.advantages, batch.mask, **{**CLIP, **options}
            ).loss

        assert torch.autograd.gradcheck(loss, (batch.log_probs,))


def test_on_policy_gradient_is_the_policy_gradient(batch: Batch) -> None:
    current = batch.log_probs.detach()
    batch.old = batch.behavior = current
    expected = torch.autograd.grad(
        -(batch.log_probs * batch.advantages[:, None] * batch.mask).sum() / batch.mask.sum(), batch.log_probs
    )[0]
    for centre in ("old", "behavior"):
        got = torch.autograd.grad(batch.loss(centre=centre), batch.log_probs)[0]
        torch.testing.assert_close(got, expected)


def test_behavior_log_probs_as_old_ones_are_another_objective(batch: Batch) -> None:
    right = batch.loss()
    paper = batch.loss(centre="behavior")
    batch.old = batch.behavior
    wrong = batch.loss()
    assert wrong.item() == pytest.approx(paper.item(), abs=1e-12)
    assert abs(wrong.item() - right.item()) > 1e-3


def test_masked_positions_may_hold_anything(batch: Batch) -> None:
    clean = batch.result()
    clean_gradient = torch.autograd.grad(clean.loss, batch.log_probs)[0]
    garbage = torch.tensor([math.nan, math.inf, -math.inf, 1e30]).double()
    positions = ~batch.mask
    noise = garbage[torch.arange(int(positions.sum())) % len(garbage)]
    for name in ("old", "behavior"):
        getattr(batch, name)[positions] = noise
    dirty_log_probs = batch.log_probs.detach().clone()
    dirty_log_probs[positions] = noise.flip(0)
    batch.log_probs = dirty_log_probs.requires_grad_()
    per_token = batch.advantages[:, None].expand(ROWS, TOKENS).clone()
    per_token[positions] = noise
    batch.advantages = per_token
    dirty = batch.result()
    gradient = torch.autograd.grad(dirty.loss, batch.log_probs)[0]
    torch.testing.assert_close(gradient, clean_gradient)
    assert (gradient[positions] == 0).all()
    assert dirty.loss.item() == pytest.approx(clean.loss.item())
    assert dirty.effective_sample_size == pytest.approx(clean.effective_sample_size)
    assert dirty.max_weight == pytest.approx(clean.max_weight)
    assert dirty.clip_fraction == clean.clip_fraction


def test_figures_over_the_counted_rows(batch: Batch) -> None:
    replayed = torch.tensor([True, False, True, True, False, False])
    result = batch.result(counted_rows=replayed, weight_cap=1.1)
    weights = (batch.old - batch.behavior).exp()
    counted = weights[replayed][batch.mask[replayed]]
    assert result.max_weight == pytest.approx(float(counted.max()))
    assert result.effective_sample_size == pytest.approx(
        float(counted.sum() ** 2 / (len(counted) * (counted**2).sum()))
    )
    assert result.tokens == int(batch.mask.sum())
    assert result.capped_fraction == pytest.approx(float((weights[batch.mask] > 1.1).double().mean()))


def test_clip_fraction_counts_tokens_without_gradient(batch: Batch) -> None:
    for centre in ("old", "behavior"):
        result = batch.result(centre=centre)
        gradient = torch.autograd.grad(result.loss, batch.log_probs)[0]
        assert result.clip_fraction == pytest.approx(float((gradient[batch.mask] == 0).double().mean()))
        assert 0 < result.clip_fraction < 1


def test_equal_weights_are_a_full_sample_and_one_huge_weight_is_one_token() -> None:
    zeros = torch.zeros(4, 5)
    even = grpo_replay_loss(zeros, zeros, zeros - 0.5, torch.ones(4), torch.ones(4, 5))
    assert even.effective_sample_size == pytest.approx(1.0)
    behavior = zeros.clone()
    behavior[2, 3] = -60.0
    lone = grpo_replay_loss(zeros.clone().requires_grad_(), zeros, behavior, torch.ones(4), torch.ones(4, 5))
    assert lone.effective_sample_size == pytest.approx(1 / 20, rel=1e-5)
    assert math.isfinite(lone.loss.item())


def test_nothing_to_train_on_is_a_zero_loss_with_zero_gradient() -> None:
    log_probs = torch.full((3, 4), math.nan).requires_grad_()
    nan = torch.full((3, 4), math.nan)
    for reduction in ("token_mean", "sequence_mean", "sum"):
        result = grpo_replay_loss(log_probs, nan, nan, torch.ones(3), torch.zeros(3, 4), reduction=reduction)
        assert result.loss.item() == 0
        assert (torch.autograd.grad(result.loss, log_probs)[0] == 0).all()
        assert (result.effective_sample_size, result.max_weight, result.clip_fraction) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_far_apart_policies_keep_a_finite_gradient(advantage: float) -> None:
    log_probs = torch.tensor([[-0.1, -500.0]], requires_grad=True)
    other = torch.tensor([[-500.0, -0.1]])
    result = grpo_replay_loss(log_probs, other, other, torch.tensor([advantage]), torch.ones(1, 2))
    result.backward()
    assert log_probs.grad is not None and torch.isfinite(log_probs.grad).all()
    assert math.isfinite(result.loss.item())


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "sum"])
def test_micro_batches_with_the_whole_batchs_denominator_add_up(batch: Batch, reduction: str) -> None:
    denominator = {"token_mean": float(batch.mask.sum()), "sequence_mean": float(ROWS), "sum": float(ROWS * TOKENS)}
    whole = batch.loss(reduction=reduction, denominator=denominator[reduction])
    parts = [
        grpo_replay_loss(
            batch.log_probs[rows],
            batch.old[rows],
            batch.behavior[rows],
            batch.advantages[rows],
            batch.mask[rows],
            **CLIP,
            reduction=reduction,
            denominator=denominator[reduction],
        ).loss
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert torch.stack(parts).sum().item() == pytest.approx(whole.item(), abs=1e-12)
    if reduction != "sum":
        assert whole.item() == pytest.approx(batch.loss(reduction=reduction).item(), abs=1e-12)


def test_half_precision_is_computed_in_float32(batch: Batch) -> None:
    names = ("log_probs", "old", "behavior", "advantages")
    half = {name: getattr(batch, name).detach().bfloat16() for name in names}
    result = grpo_replay_loss(half["log_probs"], half["old"], half["behavior"], half["advantages"], batch.mask)
    wide = {name: tensor.float() for name, tensor in half.items()}
    expected = grpo_replay_loss(wide["log_probs"], wide["old"], wide["behavior"], wide["advantages"], batch.mask)
    assert result.loss.dtype == torch.float32
    assert result.loss.item() == expected.loss.item()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": torch.zeros(ROWS, TOKENS + 1)}, "old_log_probs: expected (6, 9)"),
        ({"behavior": torch.zeros(ROWS)}, "behavior_log_probs: expected (6, 9)"),
        ({"mask": torch.ones(TOKENS, ROWS)}, "mask: expected (6, 9)"),
        ({"advantages": torch.zeros(TOKENS)}, "advantages: expected (6,) or (6, 9)"),
        ({"log_probs": torch.zeros(ROWS)}, "log_probs: expected (rows, tokens)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(batch: Batch, change: dict[str, Tensor], message: str) -> None:
    for name, tensor in change.items():
        setattr(batch, name, tensor)
    with pytest.raises(ValueError) as caught:
        batch.loss()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"centre": "new"}, "centre"),
        ({"reduction": "mean"}, "reduction"),
        ({"weight_cap": 0.0}, "weight_cap"),
        ({"weight_cap": 2.0, "centre": "behavior"}, "weight_cap"),
        ({"clip_low": 1.5}, "clip"),
        ({"counted_rows": torch.ones(ROWS + 1)}, "counted_rows"),
    ],
)
def test_options_that_cannot_be_are_named(batch: Batch, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        batch.loss(**options)


def test_advantages_of_equal_groups_and_of_named_groups_agree() -> None:
    rewards = torch.rand(5, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(4))
    groups = torch.arange(5).repeat_interleave(8) * 100 - 7
    for divide in (False, True):
        table = group_advantages(rewards, divide_by_std=divide)
        flat = group_advantages(rewards.flatten()[order], groups[order], divide_by_std=divide)
        torch.testing.assert_close(flat, table.flatten()[order])
        torch.testing.assert_close(table.sum(dim=1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(table.square().mean(dim=1), torch.ones(5, dtype=torch.float64))


def test_binary_advantages_are_the_papers() -> None:
    advantages = group_advantages(torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]))
    assert advantages.tolist() == [[0.75, -0.25, -0.25, -0.25], [0.0, 0.0, 0.0, 0.0]]


def test_equal_rewards_and_lone_rollouts_have_no_advantage_even_divided() -> None:
    # The float32 mean of seven 0.1 is not 0.1.
    flat = torch.tensor([0.1] * 7 + [5.0])
    groups = torch.tensor([3] * 7 + [9])
    assert group_advantages(flat, groups, divide_by_std=True).tolist() == [0.0] * 8
    assert group_advantages(torch.full((1, 7), 100.1), divide_by_std=True).abs().max() == 0


def test_groups_of_different_sizes_have_their_own_means() -> None:
    advantages = group_advantages(torch.tensor([1.0, 5.0, 0.0, 7.0]), torch.tensor([2, 1, 2, 1]))
    assert advantages.tolist() == [0.5, -1.0, -0.5, 1.0]


@pytest.mark.parametrize(("shape", "groups"), [((4,), None), ((2, 2), (2, 2)), ((4,), (3,))])
def test_rewards_that_do_not_say_their_groups_are_refused(shape: tuple[int], groups: tuple[int] | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        group_advantages(torch.zeros(shape), None if groups is None else torch.zeros(groups))
