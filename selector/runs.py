"""All runs of a state directory: opening, creating, listing, deleting and forking them.

No transaction spans the two stores of a run (SQLite and the replay store); whichever is written second catches up at
start-up: runs that SQLite does not know lose their replay groups, and interrupted forks and rewinds are finished or
forgotten.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from selector.answered import AnsweredRequests
from selector.config import RunConfig, config_from_json, config_to_json, differences, resolve
from selector.difficulty.adapter import Adapter
from selector.embedding.errors import EmbeddingStorageError, SpaceMismatchError
from selector.embedding.store import EmbeddingStore
from selector.errors import FieldViolation, ServiceError, invalid
from selector.estimates import EstimateKeeper
from selector.kept_surface import KeptSurface
from selector.neighbours.search import CPU
from selector.predictor.predictor import Predictor
from selector.quotas import Ledger, Quotas
from selector.replay.errors import StorageFailed
from selector.replay.replay_run import ReplayRun
from selector.replay.store import ReplayStore
from selector.requests import ForkResult, RequestKey, RewindResult
from selector.run import Run
from selector.snapshots import RunSnapshots
from selector.storage.reserve import Reserve
from selector.storage.runs import RunRow, RunStore
from selector.storage.snapshot_files import SnapshotFiles
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.runs")

_T = TypeVar("_T")


class Runs:
    """The runs of a state directory. Methods may be called from several threads at once."""

    def __init__(
        self,
        store: RunStore,
        replay: ReplayStore,
        embeddings: EmbeddingStore,
        snapshots: SnapshotFiles,
        adapters: Mapping[str, Adapter],
        rewind_window_steps: int,
        snapshot_groups: int,
        predictor: Predictor,
        monotonic: Callable[[], float],
        now: Callable[[], float],
        quotas: Quotas | None = None,
        reserve: Reserve | None = None,
        neighbours_device: str = CPU,
    ) -> None:
        """
        Args:
            adapters: trained adapters by name.
            rewind_window_steps: steps for which replay groups that left can be brought back.
            snapshot_groups: groups reported between two snapshots of a run's state, at least.
            predictor: computes estimates.
            monotonic: seconds that never run backwards.
            now: Unix seconds.
            quotas: what the runs may keep; None = as much as they like.
            reserve: disk space for what frees space; None = there is none.
            neighbours_device: where nearest neighbours are searched for, cpu or cuda.
        """
        self._store = store
        self._replay = replay
        self._embeddings = embeddings
        self._snapshots = snapshots
        self._adapters = adapters
        self._rewind_window_steps = rewind_window_steps
        self._snapshot_groups = snapshot_groups
        self._predictor = predictor
        self._monotonic = monotonic
        self._now = now
        self.ledger = Ledger(quotas or Quotas())
        self._reserve = reserve
        self._neighbours_device = neighbours_device
        self._runs: dict[str, Run] = {}
        # Numbers of runs that are gone and whose replay groups are still there.
        self._undropped: set[int] = set()
        self._changing = threading.Lock()

    def open(self) -> None:
        """Load every run and bring the two stores in line."""
        rows = self._store.runs()
        known = {row.id for row in rows}
        self._undropped = set(self._replay.runs()) - known
        try:
            self._spend(self._drop_remains)
        except ServiceError:
            _log.exception("what deleted runs held could not be removed yet")
        self._snapshots.keep_only(known)
        for row in rows:
            run = self._make(row)
            try:
                run.reconcile()
            except StorageFailed:
                _log.exception("replay of run %s could not be rewound yet", row.run_id)
            run.load()
            self.ledger.settle(row.id, run.usage())
            try:
                run.adapter.check_usable(row.run_id, row.space, row.width)
            except ServiceError as error:
                _log.warning("run %s cannot select: %s", row.run_id, error.message)
            self._runs[row.run_id] = run

    def close(self) -> None:
        """No more calls will come."""
        for run in self.all():
            run.close()

    def find(self, run_id: str) -> Run:
        """The run as it is, whatever is being done to it, or RUN_NOT_FOUND."""
        run = self._runs.get(run_id)
        if run is None:
            raise ServiceError(Reason.RUN_NOT_FOUND, f"run_id: there is no run {run_id!r}", metadata={"run_id": run_id})
        return run

    def get(self, run_id: str) -> Run:
        """The run, or RUN_NOT_FOUND; for who has the run for itself."""
        run = self.find(run_id)
        run.catch_up()
        return run

    def same(self, run: Run) -> Run:
        """A run that something was prepared for, as ``get``; RUN_NOT_FOUND if it was deleted since."""
        run_id = run.row.run_id
        if self.get(run_id) is not run:
            raise ServiceError(
                Reason.RUN_NOT_FOUND, f"run_id: run {run_id!r} was deleted meanwhile", metadata={"run_id": run_id}
            )
        return run

    def all(self) -> list[Run]:
        """All runs by id."""
        return [run for _, run in sorted(self._runs.items())]

    def create(self, run_id: str, explicit: Mapping[str, Any], key: RequestKey) -> tuple[Run, bool]:
        """The run with this configuration, and whether it is new.

        Raises:
            ServiceError: INVALID_FIELD, CONTRADICTORY_FIELDS, UNKNOWN_ADAPTER, or RUN_EXISTS with another config.
        """
        config = resolve(explicit)
        if config.estimator.adapter and config.estimator.adapter not in self._adapters:
            known = ", ".join(sorted(self._adapters)) or "none"
            description = f"unknown adapter {config.estimator.adapter!r}; the server has: {known}"
            raise invalid("config.estimator.adapter", description, Reason.UNKNOWN_ADAPTER)
        canonical = json.dumps(explicit, sort_keys=True)
        with self._changing:
            existing = self._runs.get(run_id)
            if existing is not None:
                existing.answered.check(key)
                # The same explicit values stay the same config even if a newer version has other defaults.
                if existing.config != config and existing.row.explicit_config != canonical:
                    raise _config_differs(run_id, existing.config, config)
                return existing, False
            self.ledger.check_runs(len(self._runs))
            row = RunRow(
                id=0,
                run_id=run_id,
                explicit_config=canonical,
                config=config_to_json(config),
                created=self._now(),
                space="",
                width=0,
                rewind_epoch=0,
                rewind_step=0,
                forked_from="",
                forked_at=0,
            )
            run = self._make(self._inserted(row, ready=True, key=key))
            run.load()
            self._runs[run_id] = run
            return run, True

    def delete(self, run_id: str, key: RequestKey) -> None:
        """Delete a run with its pool, history and replay groups; embeddings stay, since runs may share them.

        Raises:
            ServiceError: RUN_NOT_FOUND, or REQUEST_ID_REUSED when the id was of another call on the run.
        """
        request_id = key.request_id
        with self._changing:
            existing = self._runs.get(run_id)
            if existing is not None:
                # A later run of the id may have been called with this request id.
                existing.answered.check(key)
            if request_id and self._store.was_deleted(run_id, request_id):
                return
            run = self.get(run_id)
            self._spend(lambda: self._delete(run, request_id))
            del self._runs[run_id]
            run.keeper.forget()
            self.ledger.close(run.row.id)
            self._snapshots.drop(run.row.id)
            self._undropped.add(run.row.id)
            try:
                self._spend(self._drop_remains)
            except ServiceError:
                # The run is gone; what it held is removed when the next one is made or deleted, or at the next start.
                _log.exception("what the deleted run %s held could not be removed yet", run_id)

    def _delete(self, run: Run, request_id: str) -> None:
        with self._store.transaction() as tx:
            tx.delete_run(run.row.id, run.row.run_id, request_id)

    def _spend(self, work: Callable[[], _T]) -> _T:
        """Do work that frees space, if need be with the space that is kept back for this."""
        return work() if self._reserve is None else self._reserve.spend(work)

    def _drop_remains(self) -> None:
        """Remove what is left of runs that are gone, or were never finished."""
        self._store.drop_unfinished()
        self._drop_groups()

    def _drop_groups(self) -> None:
        for run in sorted(self._undropped):
            self._replay.drop_run(run)
            self._undropped.discard(run)

    def rewind(self, run_id: str, step: int, key: RequestKey) -> RewindResult:
        """Rewind a run (see ``Run.rewind``), on a full disk with the space that is kept back for this."""
        run = self.get(run_id)
        return self._spend(lambda: run.rewind(step, key))

    def fork(self, run_id: str, new_run_id: str, step: int, key: RequestKey) -> Run:
        """A new run with the pool of a run, and its events and replay groups of steps before ``step``.

        The caller keeps the source from changing meanwhile.

        Raises:
            ServiceError: RUN_NOT_FOUND, also when the run that the same request made was deleted since; RUN_EXISTS,
                even for a fork of the same step, since its source may have changed.
        """
        with self._changing:
            source = self.get(run_id)
            made = source.answered.find(key, ForkResult)
            source.reconcile()
            existing = self._runs.get(new_run_id)
            if made is not None:
                if existing is not None and _is_made(existing.row, made, run_id, step):
                    return existing
                raise ServiceError(
                    Reason.RUN_NOT_FOUND,
                    f"new_run_id: the run {new_run_id!r} that this request made was deleted since; "
                    "another request_id makes it anew",
                    metadata={"run_id": new_run_id},
                )
            if existing is not None:
                raise ServiceError(
                    Reason.RUN_EXISTS,
                    f"new_run_id: run {new_run_id!r} exists",
                    violations=[FieldViolation("new_run_id", "expected the id of no run")],
                )
            row = replace(
                source.row,
                run_id=new_run_id,
                created=self._now(),
                rewind_epoch=0,
                rewind_step=0,
                forked_from=run_id,
                forked_at=step,
            )
            self.ledger.check_runs(len(self._runs))
            row = self._inserted(row, ready=False)
            # Groups of later steps are left out, which is settled once the fork is there.
            self._undropped.add(row.id)
            with self.ledger.change(row.id, **asdict(source.usage())):
                source.replay.fork(row.id, step)
                with self._store.transaction() as tx:
                    tx.copy_run(source.row.id, row.id, step)
                self._snapshots.copy(source.row.id, source.row.rewind_epoch, row.id, step)
                run = self._make(row)
                run.load()
                # The last write: a run that was answered for is in memory as well.
                with self._store.transaction() as tx:
                    tx.update_run(row.id, ready=True)
                    source.answered.remember(tx, key, ForkResult(row.id), None)
            self._undropped.discard(row.id)
            self.ledger.settle(row.id, run.usage())
            self._runs[new_run_id] = run
            return run

    def _inserted(self, row: RunRow, ready: bool, key: RequestKey | None = None) -> RunRow:
        # Only one run is made at a time, so an unfinished one is left from a fork that failed. It would hold the id.
        self._store.drop_unfinished()
        with suppress(StorageFailed):
            self._drop_groups()
        with self._store.transaction() as tx:
            row = replace(row, id=tx.insert_run(row, ready=ready))
            if key is not None:
                AnsweredRequests(self._store, row.id).remember(tx, key, None, None)
        return row

    def _make(self, row: RunRow) -> Run:
        try:
            config = config_from_json(row.config)
        except ValueError as error:
            raise ServiceError(Reason.STORAGE_FAILED, f"run {row.run_id!r} cannot be loaded: {error}") from error
        return Run(
            row=row,
            config=config,
            store=self._store,
            replay=ReplayRun(
                self._replay,
                row.id,
                config.replay,
                config.seed,
                self._rewind_window_steps,
                lambda groups, size: self.ledger.change(row.id, replay_groups=groups, replay_bytes=size),
            ),
            adapters=self._adapters,
            keeper=EstimateKeeper(
                self._predictor.of_run(config, self._adapters.get(config.estimator.adapter), self._neighbours_device),
                self._monotonic,
            ),
            gather=self._gather,
            snapshots=RunSnapshots(self._snapshots, self._store, row.id, self._snapshot_groups),
            surface=KeptSurface(self._snapshots, row.id),
            ledger=self.ledger,
            neighbours_device=self._neighbours_device,
        )

    def _gather(self, space: str, width: int, rows: np.ndarray) -> np.ndarray:
        try:
            return self._embeddings.space(space, width).gather(rows)
        except (EmbeddingStorageError, SpaceMismatchError) as error:
            raise ServiceError(Reason.STORAGE_FAILED, str(error), retry_after_s=1.0) from error


def _is_made(row: RunRow, made: ForkResult, source: str, step: int) -> bool:
    """Whether this is the run that a fork made, and not a later one of the same id."""
    if made.run:
        return row.id == made.run
    return (row.forked_from, row.forked_at) == (source, step)


def _config_differs(run_id: str, existing: RunConfig, asked: RunConfig) -> ServiceError:
    differing = [
        FieldViolation(f"config.{path}", f"the run has {ours}; got {theirs}")
        for path, ours, theirs in differences(existing, asked)
    ]
    listed = "; ".join(f"{v.field}: {v.description}" for v in differing)
    return ServiceError(Reason.RUN_EXISTS, f"run {run_id!r} exists with another config: {listed}", violations=differing)
