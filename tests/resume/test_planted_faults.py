"""The machine finds faults; each is planted where only a rewind, a fork or a start goes, which spares the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from selector.events import EventRow
from selector.open_selections import OpenSelections
from selector.pool import PromptColumns
from selector.replay import replay_run, rewind
from selector.replay.buffer import ReplayBuffer, evict
from selector.replay.plans import Eviction
from selector.replay.replay_run import ReplayRun
from selector.run import Run
from selector.snapshots import RunSnapshots
from selector.storage import tables
from selector.storage.runs import RunStore, Transaction
from selector.storage.snapshot_files import SnapshotFiles, SnapshotKey
from tests.resume.machine import ResumeMachine

_Patch = Callable[[Any, str, Any], None]


def _after_rewind(change: Callable[[Any, Any], None]) -> Callable[[_Patch], None]:
    """Do something with the states before and after a rewind."""

    def plant(patch: _Patch) -> None:
        rewound = Run.rewind

        def rewind(self: Run, *arguments: Any) -> Any:
            before = self.state
            result = rewound(self, *arguments)
            if self.state is not before:
                change(before, self.state)
            return result

        patch(Run, "rewind", rewind)

    return plant


def _keep(*names: str) -> Callable[[_Patch], None]:
    def change(before: Any, after: Any) -> None:
        for name in names:
            setattr(after, name, getattr(before, name))

    return _after_rewind(change)


def _leases_end_with_the_process(patch: _Patch) -> None:
    load = Run.load

    def loaded(self: Run) -> None:
        load(self)
        self.state.open = OpenSelections()
        self.state.open.grow(len(self.pool))

    patch(Run, "load", loaded)


def _request_ids_outlive_their_step(patch: _Patch) -> None:
    def drop_events(self: Any, run: int, step: int) -> dict[str, int]:
        events = tables.events
        late = sa.and_(events.c.run == run, events.c.step >= step)
        counted = sa.select(events.c.kind, sa.func.count()).where(late).group_by(events.c.kind)
        dropped = {kind: int(count) for kind, count in self._connection.execute(counted)}
        self._connection.execute(events.delete().where(late))
        return dropped

    patch(Transaction, "drop_events", drop_events)


def _the_step_itself_stays(patch: _Patch) -> None:
    drop_events = Transaction.drop_events
    patch(Transaction, "drop_events", lambda self, run, step: drop_events(self, run, step + 1))


def _forks_take_a_step_too_many(patch: _Patch) -> None:
    copy_run = Transaction.copy_run
    patch(Transaction, "copy_run", lambda self, source, target, step: copy_run(self, source, target, step + 1))


def _evicted_groups_stay_away(patch: _Patch) -> None:
    before = rewind._before

    def planted(buffer: ReplayBuffer, step: int, position: int, next_seq: int, behind: Any) -> ReplayBuffer:
        gone = set(buffer.rows["position"][~buffer.live()].tolist())
        result = before(buffer, step, position, next_seq, behind)
        back = [place for place in result.rows["position"][result.live()].tolist() if place in gone]
        rows = result.rows[result.find(back)].copy()
        evict(rows, np.arange(len(rows)), np.full(len(rows), Eviction.CAPACITY), 0, 0)
        result._let_leave(rows)
        return result

    patch(rewind, "_before", planted)


def _uses_are_not_undone(patch: _Patch) -> None:
    before = rewind._before

    def planted(buffer: ReplayBuffer, step: int, position: int, next_seq: int, behind: Any) -> ReplayBuffer:
        return before(buffer, step, position, next_seq, [])

    patch(rewind, "_before", planted)


def _late_pushes_are_lost(patch: _Patch) -> None:
    patch(rewind, "_push_again", lambda result, source, event: None)


def _uses_are_forgotten_at_a_start(patch: _Patch) -> None:
    make = ReplayRun.__init__

    def made(self: ReplayRun, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self._buffer.rows["uses"] = 0

    patch(ReplayRun, "__init__", made)


def _pools_are_sorted_at_a_start(patch: _Patch) -> None:
    pages = RunStore.prompt_pages

    def sorted_page(self: RunStore, run: int) -> Iterator[PromptColumns]:
        records = sorted(record for page in pages(self, run) for record in zip(*page, strict=True))
        if records:
            yield PromptColumns(*zip(*records, strict=True))

    patch(RunStore, "prompt_pages", sorted_page)


def _later_snapshots_survive_a_rewind(patch: _Patch) -> None:
    def rewound(self: SnapshotFiles, run: int, epoch: int, step: int) -> None:
        for key in self._all(run):
            self._path(run, key).rename(self._path(run, SnapshotKey(epoch, key.seq, key.last_step)))

    patch(SnapshotFiles, "rewound", rewound)
    # Whether the log is another one by now is checked as well, so that one fault alone is no harm.
    patch(RunSnapshots, "_event", lambda self, seq: EventRow(seq, "", None, 0, 0, b"", b"", ""))


def _numbers_of_groups_go_on_after_a_rewind(patch: _Patch) -> None:
    rewound = replay_run.rewound

    def planted(buffer: ReplayBuffer, *arguments: Any) -> Any:
        outcome = rewound(buffer, *arguments)
        outcome.buffer.log.next_seq = buffer.log.next_seq
        return outcome

    patch(replay_run, "rewound", planted)


FAULTS: dict[str, Callable[[_Patch], None]] = {
    "a rewind leaves the signals": _keep("signals"),
    "a rewind leaves the estimator": _keep("estimator"),
    "a rewind leaves the window of quality": _keep("quality"),
    "a rewind leaves the leases": _keep("open"),
    "a rewind leaves the cool-down": _keep("last_selected"),
    "a rewind leaves when references were due": _keep("last_reference_step"),
    "a rewind leaves its own step": _the_step_itself_stays,
    "a rewind leaves request ids": _request_ids_outlive_their_step,
    "a rewind brings no evicted group back": _evicted_groups_stay_away,
    "a rewind does not undo uses": _uses_are_not_undone,
    "a rewind loses late pushes": _late_pushes_are_lost,
    "a rewind goes on numbering groups": _numbers_of_groups_go_on_after_a_rewind,
    "a fork takes a step too many": _forks_take_a_step_too_many,
    "a rewind leaves later snapshots": _later_snapshots_survive_a_rewind,
    "a start forgets leases": _leases_end_with_the_process,
    "a start forgets uses": _uses_are_forgotten_at_a_start,
    "a start sorts the pool": _pools_are_sorted_at_a_start,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_machine_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch.setattr)
    # The rule machine of hypothesis is known by its class, and what it has seen by its attribute.
    machine = type("Planted", (ResumeMachine,), {"ahead": 5})
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=60,
                stateful_step_count=60,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                print_blob=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
