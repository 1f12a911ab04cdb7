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
from concurrent.futures import Future

import numpy as np

from selector.ahead import Ahead, Chosen
from selector.answered import AnsweredRequests
from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Estimate, PoolFeatures
from selector.difficulty.registry import estimator_of
from selector.embedding.errors import EmbeddingDamagedError
from selector.errors import ServiceError
from selector.estimates import Answer, EstimateKeeper
from selector.events import (
    REPORT,
    SELECTION,
    Event,
    PriorsEvent,
    ReplacementEvent,
    TrainingEvent,
    TrainingFacts,
    check_prompts,
    decode,
)
from selector.imported_priors import AS_REGISTERED
from selector.kept_surface import KeptSurface
from selector.neighbours.search import CPU
from selector.neighbours.twins import TwinIndex
from selector.pool import INELIGIBLE, RETIRED, Pool, PromptRecord
from selector.predictor.predictor import References
from selector.quotas import Ledger, Quotas, Usage
from selector.refusals import (
    content_differs,
    embedding_mismatch,
    embeddings_damaged,
    predictor_lost,
    unknown_prompts,
)
from selector.registration import Registration
from selector.replay.answers import Sample
from selector.replay.errors import StorageFailed
from selector.replay.group import GroupRules
from selector.replay.plans import SampleRequest
from selector.replay.replay_run import ReplayRun
from selector.reports import new_report
from selector.requests import (
    ImportRequest,
    ImportResult,
    PromptSpec,
    RegisterResult,
    ReportRequest,
    ReportResult,
    RequestKey,
    RetireResult,
    RewindResult,
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
# References that an explanation of a prompt lists.
_STRONGEST = 10

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
        surface: KeptSurface,
        ledger: Ledger | None = None,
        neighbours_device: str = CPU,
    ) -> None:
        """
        Args:
            adapters: trained adapters by name.
            gather: (embedding space, width, rows (n,)) -> (n, width) float32.
            ledger: what the run may keep; None = as much as it likes.
            neighbours_device: where nearest neighbours are searched for, cpu or cuda.
        """
        self.row = row
        self.config = config
        self.store = store
        self.replay = replay
        self.keeper = keeper
        self.answered = AnsweredRequests(store, row.id, replay.pushed)
        self.adapter = RunAdapter(config.estimator.adapter, adapters.get(config.estimator.adapter))
        self._gather = gather
        self._snapshots = snapshots
        self._surface = surface
        self._ledger = ledger or Ledger(Quotas())
        self.group_rules = GroupRules(
            config.outcome_range, config.clip_outcomes, config.on_nan == "DROP_ROLLOUT", config.sampling
        )
        # Since the server started, by reason; nothing of a refused group is stored.
        self.refused_groups: Counter[str] = Counter()
        self._neighbours_device = neighbours_device
        self.pool = Pool()
        self._twins = TwinIndex(config.twin_similarity)
        self.state = self._fresh_state()
        # The batch that is held for the next step, and the newest that was handed out; see ``selector.selecting``.
        self.ahead = Ahead()
        self.latest: Chosen | None = None
        # Of what a selection depends on, but for the pool's content, which has a version; see ``selector.ahead``.
        self.changes = 0
        # Whether the log has been rewound, and the state not yet.
        self._behind = False

    def load(self) -> None:
        """Rebuild memory from what is stored."""
        self.pool = Pool()
        self._twins = TwinIndex(self.config.twin_similarity)
        self.pool.load(self.store.prompt_pages(self.row.id))
        self._surface.describe(self.pool)
        self._refold()

    def usage(self) -> Usage:
        """What the run keeps."""
        groups, replay_bytes = self.replay.kept()
        return Usage(len(self.pool), self.pool.content_bytes, groups, replay_bytes)

    def close(self) -> None:
        """The server stops: what took long to fold is kept for the next start."""
        self._snapshots.consider(self.state, self.row.rewind_epoch, len(self.pool), stopping=True)
        self._surface.save(self.pool)

    # --- pool -----------------------------------------------------------------------------------------------------

    def check_room(self, specs: Sequence[PromptSpec]) -> None:
        """Refuse prompts that cannot fit, before anything is made of them; ``register`` decides.

        Raises:
            ServiceError: QUOTA_EXCEEDED.
        """
        new = {spec.prompt_id for spec in specs if spec.prompt_id not in self.pool.index}
        self._ledger.check(self.row.id, prompts=len(self.pool) + len(new))

    def register(self, prepared: Registration, replace: bool, key: RequestKey) -> RegisterResult:
        """Add prompts.

        What is known about a prompt belongs to its question, the text and the embedding: it is forgotten when they
        change, and stays when only the domain, the token count or the prior does.

        Raises:
            ServiceError: QUOTA_EXCEEDED, PROMPT_CONTENT_DIFFERS, EMBEDDING_MISMATCH.
        """
        done = self.answered.find(key, RegisterResult)
        if done is not None:
            return done
        space, width = prepared.space, prepared.width
        self._check_space(space, width)
        new: list[PromptRecord] = []
        changed: list[tuple[int, PromptRecord]] = []
        # Of these, other questions; and prompts whose registered prior takes the place of an imported one.
        questions: list[int] = []
        outdated: list[int] = []
        # The same content, but an embedding where there was none, or back from retirement.
        refreshed: list[tuple[int, PromptRecord]] = []
        unchanged = restored = 0
        for record, embedding in zip(prepared.records, prepared.embeddings, strict=True):
            at = self.pool.index.get(record.prompt_id)
            if at is None:
                new.append(record)
            elif self.pool.content_hashes[at] != record.content_hash:
                changed.append((at, record))
                if not self.pool.same_question(at, record.text, embedding):
                    questions.append(at)
                elif self._prior_differs(at, record):
                    outdated.append(at)
            elif replace and self.pool.status[at] == RETIRED:
                refreshed.append((at, record))
                restored += 1
            else:
                unchanged += 1
                # Where there was none, or a damaged one that could not be repaired in its place.
                if record.embedding_row >= 0 and self.pool.embedding_row[at] != record.embedding_row:
                    refreshed.append((at, record._replace(status=int(self.pool.status[at]))))
        if changed and not replace:
            raise content_differs([record.prompt_id for _, record in changed])
        placed = [*((len(self.pool) + i, r) for i, r in enumerate(new)), *changed, *refreshed]
        placed = self._with_twins(placed, space or self.row.space, width or self.row.width)
        refused = [r.prompt_id for _, r in placed if r.status == INELIGIBLE]
        result = RegisterResult(len(new), unchanged, len(changed) + restored, len(refused), refused[:_LISTED])
        events: list[Event] = []
        if questions:
            events.append(ReplacementEvent(self.state.next_seq, np.array(questions, dtype=np.int32)))
        if outdated:
            prompts, count = np.array(outdated, dtype=np.int32), len(outdated)
            as_registered = np.full(count, AS_REGISTERED, dtype=np.int32)
            seq = self.state.next_seq + len(events)
            events.append(PriorsEvent(seq, None, prompts, np.zeros(count), as_registered))
        room = self._ledger.change(
            self.row.id,
            prompts=len(self.pool) + len(new),
            prompt_bytes=self.pool.bytes_with(new, [*changed, *refreshed]),
        )
        with room, self.store.transaction() as tx:
            tx.put_prompts(self.row.id, placed)
            for event in events:
                tx.append_event(self.row.id, event.to_row())
            if space and not self.row.space:
                tx.update_run(self.row.id, space=space, width=width)
            self.answered.remember(tx, key, result, None)
        if space and not self.row.space:
            self.row = dataclasses.replace(self.row, space=space, width=width)
        self.pool.put([record for _, record in placed])
        self.state.grow(len(self.pool))
        for event in events:
            self.apply(event)
        return result

    def _with_twins(
        self, placed: Sequence[tuple[int, PromptRecord]], space: str, width: int
    ) -> list[tuple[int, PromptRecord]]:
        """The records with the twin group that each belongs to."""
        gather = (lambda rows: self._gather(space, width, rows)) if space else None
        groups = self._twins.groups(self.pool, placed, gather)
        return [
            (at, record if group == 0 else record._replace(twin_group=group))
            for (at, record), group in zip(placed, groups, strict=True)
        ]

    def _prior_differs(self, at: int, record: PromptRecord) -> bool:
        """Whether a prompt that has an imported prior comes with another one than it was registered with."""
        if self.state.priors.trials[at] == AS_REGISTERED:
            return False
        rate, trials = self.pool.prior(at)
        return trials != record.prior_trials or (trials > 0 and rate != record.prior_rate)

    def import_priors(self, request: ImportRequest) -> ImportResult:
        """Give registered prompts other priors; ids that are not registered are counted and left out."""
        done = self.answered.find(request.key, ImportResult)
        if done is not None:
            return done
        found = np.array([self.pool.index.get(prompt_id, -1) for prompt_id in request.prompt_ids], dtype=np.int32)
        known = found >= 0
        unknown = np.flatnonzero(~known)
        result = ImportResult(
            int(known.sum()), len(unknown), [request.prompt_ids[i] for i in unknown[:_LISTED].tolist()]
        )
        event = None
        if known.any():
            event = PriorsEvent(
                self.state.next_seq, request.step, found[known], request.rates[known], request.trials[known]
            )
        with self.store.transaction() as tx:
            if event is not None:
                tx.append_event(self.row.id, event.to_row())
            self.answered.remember(tx, request.key, result, request.step)
        if event is not None:
            self.apply(event)
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
        self.changes += 1
        return result

    # --- estimates ----------------------------------------------------------------------------------------------------

    def estimate_awaits(self, step: int) -> Future[Estimate] | None:
        """What ``estimate`` would wait for next, computed in the background from now on; None = nothing.

        Raises:
            ServiceError: as ``estimate``.
        """
        self.adapter.check_usable(self.row.run_id, self.row.space, self.row.width)
        return self.keeper.computing(self.state, self.features(), step)

    def estimate(self, step: int, budget_s: float | None = None) -> Answer:
        """The estimate of the whole pool for ``step``; see EstimateKeeper.current.

        Raises:
            ServiceError: UNKNOWN_ADAPTER or ADAPTER_MISMATCH when the server has no adapter that the run can use.
        """
        self.adapter.check_usable(self.row.run_id, self.row.space, self.row.width)
        return self.keeper.current(self.state, self.features(), step, budget_s)

    def undegraded_estimate(self, step: int) -> Estimate:
        """The same with everything folded so far, once ``estimate_awaits`` has nothing to wait for.

        Raises:
            ServiceError: as ``estimate``; STARTING when what computes estimates was lost too often.
        """
        answer = self.estimate(step, 0.0)
        if answer.degraded:
            raise predictor_lost()
        return answer.estimate

    def references(self, prompt: int) -> Future[References]:
        """The strongest references of a prompt, see ``Estimator.references``; may fail with ``PredictorLost``."""
        step = max(self.state.last_step, 0)
        return self.keeper.predictor.references(self.state, self.features(), step, prompt, _STRONGEST)

    def sample(self, request: SampleRequest, part: tuple[int, int], key: RequestKey) -> Sample:
        """The replay sample of a step; see ``ReplayRun.sample``."""
        self.reconcile()
        known = self.answered.check(key)
        sample = self.replay.sample(request, part)
        # An empty answer is not recorded: the step is free for another one.
        if key.request_id and not known and self.replay.answered(request.step):
            with self.store.transaction() as tx:
                self.answered.remember(tx, key, None, request.step)
        return sample

    # --- reports --------------------------------------------------------------------------------------------------

    def report(self, request: ReportRequest) -> ReportResult:
        """Apply outcomes, all or nothing."""
        done = self.answered.find(request.key, ReportResult)
        if done is not None:
            return dataclasses.replace(done, already_applied=True)
        prompts = self.indices(request.prompt_ids, "outcomes", ".prompt_id")
        event, result = new_report(self.config, self.state, request, prompts)
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            self.answered.remember(tx, request.key, result, request.step)
        self.apply(event)
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
        self.apply(event)
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
            raise unknown_prompts(self.row.run_id, prompt_ids, unknown.tolist(), path, suffix)
        return found

    def features(self) -> PoolFeatures:
        """Columns of the pool for the estimators, signals of the current policy included."""
        space, width = self.row.space, self.row.width
        try:
            content = self.pool.features((lambda rows: self._gather(space, width, rows)) if space else None)
        except EmbeddingDamagedError as error:
            damaged = np.flatnonzero(np.isin(self.pool.embedding_row, error.rows))
            ids = [self.pool.prompt_ids[i] for i in damaged.tolist()]
            raise embeddings_damaged(self.row.run_id, ids, error.directory) from error
        # One number that changes with either part: what is derived from the columns is cached by it.
        version = (content.version << 32) + self.state.signals_version + self.state.priors.version
        features = dataclasses.replace(content, version=version, signals=dict(self.state.signals))
        return self.state.priors.over(features)

    def apply(self, event: Event) -> None:
        """Fold an event that has been written."""
        self.state.apply(event)
        # What trainers tell of their updates is only shown.
        self.changes += not isinstance(event, TrainingEvent) or bool(event.signals)

    def _fresh_state(self) -> RunState:
        return RunState(self.config, estimator_of(self.config, self.adapter.adapter, self._neighbours_device))

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
            raise embedding_mismatch(self.row.space, self.row.width, space, width)
        if space:
            self.adapter.check_width(width)
