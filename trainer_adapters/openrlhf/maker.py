"""What makes OpenRLHF's trainers' experiences of rows: the first place that knows pi_old."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from trainer_adapters.config import CurriculumConfig
from trainer_adapters.connection import LOGGER, Connection
from trainer_adapters.loss import staleness
from trainer_adapters.openrlhf.rows import REPLAYED, STEP

_LOGGED = "curriculum/effective_sample_size"
# Of engines of the same weights in another precision the mean over a batch stays far below.
_LARGEST_MEAN = 0.1


class CurriculumExperienceMaker(RemoteExperienceMaker):
    """Reports how stale the replayed rows of each batch are.

    Args:
        curriculum: which service and run. The connection is this process's own: the asynchronous trainer makes rows in
            another one.
    """

    def __init__(self, *args: Any, curriculum: CurriculumConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection = Connection(curriculum)
        # OpenRLHF says nothing at the end of a training, when an outage may have left something to send.
        atexit.register(self._connection.close)
        self._looked = not curriculum.replay

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """As OpenRLHF's; logs and reports effective sample size and largest weight of the replayed tokens."""
        experiences: list[Experience] = super().make_experience(samples_list)
        if not self._looked:
            # Of the first batch alone: nothing has been updated since it was drawn.
            self._looked = True
            self._compare(_log_weights(experiences, replayed=False))
        log_weights = _log_weights(experiences, replayed=True)
        if log_weights.numel() and self._connection.reach():
            size, largest = staleness(log_weights)
            step = int(experiences[0].info[STEP][0])
            self._connection.report_training(step, effective_sample_size=size, max_importance_weight=largest)
            for each in experiences:
                each.info[_LOGGED] = torch.full((len(each.sequences),), size)
        return experiences

    def _compare(self, log_weights: torch.Tensor) -> None:
        """Fresh rows are of the policy itself: weights that say otherwise would correct what needs no correction."""
        mean = float(log_weights.mean()) if log_weights.numel() else 0.0
        if abs(mean) > _LARGEST_MEAN:
            LOGGER.warning(
                "the engine's log-probs differ from the policy's by %.2f in the mean of the first batch: are they of "
                "other weights, or of another temperature?",
                -mean,
            )


def _log_weights(experiences: Sequence[Experience], replayed: bool) -> torch.Tensor:
    """(n,) of log pi_old - log pi_b of the tokens of replayed, or of fresh rows."""
    parts = []
    for each in experiences:
        counted = ((each.info[REPLAYED] != 0) == replayed)[:, None] & (each.action_mask != 0)
        parts.append((each.action_log_probs.float() - each.rollout_log_probs.float())[counted])
    return torch.cat(parts)
