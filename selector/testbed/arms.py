"""The arms of the experiment: ways of choosing what the policy practises on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """One way of choosing.

    Attributes:
        preset: of the arm's run.
        replay: whether rollouts are pushed, and so replayed where the run's configuration says so.
        oracle: prompts are chosen from exact difficulties in the trainer instead of by the service.
        description: one sentence for the report.
    """

    name: str
    preset: str
    replay: bool
    oracle: bool
    description: str


UNIFORM = Arm("uniform", "UNIFORM", False, False, "Every prompt equally likely, no replay: the control.")
PAPER = Arm(
    "paper",
    "PAPER",
    True,
    False,
    "DOTS + RR (arXiv 2506.05316): attention over 256 reference prompts, rolled out anew every 2 steps, predicted "
    "difficulty near 0.5, half of every batch replayed. The encoder is a general one without a trained adapter.",
)
DEFAULT = Arm(
    "default",
    "DEFAULT",
    False,
    False,
    "The service's defaults: difficulty from all training outcomes, an eighth of every batch uniform, no replay.",
)
ORACLE = Arm(
    "oracle",
    "UNIFORM",
    False,
    True,
    "The default's rule of choice, given every prompt's exact difficulty for free: out of reach, the ceiling.",
)
ARMS: tuple[Arm, ...] = (UNIFORM, PAPER, DEFAULT, ORACLE)
