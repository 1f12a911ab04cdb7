"""One training run: its pool, its state, its replay buffer, and the requests that change them.

Calls on one run are serialised by the caller. Every change is written before it is folded into memory, so what was
answered is durable and a failed write changes nothing. Memory is a fold of what is stored (``selector.state``):
``load`` rebuilds it at start-up and after a rewind.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from selector.answered import AnsweredRequests
from selector.batches import batch_of, new_selection, replay_share
from selector.config import INFORMATIVE_TOLERANCE, RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.registry import estimator_of
from selector.embedding.errors import EmbeddingDamagedError
from selector.errors import FieldViolation, ServiceError, invalid_fields
from selector.estimates import Answer, EstimateKeeper
from selector.events import (
    REPORT,
    SELECTION,
    ReplacementEvent,
    ReportEvent,
    ReportFacts,
    SelectionEvent,
    TrainingEvent,
    TrainingFacts,
    check_prompts,
    decode,
)
from selector.outcomes import MappedOutcomes, map_outcomes
from selector.pool import INELIGIBLE, RETIRED, Pool, PromptRecord
from selector.quotas import Ledger, Quotas, Usage
from selector.replay.errors import StorageFailed
from selector.replay.group import GroupRules
from selector.replay.plans import SampleRequest
from selector.replay.replay_run import ReplayRun
from selector.requests import (
    Batch,
    PromptSpec,
    RegisterResult,
    ReportRequest,
    ReportResult,
    RequestKey,
    RetireResult,
    RewindResult,
    SelectRequest,
    TrainingRequest,
    TrainingResult,
)
from selector.run_adapter import RunAdapter
from selector.snapshots import RunSnapshots
from selector.state import RunState
from selector.storage.runs import RunRow, RunStore
from selector.v1.reasons import Reason

_log = logging.getLogger("selector.runs")

# Each is a column of the whole pool and of the population model.
MOST_SIGNALS = 32

_LISTED = 10


class Run:
    """One run; see the module docstring."""

    def __init__(
        self,
        row: RunRow,
        config: RunConfig,
        store: RunStore,
        replay: ReplayRun,
        adapters: Mapping[str, Adapter],
        keeper: EstimateKeeper,
        gather: Callable[[str, int, np.ndarray], np.ndarray],
        snapshots: RunSnapshots,
        ledger: Ledger | None = None,
    ) -> None:
        """
        Args:
            adapters: trained adapters by name.
            gather: (embedding space, width, rows (n,)) -> (n, width) float32.
            ledger: what the run may keep; None = as much as it likes.
        """
        self.row = row
        self.config = config
        self.store = store
        self.replay = replay
        self.keeper = keeper
        self.answered = AnsweredRequests(store, row.id)
        self.adapter = RunAdapter(config.estimator.adapter, adapters.get(config.estimator.adapter))
        self._gather = gather
        self._snapshots = snapshots
        self._ledger = ledger or Ledger(Quotas())
        self.group_rules = GroupRules(
            config.outcome_range, config.clip_outcomes, config.on_nan == "DROP_ROLLOUT", config.sampling
        )
        # Since the server started, by reason; nothing of a refused group is stored.
        self.refused_groups: Counter[str] = Counter()
        self.pool = Pool()
        self.state = self._fresh_state()
        # Whether the log has been rewound, and the state not yet.
        self._behind = False

    def load(self) -> None:
        """Rebuild memory from what is stored."""
        self.pool = Pool()
        self.pool.put(self.store.prompts(self.row.id))
        self._refold()

    def usage(self) -> Usage:
        """What the run keeps."""
        groups, replay_bytes = self.replay.kept()
        return Usage(len(self.pool), self.pool.content_bytes, groups, replay_bytes)

    def close(self) -> None:
        """The server stops: what took long to fold is kept for the next start."""
        self._snapshots.consider(self.state, self.row.rewind_epoch, len(self.pool), stopping=True)

    # --- pool -----------------------------------------------------------------------------------------------------

    def check_room(self, specs: Sequence[PromptSpec]) -> None:
        """Refuse prompts that cannot fit, before anything is made of them; ``register`` decides.

        Raises:
            ServiceError: QUOTA_EXCEEDED.
        """
        new = {spec.prompt_id for spec in specs if spec.prompt_id not in self.pool.index}
        self._ledger.check(self.row.id, prompts=len(self.pool) + len(new))

    def register(
        self, records: Sequence[PromptRecord], space: str, width: int, replace: bool, key: RequestKey
    ) -> RegisterResult:
        """Add prompts. The records of one call have distinct ids.

        Args:
            space: embedding space the records' rows are in, empty when none has an embedding.
            width: of that space.

        Raises:
            ServiceError: QUOTA_EXCEEDED, PROMPT_CONTENT_DIFFERS, EMBEDDING_MISMATCH.
        """
        done = self.answered.find(key, RegisterResult)
        if done is not None:
            return done
        self._check_space(space, width)
        new: list[PromptRecord] = []
        changed: list[tuple[int, PromptRecord]] = []
        # The same content, but an embedding where there was none, or back from retirement.
        refreshed: list[tuple[int, PromptRecord]] = []
        unchanged = restored = 0
        for record in records:
            at = self.pool.index.get(record.prompt_id)
            if at is None:
                new.append(record)
            elif self.pool.content_hashes[at] != record.content_hash:
                changed.append((at, record))
            elif replace and self.pool.status[at] == RETIRED:
                refreshed.append((at, record))
                restored += 1
            else:
                unchanged += 1
                # Where there was none, or a damaged one that could not be repaired in its place.
                if record.embedding_row >= 0 and self.pool.embedding_row[at] != record.embedding_row:
                    refreshed.append((at, dataclasses.replace(record, status=int(self.pool.status[at]))))
        if changed and not replace:
            raise self._content_differs(changed)
        placed = [*((len(self.pool) + i, r) for i, r in enumerate(new)), *changed, *refreshed]
        refused = [r.prompt_id for _, r in placed if r.status == INELIGIBLE]
        result = RegisterResult(len(new), unchanged, len(changed) + restored, len(refused), refused[:_LISTED])
        event = None
        if changed:
            event = ReplacementEvent(self.state.next_seq, np.array([at for at, _ in changed], dtype=np.int32))
        room = self._ledger.change(
            self.row.id,
            prompts=len(self.pool) + len(new),
            prompt_bytes=self.pool.bytes_with(new, [*changed, *refreshed]),
        )
        with room, self.store.transaction() as tx:
            tx.put_prompts(self.row.id, placed)
            if event is not None:
                tx.append_event(self.row.id, event.to_row())
            if space and not self.row.space:
                tx.update_run(self.row.id, space=space, width=width)
            self.answered.remember(tx, key, result, None)
        if space and not self.row.space:
            self.row = dataclasses.replace(self.row, space=space, width=width)
        self.pool.put([record for _, record in placed])
        self.state.grow(len(self.pool))
        if event is not None:
            self.state.apply(event)
        return result

    def retire(self, prompt_ids: Sequence[str], key: RequestKey) -> RetireResult:
        """Take prompts out of selection."""
        done = self.answered.find(key, RetireResult)
        if done is not None:
            return done
        prompts = np.unique(self.indices(prompt_ids, "prompt_ids"))
        fresh = prompts[self.pool.status[prompts] != RETIRED]
        result = RetireResult(len(fresh), len(prompts) - len(fresh))
        with self.store.transaction() as tx:
            tx.set_prompt_status(self.row.id, fresh.tolist(), RETIRED)
            self.answered.remember(tx, key, result, None)
        self.pool.retire(fresh)
        return result

    # --- selection ------------------------------------------------------------------------------------------------

    def select(self, request: SelectRequest, budget_s: float | None) -> Batch:
        """Select a batch, or return the one already selected for the same (step, purpose, round).

        Args:
            budget_s: seconds the estimate may take before the last one is used, None = any.
        """
        self.reconcile()
        self.answered.check(request.key)
        row = self.store.find_selection(self.row.id, request.step, request.purpose, request.round)
        if row is not None:
            event = SelectionEvent.from_row(row)
            if event.fingerprint != request.key.fingerprint:
                raise self._selection_differs(request, event)
            return batch_of(self.pool, event, request.shard_index, request.shard_count)
        excluded = self.indices(request.exclude_prompt_ids, "exclude_prompt_ids")
        answer = self.estimate(request.step, budget_s)
        replay_groups = replay_share(self.config, request)
        # A batch is replayed in part or not at all: a share that the buffer cannot fill is rolled out fresh.
        if replay_groups and self.replay.eligible_count(SampleRequest(request.step, replay_groups)) < replay_groups:
            replay_groups = 0
        event = new_selection(self.config, self.state, self.pool, request, excluded, answer, replay_groups)
        if not replay_groups and not self.pool.active().any():
            # Nothing could be handed out, so nothing is recorded: the step is free for when prompts are registered.
            return batch_of(self.pool, event, request.shard_index, request.shard_count)
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            self.answered.remember(tx, request.key, None, request.step)
        self.state.apply(event)
        return batch_of(self.pool, event, request.shard_index, request.shard_count)

    def estimate(self, step: int, budget_s: float | None = None) -> Answer:
        """The estimate of the whole pool for ``step``; see EstimateKeeper.current.

        Raises:
            ServiceError: UNKNOWN_ADAPTER or ADAPTER_MISMATCH when the server has no adapter that the run can use.
        """
        self.adapter.check_usable(self.row.run_id, self.row.space, self.row.width)
        return self.keeper.current(self.state, self.features(), step, budget_s)

    # --- reports --------------------------------------------------------------------------------------------------

    def report(self, request: ReportRequest) -> ReportResult:
        """Apply outcomes, all or nothing."""
        done = self.answered.find(request.key, ReportResult)
        if done is not None:
            return dataclasses.replace(done, already_applied=True)
        prompts = self.indices([p.prompt_id for p in request.prompts], "outcomes", ".prompt_id")
        mapped: list[MappedOutcomes] = []
        violations: list[FieldViolation] = []
        for i, prompt in enumerate(request.prompts):
            found = map_outcomes(self.config, prompt.outcomes, prompt.statuses, f"outcomes[{i}].outcomes")
            if isinstance(found, MappedOutcomes):
                mapped.append(found)
            else:
                description = f"{found.description} (prompt {prompt.prompt_id!r})"
                violations.append(dataclasses.replace(found, description=description))
        if violations:
            raise invalid_fields(violations, Reason.INVALID_OUTCOME)
        belonging = self.state.open.belonging(prompts.tolist(), request.purpose, request.step)
        facts = ReportFacts(
            sum(m.skipped for m in mapped), sum(m.dropped for m in mapped), sum(m.clipped for m in mapped)
        )
        event = ReportEvent(
            seq=self.state.next_seq,
            step=request.step,
            purpose=request.purpose,
            prompt=prompts.astype(np.int32),
            count=np.array([len(m.outcomes) for m in mapped], dtype=np.int32),
            outcomes=np.concatenate([np.zeros(0), *(m.outcomes for m in mapped)]),
            predicted=np.array([selection.difficulty for selection in belonging]),
            population=np.array([selection.population for selection in belonging]),
            arm=np.array([selection.arm for selection in belonging], dtype=np.uint8),
            facts=facts,
        )
        empty = sum(len(m.outcomes) == 0 for m in mapped)
        informative = sum(len(m.outcomes) > 0 and np.ptp(m.outcomes) > INFORMATIVE_TOLERANCE for m in mapped)
        result = ReportResult(
            applied_groups=len(mapped) - empty,
            informative_groups=int(informative),
            empty_groups=empty,
            skipped_rollouts=facts.skipped_rollouts,
            dropped_rollouts=facts.dropped_rollouts,
            clipped_outcomes=facts.clipped_outcomes,
        )
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            self.answered.remember(tx, request.key, result, request.step)
        self.state.apply(event)
        self._snapshots.consider(self.state, self.row.rewind_epoch, len(self.pool))
        return result

    def report_training(self, request: TrainingRequest) -> TrainingResult:
        """Record what the trainer saw."""
        done = self.answered.find(request.key, TrainingResult)
        if done is not None:
            return TrainingResult(already_applied=True)
        signals = {
            name: (self.indices(ids, f"signals[{i}].prompt_ids").astype(np.int32), values)
            for i, (name, (ids, values)) in enumerate(request.signals.items())
        }
        names = {*self.state.signals, *signals}
        if len(names) > MOST_SIGNALS:
            raise ServiceError(
                Reason.QUOTA_EXCEEDED,
                f"signals: expected at most {MOST_SIGNALS} names per run; this would make {len(names)}",
                metadata={"limit": "signals", "value": str(MOST_SIGNALS)},
            )
        facts = TrainingFacts(
            request.effective_sample_size, request.max_importance_weight, request.clip_fraction, request.updates
        )
        event = TrainingEvent(self.state.next_seq, request.step, facts, signals)
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            self.answered.remember(tx, request.key, TrainingResult(), request.step)
        self.state.apply(event)
        return TrainingResult()

    # --- going back -----------------------------------------------------------------------------------------------

    def rewind(self, step: int, key: RequestKey) -> RewindResult:
        """Drop everything of step >= ``step``, so that the run goes on as if it had never got there."""
        self.reconcile()
        done = self.answered.find(key, RewindResult)
        if done is not None:
            return done
        expected = self.replay.preview_rewind(step)
        epoch = self.row.rewind_epoch + 1
        with self.store.transaction() as tx:
            dropped = tx.drop_events(self.row.id, step)
            tx.update_run(self.row.id, rewind_epoch=epoch, rewind_step=step)
            result = RewindResult(
                dropped.get(SELECTION, 0), dropped.get(REPORT, 0), expected.dropped, expected.restored
            )
            self.answered.remember(tx, key, result, None)
        self.row = dataclasses.replace(self.row, rewind_epoch=epoch, rewind_step=step)
        self._snapshots.rewound(epoch, step)
        self._behind = True
        self.catch_up()
        try:
            self.reconcile()
        except StorageFailed:
            # The rewind is durable and will be answered alike; the buffer follows before it is next used.
            _log.exception("replay of run %s could not be rewound yet", self.row.run_id)
        return result

    def catch_up(self) -> None:
        """Fold the log anew if that failed after a rewind."""
        if self._behind:
            self._refold()
            self._behind = False

    def reconcile(self) -> None:
        """Let the replay store catch up with a rewind that a crash or a full disk cut short between the two stores."""
        if self.replay.epoch < self.row.rewind_epoch:
            self.replay.rewind(self.row.rewind_step, self.row.rewind_epoch)
            self._ledger.settle(self.row.id, self.usage())

    # --- shared ---------------------------------------------------------------------------------------------------

    def indices(self, prompt_ids: Sequence[str], path: str, suffix: str = "") -> np.ndarray:
        """Indices (n,) int64 of prompts, or INVALID_ARGUMENT with the first ten unknown ids."""
        index = self.pool.index
        found = np.array([index.get(prompt_id, -1) for prompt_id in prompt_ids], dtype=np.int64)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            listed = ", ".join(repr(prompt_ids[i]) for i in unknown[:_LISTED])
            violations = [
                FieldViolation(f"{path}[{i}]{suffix}", f"unknown prompt {prompt_ids[i]!r}") for i in unknown[:_LISTED]
            ]
            raise ServiceError(
                Reason.UNKNOWN_PROMPT,
                f"{path}: {len(unknown)} unknown prompt(s) in run {self.row.run_id!r}: {listed}",
                violations=violations,
                metadata={"unknown": str(len(unknown))},
            )
        return found

    def features(self) -> PoolFeatures:
        """Columns of the pool for the estimators, signals of the current policy included."""
        space, width = self.row.space, self.row.width
        try:
            content = self.pool.features((lambda rows: self._gather(space, width, rows)) if space else None)
        except EmbeddingDamagedError as error:
            raise self._embeddings_damaged(error) from error
        # One number that changes with either part: what is derived from the columns is cached by it.
        version = (content.version << 32) + self.state.signals_version
        return dataclasses.replace(content, version=version, signals=dict(self.state.signals))

    def _fresh_state(self) -> RunState:
        return RunState(self.config, estimator_of(self.config, self.adapter.adapter))

    def _refold(self) -> None:
        self.keeper.forget()
        state = self._snapshots.newest(self._fresh_state, self.row.rewind_epoch)
        state.grow(len(self.pool))
        for row in self.store.events(self.row.id, after_seq=state.next_seq - 1):
            try:
                event = decode(row)
                check_prompts(event, len(self.pool))
            except ValueError as error:
                raise ServiceError(
                    Reason.STORAGE_FAILED, f"run {self.row.run_id!r} cannot be loaded: {error}"
                ) from error
            state.apply(event)
        self.state = state

    def _check_space(self, space: str, width: int) -> None:
        if space and self.row.space and (space, width) != (self.row.space, self.row.width):
            raise ServiceError(
                Reason.EMBEDDING_MISMATCH,
                f"prompts[].embedding: the run's embeddings are {self.row.width} wide in space {self.row.space!r}; "
                f"got {width} in {space!r}",
                violations=[FieldViolation("prompts[].embedding", f"expected width {self.row.width}; got {width}")],
            )
        if space:
            self.adapter.check_width(width)

    def _embeddings_damaged(self, error: EmbeddingDamagedError) -> ServiceError:
        ids = [self.pool.prompt_ids[i] for i in np.flatnonzero(np.isin(self.pool.embedding_row, error.rows)).tolist()]
        listed = ", ".join(repr(prompt_id) for prompt_id in ids[:_LISTED])
        return ServiceError(
            Reason.EMBEDDINGS_DAMAGED,
            f"run {self.row.run_id!r} cannot be predicted: the embeddings of {len(ids)} prompt(s) in {error.directory} "
            f"were damaged on disk: {listed}; register them again as they were",
            metadata={"damaged": str(len(ids))},
        )

    def _content_differs(self, changed: Sequence[tuple[int, PromptRecord]]) -> ServiceError:
        ids = [record.prompt_id for _, record in changed]
        listed = ", ".join(repr(prompt_id) for prompt_id in ids[:_LISTED])
        return ServiceError(
            Reason.PROMPT_CONTENT_DIFFERS,
            f"prompts: {len(ids)} registered prompt(s) have other content: {listed}; set replace to change them",
            violations=[FieldViolation("prompts", f"other content for {prompt_id!r}") for prompt_id in ids[:_LISTED]],
            metadata={"differing": str(len(ids))},
        )

    def _selection_differs(self, request: SelectRequest, event: SelectionEvent) -> ServiceError:
        return ServiceError(
            Reason.SELECTION_DIFFERS,
            f"step {request.step} round {request.round} was selected before with other arguments: batch_size "
            f"{event.facts.batch_size}, now {request.batch_size}, or another fresh_only or exclude_prompt_ids; "
            "rewind first when training starts over, use the next round for a further selection within the step",
            violations=[FieldViolation("round", "already answered for other arguments")],
        )
