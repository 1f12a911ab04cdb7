"""GRPO on a batch of fresh and replayed rollouts (DOTS + RR, arXiv 2506.05316).

With pi_theta the policy being trained, pi_old the same policy at the start of the step (recomputed for fresh *and*
replayed rows) and pi_b the behaviour policy that made a row, per response token with advantage A:

==============  ====================================================================================
``centre``      objective, maximised
==============  ====================================================================================
``"old"``       w · min(rho A, clip(rho, 1 - low, 1 + high) A), rho = pi_theta/pi_old, w = pi_old/pi_b
                held constant. Ordinary PPO clipping with a token weight; the same as clipping
                r = pi_theta/pi_b to [w (1 - low), w (1 + high)], which is what the authors' code does.
``"behavior"``  min(r A, clip(r, 1 - low, 1 + high) A), as the paper writes it. The clip leaves no room
                once the policy has moved away from pi_b, so old rows stop contributing.
==============  ====================================================================================

Passing the behaviour log-probs as ``old_log_probs`` gives the second objective, not the first. Positions whose mask is
0 may hold anything, NaN included: they change neither the loss, nor its gradient, nor the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# exp(20) = 5e8. Beyond it a ratio is a broken log-prob, and exp would overflow to an infinite gradient.
MAX_LOG_RATIO = 20.0
# Rewards closer than this, relative to 1 + their mean, are equal.
_EQUAL_REWARDS = 1e-6


@dataclass(frozen=True)
class ReplayLoss:
    """The loss of a (micro-)batch, and what to report of it with ``report_training``; all but ``loss`` are detached.

    Attributes:
        loss: scalar, to be minimised.
        clip_fraction: share of unmasked tokens whose gradient the clip has removed, in [0, 1].
        effective_sample_size: (sum w)² / (n sum w²) over the n unmasked tokens of the counted rows, in [1/n, 1]; 1 when
            nothing counts, 0 when log-probs are not finite. w = pi_old/pi_b before any cap, so it tells how stale the
            rows are, not how well the cap hides it.
        max_weight: largest w of the counted rows, before any cap; 0 when nothing counts.
        capped_fraction: share of unmasked tokens whose w exceeds the cap.
        tokens: number of unmasked tokens.
    """

    loss: Tensor
    clip_fraction: float
    effective_sample_size: float
    max_weight: float
    capped_fraction: float
    tokens: int

    def backward(self) -> None:
        """``loss.backward()``."""
        self.loss.backward()


def grpo_replay_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    behavior_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    centre: str = "old",
    weight_cap: float | None = None,
    reduction: str = "token_mean",
    denominator: float | None = None,
    counted_rows: Tensor | None = None,
) -> ReplayLoss:
    """The clipped objective of a batch, negated. Half precision is computed in float32.

    Args:
        log_probs: (rows, tokens) of pi_theta, with gradient.
        old_log_probs: (rows, tokens) of pi_old.
        behavior_log_probs: (rows, tokens) of pi_b, as the service returns them.
        advantages: (rows,) or (rows, tokens).
        mask: (rows, tokens), nonzero where a token counts.
        clip_low, clip_high: the clip is [1 - clip_low, 1 + clip_high].
        centre: ``"old"`` or ``"behavior"``, see the module.
        weight_cap: largest w (truncated importance sampling); None = no cap, as in the paper. Only ``"old"`` has w.
        reduction: ``"token_mean"``: sum over tokens / tokens. ``"sequence_mean"``: mean over rows of each row's token
            mean, rows without tokens left out. ``"sum"``: sum over tokens / ``denominator``.
        denominator: what to divide by instead: the tokens (``"token_mean"``) or rows (``"sequence_mean"``) of the whole
            batch, so that the losses of its micro-batches add up to its loss; any constant, such as rows · longest
            response (Dr. GRPO), for ``"sum"``, where None is 1.
        counted_rows: (rows,) bool, the rows that ``effective_sample_size`` and ``max_weight`` are taken over, normally
            the replayed ones; None = all.

    Raises:
        ValueError: shapes that do not fit together, or an unknown or contradictory option.
    """
    _check_shapes(log_probs, old_log_probs, behavior_log_probs, advantages, mask, counted_rows)
    if centre not in ("old", "behavior"):
        raise ValueError(f"centre: expected 'old' or 'behavior', got {centre!r}")
    if weight_cap is not None and (centre != "old" or not weight_cap > 0):
        raise ValueError(f"weight_cap: expected None, or > 0 with centre='old'; got {weight_cap} with {centre!r}")
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(f"clip: expected clip_low in [0, 1] and clip_high >= 0, got {clip_low} and {clip_high}")

    kept = mask != 0
    # Before exp: NaN · 0 is NaN, in the value and in the gradient.
    current = _kept(log_probs, kept)
    old = _kept(old_log_probs.detach(), kept)
    behavior = _kept(behavior_log_probs.detach(), kept)
    advantage = _kept((advantages if advantages.dim() == 2 else advantages[:, None]).detach(), kept)

    log_weight = (old - behavior).clamp(max=MAX_LOG_RATIO)
    weight = log_weight.exp()
    ratio = (current - (old if centre == "old" else behavior)).clamp(max=MAX_LOG_RATIO).exp()
    low, high = 1 - clip_low, 1 + clip_high
    objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if centre == "old":
        objective = objective * (weight if weight_cap is None else weight.clamp(max=weight_cap))

    tokens = int(kept.sum())
    with torch.no_grad():
        clipped = torch.where(advantage > 0, ratio > high, (ratio < low) & (advantage < 0)) & kept
        capped = kept & (weight > weight_cap) if weight_cap is not None else torch.zeros_like(kept)
        counted = log_weight[kept if counted_rows is None else kept & (counted_rows[:, None] != 0)]
    effective_sample_size, max_weight = staleness(counted)
    return ReplayLoss(
        loss=-_reduced(torch.where(kept, objective, 0), kept, reduction, denominator),
        clip_fraction=int(clipped.sum()) / max(tokens, 1),
        effective_sample_size=effective_sample_size,
        max_weight=max_weight,
        capped_fraction=int(capped.sum()) / max(tokens, 1),
        tokens=tokens,
    )


def staleness(log_weights: Tensor) -> tuple[float, float]:
    """Effective sample size and largest weight, as in ``ReplayLoss``, for trainers with a loss of their own.

    Args:
        log_weights: (n,) of log pi_old - log pi_b, of the replayed tokens that count.
    """
    if log_weights.numel() == 0:
        return 1.0, 0.0
    capped = log_weights.clamp(max=MAX_LOG_RATIO)
    largest = capped.max()
    if not torch.isfinite(largest):
        return 0.0, float(largest.exp())
    # Scaled by the largest: squares of the weights themselves may overflow or all vanish.
    scaled = (capped - largest).exp()
    size = min(float(scaled.sum().square() / (scaled.square().sum() * scaled.numel())), 1.0)
    return size, float(largest.exp())


def group_advantages(rewards: Tensor, groups: Tensor | None = None, *, divide_by_std: bool = False) -> Tensor:
    """r - mean(r) within each group: GRPO's advantage without the division (the paper; Dr. GRPO, arXiv 2503.20783).

    Args:
        rewards: (groups, G), or (rows,) together with ``groups``.
        groups: (rows,) integers naming each row's group; groups may differ in size.
        divide_by_std: divide by the group's (population) standard deviation, as the first GRPO does; a group of equal
            rewards stays 0.

    Returns:
        Advantages in the shape of ``rewards``; integers become float32.

    Raises:
        ValueError: shapes that do not fit together.
    """
    values = rewards if rewards.is_floating_point() else rewards.to(torch.float32)
    if groups is None:
        if rewards.dim() != 2:
            raise ValueError(f"rewards: expected (groups, G), or (rows,) with groups; got {tuple(rewards.shape)}")
        centred = values - values.mean(dim=1, keepdim=True)
        spread = centred.square().mean(dim=1, keepdim=True).sqrt()
    else:
        if rewards.dim() != 1 or groups.shape != rewards.shape:
            raise ValueError(
                f"groups: expected one per row of rewards {tuple(rewards.shape)}, got {tuple(groups.shape)}"
            )
        position = torch.unique(groups, return_inverse=True)[1]
        centred = values - _group_mean(values, position)
        spread = _group_mean(centred.square(), position).sqrt()
    if not divide_by_std:
        return centred
    # Rounding of the mean alone gives equal rewards a spread, which the division would blow up to 1.
    rounding = _EQUAL_REWARDS * (1 + (values - centred).abs())
    return torch.where(spread > rounding, centred / spread.clamp(min=_EQUAL_REWARDS), 0)


def _group_mean(values: Tensor, position: Tensor) -> Tensor:
    """(rows,) mean of each row's group."""
    count = int(position.max()) + 1 if position.numel() else 0
    total = values.new_zeros(count).index_add(0, position, values)
    return (total / torch.bincount(position, minlength=count))[position]


