"""Snapshots of a run's folded state, so that loading a run takes the same short time however long its log is.

A snapshot is only ever a shortcut: it stands for a prefix of the log, and is used when that prefix, the code that
folds and the libraries it computes with are the very ones that it was made with. Otherwise the log is folded from its
beginning. Either way the state is the same, bit for bit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache
from pathlib import Path

from selector.code_digest import code_digest
from selector.errors import ServiceError
from selector.events import EventRow
from selector.state import RunState
from selector.state_codec import decode, encode
from selector.storage.runs import RunStore
from selector.storage.snapshot_files import SnapshotFiles, SnapshotKey

_log = logging.getLogger("selector.snapshots")

# What the fold of a log depends on besides the log.
_FOLDING = (
    "config.py",
    "events.py",
    "imported_priors.py",
    "open_selections.py",
    "quality.py",
    "snapshots.py",
    "state.py",
    "state_codec.py",
)
_COMPUTING = ("numpy", "scipy", "curriculum-selector")

# A server that stops saves what takes longer than this share of an interval to fold.
_SHARE_AT_STOP = 16


class RunSnapshots:
    """Snapshots of one run."""

    def __init__(self, files: SnapshotFiles, store: RunStore, run: int, interval_groups: int) -> None:
        """``interval_groups``: reported groups between two snapshots, at least; a larger pool has fewer of them."""
        self._files = files
        self._store = store
        self._run = run
        self._interval = interval_groups
        self._saved_groups = 0

    def newest(self, fresh: Callable[[], RunState], epoch: int) -> RunState:
        """The state to fold the rest of the log into: of the newest usable snapshot, or a fresh one."""
        for state in self.usable(fresh, epoch):
            self._saved_groups = state.outcome_groups
            return state
        self._saved_groups = 0
        return fresh()

    def usable(self, fresh: Callable[[], RunState], epoch: int) -> Iterator[RunState]:
        """The states of the snapshots that can be used, newest first."""
        for key in self._files.keys(self._run, epoch):
            raw = self._files.read(self._run, key)
            state = None if raw is None else self._loaded(raw, key, fresh())
            if state is not None:
                yield state

    def consider(self, state: RunState, epoch: int, pool_size: int, *, stopping: bool = False) -> None:
        """Save a snapshot if one is due.

        Writing one takes time in proportion to the pool, folding in proportion to the groups: with at least a quarter
        of the pool's size of groups in between, it never costs more than a fixed share of what folding them did.
        """
        due = max(self._interval, pool_size // 4)
        if state.outcome_groups - self._saved_groups < (due // _SHARE_AT_STOP if stopping else due):
            return
        try:
            last_event = self._event(state.next_seq - 1)
        except ServiceError as error:
            # What was just written is durable, so a log that cannot be read now must not fail the call.
            _log.warning("no snapshot of run %d was written: %s", self._run, error)
            return
        if last_event is None:
            return
        raw = encode({"code": _code(), "last_event": _digest(last_event), "state": state.state_dict()})
        self._files.save(self._run, SnapshotKey(epoch, state.next_seq - 1, state.last_step), raw)
        self._saved_groups = state.outcome_groups

    def rewound(self, epoch: int, step: int) -> None:
        """The log was rewound to ``step``, which began ``epoch``."""
        self._files.rewound(self._run, epoch, step)

    def _loaded(self, raw: bytes, key: SnapshotKey, state: RunState) -> RunState | None:
        try:
            tree = decode(raw)
            if tree["code"] != _code():
                return None
            last_event = self._event(key.seq)
            # A log that was put back from an older copy may have gone on differently under the same numbers.
            if last_event is None or tree["last_event"] != _digest(last_event):
                return None
            state.load_state_dict(tree["state"])
        except (KeyError, TypeError, ValueError):
            return None
        return state if state.next_seq == key.seq + 1 else None

    def _event(self, seq: int) -> EventRow | None:
        return next(self._store.events(self._run, after_seq=seq - 1, before_seq=seq + 1), None)


def _digest(row: EventRow) -> bytes:
    return hashlib.sha256(repr(astuple(row)).encode()).digest()


@cache
def _code() -> str:
    """Identifies the code that folds, and the libraries that it computes with."""
    package = Path(__file__).parent
    folding = sorted([*(package / name for name in _FOLDING), *(package / "difficulty").rglob("*.py")])
    return code_digest(folding, _COMPUTING)
