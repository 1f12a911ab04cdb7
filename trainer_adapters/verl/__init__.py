"""verl (>= 0.9.1, < 0.10, V1 trainer): three classes that its configuration names; ``docs/trainers/verl.md`` has it.

=========================  ============================================================================================
class                      what it does
=========================  ============================================================================================
``SnapshotCallback``       verl makes it first: checks the configuration, finds the step of the checkpoint that will be
                           resumed from; after a checkpoint it reports how stale replayed rows were
``CurriculumDataset``      registers the prompts, rewinds the run to that step; gives verl's loader the service's
                           prompts, whatever positions it asks for
``ServiceReplayBuffer``    per step: groups to replay, more prompts where they are too few, verl's own sampling of the
(``…Async``)               fresh rows, outcomes and groups to the service, replayed rows into the queue behind them
=========================  ============================================================================================

verl makes all of them in the trainer's process, each from configuration alone. What they share, a ``Training``, is in a
registry under the run's id, so they must be named by package (``pkg://``): a file path would load them twice. A new
callback replaces the training of its run.

The service's step is verl's number of the policy that generates: rollouts of verl's step g are of step g - 1, and a
validation pass after step g, or a resume from its checkpoint, is of step g.
"""

from trainer_adapters.verl.classes import (
    CurriculumDataset,
    ServiceReplayBuffer,
    ServiceReplayBufferAsync,
    SnapshotCallback,
)

__all__ = ["CurriculumDataset", "ServiceReplayBuffer", "ServiceReplayBufferAsync", "SnapshotCallback"]