def _check_shapes(
    log_probs: Tensor, old: Tensor, behavior: Tensor, advantages: Tensor, mask: Tensor, counted_rows: Tensor | None
) -> None:
    shape = tuple(log_probs.shape)
    if len(shape) != 2:
        raise ValueError(f"log_probs: expected (rows, tokens), got {shape}")
    for name, tensor in (("old_log_probs", old), ("behavior_log_probs", behavior), ("mask", mask)):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected {shape} as log_probs, got {tuple(tensor.shape)}")
    if tuple(advantages.shape) not in (shape, shape[:1]):
        raise ValueError(f"advantages: expected {shape[:1]} or {shape}, got {tuple(advantages.shape)}")
    if counted_rows is not None and tuple(counted_rows.shape) != shape[:1]:
        raise ValueError(f"counted_rows: expected {shape[:1]}, got {tuple(counted_rows.shape)}")


def _kept(values: Tensor, kept: Tensor) -> Tensor:
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return torch.where(kept, wide, 0)


def _reduced(objective: Tensor, kept: Tensor, reduction: str, denominator: float | None) -> Tensor:
    if reduction == "sum":
        return objective.sum() / (1.0 if denominator is None else denominator)
    if reduction == "token_mean":
        return objective.sum() / (max(int(kept.sum()), 1) if denominator is None else denominator)
    if reduction == "sequence_mean":
        lengths = kept.sum(dim=1)
        rows = max(int((lengths > 0).sum()), 1) if denominator is None else denominator
        return (objective.sum(dim=1) / lengths.clamp(min=1)).sum() / rows
    raise ValueError(f"reduction: expected 'token_mean', 'sequence_mean' or 'sum', got {reduction!r}")
