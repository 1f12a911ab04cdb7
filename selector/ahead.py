"""The batch of the next step, chosen before anybody asks for it.

Once everything of a step's batch has been reported, what the trainer asks for next is known but for surprises: the same
number of prompts for the step after it. That batch is chosen then, and handed out if that is what is asked for and
nothing it depends on has changed; otherwise it is chosen as if this had never been. What can be made of it then is
made, too: who asks for it waits for little more than the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selector.batches import batch_of
from selector.config import RunConfig
from selector.events import TRAIN, EventRow, SelectionEvent
from selector.pool import Pool
from selector.requests import Batch, RequestKey, SelectRequest
from selector.state import RunState


@dataclass(frozen=True)
class Basis:
    """What a batch depends on: two of the same basis are the same but for the request's own fingerprint."""

    state: RunState
    changes: int
    pool_version: int
    step: int
    batch_size: int
    replay_groups: int


def basis(state: RunState, changes: int, pool: Pool, request: SelectRequest, replay_groups: int) -> Basis | None:
    """Of a request; None = it asks for more than a step's batch.

    Args:
        changes: how many there were of the run since it was loaded, but for those of the pool's content.
    """
    if request.purpose != TRAIN or request.round or request.exclude_prompt_ids:
        return None
    return Basis(
        state=state,
        changes=changes,
        pool_version=pool.version,
        step=request.step,
        batch_size=request.batch_size,
        replay_groups=replay_groups,
    )


def expected(config: RunConfig, state: RunState) -> SelectRequest | None:
    """What is asked for next; None = nobody knows yet."""
    latest = state.latest_selection
    if latest is None or not state.is_reported(latest) or state.last_selection_step != latest.step:
        return None
    if state.reference_due(latest.step + 1):
        # Its outcomes come first.
        return None
    return SelectRequest(
        step=latest.step + 1,
        round=0,
        batch_size=latest.facts.batch_size,
        purpose=TRAIN,
        fresh_only=False,
        exclude_prompt_ids=(),
        shard_index=0,
        shard_count=1,
        key=RequestKey("", "SelectBatch", b""),
    )


@dataclass(frozen=True)
class Chosen:
    """A selection with what is made of it: the row it is stored as, and all of it as the answer."""

    event: SelectionEvent
    row: EventRow
    batch: Batch

    @staticmethod
    def of(pool: Pool, event: SelectionEvent) -> Chosen:
        """Everything that a selection needs before it is handed out."""
        return Chosen(event, event.to_row(), batch_of(pool, event, 0, 1))

    def for_request(self, seq: int, key: RequestKey) -> Chosen:
        """The same as the answer to a request."""
        event = replace(self.event, seq=seq, fingerprint=key.fingerprint)
        return Chosen(event, replace(self.row, seq=seq, fingerprint=key.fingerprint), self.batch)


class Ahead:
    """The one batch that is held."""

    def __init__(self) -> None:
        self._held: tuple[Basis, Chosen] | None = None

    def hold(self, of: Basis, chosen: Chosen) -> None:
        """Keep it instead of any other."""
        self._held = (of, chosen)

    def has(self, of: Basis | None) -> bool:
        """Whether the batch of that basis is held."""
        return of is not None and self._held is not None and self._held[0] == of

    def take(self, of: Basis | None) -> Chosen | None:
        """The batch of that basis; None = it is not held."""
        if not self.has(of):
            return None
        assert self._held is not None
        chosen = self._held[1]
        self._held = None
        return chosen
