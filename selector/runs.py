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
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from selector.answered import AnsweredRequests
from selector.config import RunConfig, config_from_json, config_to_json, differences, resolve
from selector.difficulty.adapter import Adapter
from selector.embedding.store import EmbeddingStore
from selector.errors import FieldViolation, ServiceError, invalid
from selector.estimates import EstimateKeeper
from selector.replay.replay_run import ReplayRun
from selector.replay.store import ReplayStore
from selector.requests import RequestKey
from selector.run import Run
from selector.storage.runs import RunRow, RunStore
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.runs")


class Runs:
    """The runs of a state directory. Methods may be called from several threads at once."""

    def __init__(
        self,
        store: RunStore,
        replay: ReplayStore,
        embeddings: EmbeddingStore,
        adapters: Mapping[str, Adapter],
        rewind_window_steps: int,
        executor: Executor,
        monotonic: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """
        Args:
            adapters: trained adapters by name.
            rewind_window_steps: steps for which replay groups that left can be brought back.
            executor: computes estimates.
            monotonic: seconds that never run backwards.
            now: Unix seconds.
        """
        self._store = store
        self._replay = replay
        self._embeddings = embeddings
        self._adapters = adapters
        self._rewind_window_steps = rewind_window_steps
        self._executor = executor
        self._monotonic = monotonic
        self._now = now
        self._runs: dict[str, Run] = {}
        self._changing = threading.Lock()

    def open(self) -> None:
        """Load every run and bring the two stores in line."""
        self._store.drop_unfinished()
        rows = self._store.runs()
        known = {row.id for row in rows}
        for stored in self._replay.runs():
            if stored not in known:
                self._replay.drop_run(stored)
        for row in rows:
            run = self._make(row)
            run.reconcile()
            run.load()
            if run.adapter_missing:
                _log.warning(
                    "run %s cannot select: it needs adapter %r, which was not given",
                    row.run_id,
                    run.config.estimator.adapter,
                )
            self._runs[row.run_id] = run

    def get(self, run_id: str) -> Run:
        """The run, or RUN_NOT_FOUND."""
        run = self._runs.get(run_id)
        if run is None:
            raise ServiceError(Reason.RUN_NOT_FOUND, f"run_id: there is no run {run_id!r}", metadata={"run_id": run_id})
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

    def delete(self, run_id: str, request_id: str) -> None:
        """Delete a run with its pool, history and replay groups; embeddings stay, since runs may share them.

        Raises:
            ServiceError: RUN_NOT_FOUND, or REQUEST_ID_REUSED when the id deleted another run.
        """
        with self._changing:
            deleted = self._store.find_deletion(request_id) if request_id else None
            if deleted == run_id:
                return
            if deleted is not None:
                raise invalid(
                    "request_id", f"{request_id!r} was used before to delete {deleted!r}", Reason.REQUEST_ID_REUSED
                )
            run = self.get(run_id)
            with self._store.transaction() as tx:
                tx.delete_run(run.row.id, run_id, request_id)
            del self._runs[run_id]
            try:
                self._replay.drop_run(run.row.id)
            except ServiceError:
                # The run is gone; its groups are dropped at the next start.
                _log.exception("replay groups of the deleted run %s could not be dropped yet", run_id)

    def fork(self, run_id: str, new_run_id: str, step: int) -> Run:
        """A new run with the pool of a run, and its events and replay groups of steps before ``step``.

        The caller keeps the source from changing meanwhile.
        """
        with self._changing:
            source = self.get(run_id)
            source.reconcile()
            existing = self._runs.get(new_run_id)
            if existing is not None and (existing.row.forked_from, existing.row.forked_at) == (run_id, step):
                # A repeated call, such as a client's retry after a lost answer.
                return existing
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
            row = self._inserted(row, ready=False)
            source.replay.fork(row.id, step)
            with self._store.transaction() as tx:
                tx.copy_run(source.row.id, row.id, step)
                tx.update_run(row.id, ready=True)
            run = self._make(row)
            run.load()
            self._runs[new_run_id] = run
            return run

    def _inserted(self, row: RunRow, ready: bool, key: RequestKey | None = None) -> RunRow:
        # Only one run is made at a time, so an unfinished one is left from a fork that failed. It would hold the id.
        self._store.drop_unfinished()
        with self._store.transaction() as tx:
            row = replace(row, id=tx.insert_run(row, ready=ready))
            if key is not None:
                AnsweredRequests(self._store, row.id).remember(tx, key, None, None)
        return row

    def _make(self, row: RunRow) -> Run:
        config = config_from_json(row.config)
        return Run(
            row=row,
            config=config,
            store=self._store,
            replay=ReplayRun(self._replay, row.id, config.replay, config.seed, self._rewind_window_steps),
            adapters=self._adapters,
            keeper=EstimateKeeper(self._executor, self._monotonic),
            gather=self._gather,
        )

    def _gather(self, space: str, width: int, rows: np.ndarray) -> np.ndarray:
        return self._embeddings.space(space, width).gather(rows)


def _config_differs(run_id: str, existing: RunConfig, asked: RunConfig) -> ServiceError:
    differing = [
        FieldViolation(f"config.{path}", f"the run has {ours}; got {theirs}")
        for path, ours, theirs in differences(existing, asked)
    ]
    listed = "; ".join(f"{v.field}: {v.description}" for v in differing)
    return ServiceError(Reason.RUN_EXISTS, f"run {run_id!r} exists with another config: {listed}", violations=differing)
