"""The arms of the experiment: ways of choosing what the policy practises on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arm:
    """One way of choosing.

    Attributes:
        description: one sentence for the report.
        config: of the arm's run; seed, group size and sampling settings are added.
        replay: whether rollouts are pushed, and so replayed where the run's configuration says so.
        refill: groups without contrast are dropped, and further rounds of the step ask for others until the batch is
            full, as dynamic sampling does (DAPO, arXiv 2503.14476, section 3.2).
        epochs: times that each fresh batch is gone through.
        batch_share: of the experiment's batch that the arm's batches are as large as.
        oracle: the score by which prompts are chosen from exact difficulties in the trainer, instead of by the
            service; None = the service chooses.
    """

    name: str
    description: str
    # The name tells arms apart well enough; a mapping has no hash.
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    replay: bool = False
    refill: bool = False
    epochs: int = 1
    batch_share: float = 1.0
    oracle: str | None = None


UNIFORM = Arm("uniform", "Every prompt equally likely, no replay: the control.", {"preset": "UNIFORM"})
PAPER = Arm(
    "paper",
    "DOTS + RR (arXiv 2506.05316): attention over 256 reference prompts, rolled out anew every 2 steps, predicted "
    "difficulty near 0.5, half of every batch replayed. The encoder is a general one without a trained adapter.",
    {"preset": "PAPER"},
    replay=True,
)
DEFAULT = Arm(
    "default",
    "The service's defaults: difficulty from all training outcomes, an eighth of every batch uniform, half of it "
    "replayed from the last 8 steps.",
    replay=True,
)
ORACLE = Arm(
    "oracle",
    "The default's rule of choice, given every prompt's exact difficulty for free: out of reach, the ceiling.",
    {"preset": "UNIFORM"},
    oracle="LEARNABLE",
)
ARMS: tuple[Arm, ...] = (UNIFORM, PAPER, DEFAULT, ORACLE)
