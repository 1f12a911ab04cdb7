"""A small group of rollouts that can be sent."""

from __future__ import annotations

from clients import RolloutGroup

GROUP = RolloutGroup.from_arrays(
    prompt_id="a",
    policy_version=0,
    prompt_token_ids=[1],
    response_token_ids=[[1], [2]],
    behavior_log_probs=[[-0.5], [-0.25]],
    rewards=[0, 1],
    outcomes=[0, 1],
)
