"""One training run: its pool, its state, its replay buffer, and the requests that change them.

Calls on one run are serialised by the caller. Every change is written before it is folded into memory, so what was
answered is durable and a failed write changes nothing. Memory is a fold of what is stored (``selector.state``):
``load`` rebuilds it at start-up and after a rewind.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from selector.config import INFORMATIVE_TOLERANCE, RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.registry import make_estimator
from selector.errors import FieldViolation, ServiceError, invalid, invalid_fields
from selector.estimates import Answer, EstimateKeeper
from selector.events import (
    REPORT,
    SELECTION,
    TRAIN,
    ReplacementEvent,
    ReportEvent,
    ReportFacts,
    SelectionEvent,
    SelectionFacts,
    TrainingEvent,
    TrainingFacts,
    decode,
)
from selector.open_selections import NEVER
from selector.outcomes import MappedOutcomes, map_outcomes
from selector.pool import INELIGIBLE, RETIRED, Pool, PromptRecord
from selector.replay.group import GroupRules
from selector.replay.plans import SampleRequest
from selector.replay.replay_run import ReplayRun
from selector.requests import (
    Batch,
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
from selector.selection.choose import Candidates, Choice, Window, choose_reference, choose_train
from selector.state import RunState
from selector.storage.runs import AnsweredRequest, RunRow, RunStore, Transaction
from selector.v1.reasons import Reason

_Result = TypeVar("_Result", RegisterResult, RetireResult, ReportResult, TrainingResult, RewindResult)

# ShortfallReason of the protocol.
POOL_TOO_SMALL, EXCLUDED, LEASED, COOLING_DOWN = 1, 2, 3, 4

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
    ) -> None:
        """
        Args:
            adapters: trained adapters by name.
            gather: (embedding space, width, rows (n,)) -> (n, width) float32.
        """
        self.row = row
        self.config = config
        self.store = store
        self.replay = replay
        self.keeper = keeper
        self._adapters = adapters
        self._gather = gather
        self.group_rules = GroupRules(
            config.outcome_range, config.clip_outcomes, config.on_nan == "DROP_ROLLOUT", config.sampling
        )
        # Since the server started, by reason; nothing of a refused group is stored.
        self.refused_groups: Counter[str] = Counter()
        self.pool = Pool()
        self.state = self._fresh_state()

    def load(self) -> None:
        """Rebuild memory from what is stored."""
        self.pool = Pool()
        self.pool.put(self.store.prompts(self.row.id))
        self._refold()

    # --- pool -----------------------------------------------------------------------------------------------------

    def register(
        self, records: Sequence[PromptRecord], space: str, width: int, replace: bool, key: RequestKey
    ) -> RegisterResult:
        """Add prompts. The records of one call have distinct ids.

        Args:
            space: embedding space the records' rows are in, empty when none has an embedding.
            width: of that space.
        """
        done = self._answered(key, RegisterResult)
        if done is not None:
            return done
        self._check_space(space, width)
        new, changed, unchanged = [], [], 0
        for record in records:
            at = self.pool.index.get(record.prompt_id)
            if at is None:
                new.append(record)
            elif self.pool.content_hashes[at] == record.content_hash:
                unchanged += 1
            else:
                changed.append((at, record))
        if changed and not replace:
            raise self._content_differs(changed)
        placed = [*((len(self.pool) + i, r) for i, r in enumerate(new)), *changed]
        refused = [r.prompt_id for _, r in placed if r.status == INELIGIBLE]
        result = RegisterResult(len(new), unchanged, len(changed), len(refused), refused[:_LISTED])
        event = None
        if changed:
            event = ReplacementEvent(self.state.next_seq, np.array([at for at, _ in changed], dtype=np.int32))
        with self.store.transaction() as tx:
            tx.put_prompts(self.row.id, placed)
            if event is not None:
                tx.append_event(self.row.id, event.to_row())
            if space and not self.row.space:
                tx.update_run(self.row.id, space=space, width=width)
            self._remember(tx, key, result, None)
        if space and not self.row.space:
            self.row = dataclasses.replace(self.row, space=space, width=width)
        self.pool.put([record for _, record in placed])
        self.state.grow(len(self.pool))
        if event is not None:
            self.state.apply(event)
        return result

    def retire(self, prompt_ids: Sequence[str], key: RequestKey) -> RetireResult:
        """Take prompts out of selection."""
        done = self._answered(key, RetireResult)
        if done is not None:
            return done
        prompts = np.unique(self.indices(prompt_ids, "prompt_ids"))
        fresh = prompts[self.pool.status[prompts] != RETIRED]
        result = RetireResult(len(fresh), len(prompts) - len(fresh))
        with self.store.transaction() as tx:
            tx.set_prompt_status(self.row.id, fresh.tolist(), RETIRED)
            self._remember(tx, key, result, None)
        self.pool.retire(fresh)
        return result

    # --- selection ------------------------------------------------------------------------------------------------

    def select(self, request: SelectRequest, budget_s: float | None) -> Batch:
        """Select a batch, or return the one already selected for the same (step, purpose, round).

        Args:
            budget_s: seconds the estimate may take before the last one is used, None = any.
        """
        self.reconcile()
        row = self.store.find_selection(self.row.id, request.step, request.purpose, request.round)
        if row is not None:
            event = SelectionEvent.from_row(row)
            if event.fingerprint != request.key.fingerprint:
                raise self._selection_differs(request, event)
            return self._batch(event, request)
        self._answered_differently(request.key)
        event = self._select(request, budget_s)
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            if request.key.request_id:
                tx.remember_request(
                    self.row.id,
                    AnsweredRequest(
                        request.key.request_id, request.key.method, request.key.fingerprint, b"", request.step
                    ),
                )
        self.state.apply(event)
        return self._batch(event, request)

    def _select(self, request: SelectRequest, budget_s: float | None) -> SelectionEvent:
        config, state, step = self.config, self.state, request.step
        excluded = np.zeros(len(self.pool), dtype=bool)
        excluded[self.indices(request.exclude_prompt_ids, "exclude_prompt_ids")] = True
        leased = state.leased(step)
        taken = state.last_selected == step
        active = self.pool.active()
        eligible = active & ~excluded & ~leased

        answer = self.estimate(step, budget_s)
        replay_groups = 0
        if request.purpose == TRAIN:
            eligible &= ~taken
            replay_groups = self._replay_groups(request)
            count = request.batch_size - replay_groups
            window = self._window(step)
            cooling = state.cooling(step)
            if window is not None:
                soft = state.last_selected >= window.start
                cooling = cooling | soft
            candidates = Candidates(eligible, cooling, state.last_selected)
            choice = choose_train(config, answer.estimate, candidates, count, step, request.round, window)
        else:
            count = request.batch_size or config.reference.size
            choice = choose_reference(config, eligible, count, step, request.round)
        shortfall = count - len(choice.prompt)
        reason = 0
        if shortfall:
            held = {
                EXCLUDED: active & excluded,
                LEASED: active & ~excluded & (leased | taken),
                COOLING_DOWN: eligible & state.cooling(step),
            }
            reason = _shortfall_reason(count, int(active.sum()), {name: int(m.sum()) for name, m in held.items()})
        return self._selection_event(request, choice, answer, count + replay_groups, replay_groups, shortfall, reason)

    def _selection_event(
        self,
        request: SelectRequest,
        choice: Choice,
        answer: Answer,
        batch_size: int,
        replay_groups: int,
        shortfall: int,
        reason: int,
    ) -> SelectionEvent:
        estimate, at = answer.estimate, choice.prompt
        facts = SelectionFacts(
            batch_size=batch_size,
            replay_groups=replay_groups,
            shortfall=shortfall,
            shortfall_reason=reason,
            reference_due=self.state.reference_due(request.step + 1),
            estimate_step=estimate.step,
            degraded=answer.degraded,
            pool_size=len(self.pool),
        )
        return SelectionEvent(
            seq=self.state.next_seq,
            step=request.step,
            purpose=request.purpose,
            round=request.round,
            fingerprint=request.key.fingerprint,
            prompt=at.astype(np.int32),
            rollouts=np.full(len(at), self.config.group_size, dtype=np.int32),
            difficulty=estimate.difficulty[at],
            standard_error=estimate.standard_error[at],
            population=estimate.population[at],
            probability=choice.probability,
            arm=choice.arm,
            facts=facts,
        )

    def _replay_groups(self, request: SelectRequest) -> int:
        if request.fresh_only or request.round > 0:
            return 0
        # 1e-9 forgives a product such as 0.9 x 10 that comes out a hair below the integer.
        wanted = int((1.0 - self.config.replay.fresh_fraction) * request.batch_size + 1e-9)
        if wanted == 0 or self.replay.eligible_count(SampleRequest(request.step, wanted)) < wanted:
            return 0
        return wanted

    def _window(self, step: int) -> Window | None:
        """The paper's selection window: ``every_steps`` steps from a reference pass, or from where one is overdue."""
        start = self.state.last_reference_step
        if self.config.reference.mode != "DEDICATED" or start == NEVER:
            return None
        every = self.config.reference.every_steps
        into = (step - start) % every
        return Window(max(step - into, 0), every - into)

    def _batch(self, event: SelectionEvent, request: SelectRequest) -> Batch:
        index, count = request.shard_index, request.shard_count
        part = slice(index, None, count)
        facts = event.facts
        return Batch(
            prompt_ids=[self.pool.prompt_ids[i] for i in event.prompt[part]],
            difficulty=event.difficulty[part],
            standard_error=event.standard_error[part],
            probability=event.probability[part],
            arm=event.arm[part],
            rollouts=event.rollouts[part],
            replay_groups=_share(facts.replay_groups, index, count),
            shortfall=_share(facts.shortfall, index, count),
            shortfall_reason=facts.shortfall_reason if _share(facts.shortfall, index, count) else 0,
            reference_due=facts.reference_due,
            estimate_step=facts.estimate_step,
            degraded=facts.degraded,
        )

    def estimate(self, step: int, budget_s: float | None = None) -> Answer:
        """The estimate of the whole pool for ``step``; see EstimateKeeper.current."""
        return self.keeper.current(self.state, self.features(), step, budget_s)

    # --- reports --------------------------------------------------------------------------------------------------

    def report(self, request: ReportRequest) -> ReportResult:
        """Apply outcomes, all or nothing."""
        done = self._answered(request.key, ReportResult)
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
            self._remember(tx, request.key, result, request.step)
        self.state.apply(event)
        return result

    def report_training(self, request: TrainingRequest) -> TrainingResult:
        """Record what the trainer saw."""
        done = self._answered(request.key, TrainingResult)
        if done is not None:
            return TrainingResult(already_applied=True)
        signals = {
            name: (self.indices(ids, f"signals[{i}].prompt_ids").astype(np.int32), values)
            for i, (name, (ids, values)) in enumerate(request.signals.items())
        }
        facts = TrainingFacts(
            request.effective_sample_size, request.max_importance_weight, request.clip_fraction, request.updates
        )
        event = TrainingEvent(self.state.next_seq, request.step, facts, signals)
        with self.store.transaction() as tx:
            tx.append_event(self.row.id, event.to_row())
            self._remember(tx, request.key, TrainingResult(), request.step)
        self.state.apply(event)
        return TrainingResult()

    # --- going back -----------------------------------------------------------------------------------------------

    def rewind(self, step: int, key: RequestKey) -> RewindResult:
        """Drop everything of step >= ``step``, so that the run goes on as if it had never got there."""
        self.reconcile()
        done = self._answered(key, RewindResult)
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
            self._remember(tx, key, result, None)
        self.row = dataclasses.replace(self.row, rewind_epoch=epoch, rewind_step=step)
        self._refold()
        self.reconcile()
        return result

    def reconcile(self) -> None:
        """Let the replay store catch up with a rewind that a crash or a full disk cut short between the two stores."""
        if self.replay.epoch < self.row.rewind_epoch:
            self.replay.rewind(self.row.rewind_step, self.row.rewind_epoch)

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
        content = self.pool.features((lambda rows: self._gather(space, width, rows)) if space else None)
        # One number that changes with either part: what is derived from the columns is cached by it.
        version = (content.version << 32) + self.state.signals_version
        return dataclasses.replace(content, version=version, signals=dict(self.state.signals))

    def _fresh_state(self) -> RunState:
        estimator = self.config.estimator
        return RunState(
            self.config,
            make_estimator(
                estimator.name,
                adapter=self._adapters[estimator.adapter] if estimator.adapter else None,
                reference_mode=self.config.reference.mode,
                reference_size=self.config.reference.size,
                tracker_decay=estimator.tracker_decay,
                embedding_components=estimator.embedding_components,
            ),
        )

    def _refold(self) -> None:
        self.keeper.forget()
        state = self._fresh_state()
        state.grow(len(self.pool))
        for row in self.store.events(self.row.id):
            state.apply(decode(row))
        self.state = state

    def _check_space(self, space: str, width: int) -> None:
        if space and self.row.space and (space, width) != (self.row.space, self.row.width):
            raise ServiceError(
                Reason.EMBEDDING_MISMATCH,
                f"prompts[].embedding: the run's embeddings are {self.row.width} wide in space {self.row.space!r}; "
                f"got {width} in {space!r}",
                violations=[FieldViolation("prompts[].embedding", f"expected width {self.row.width}; got {width}")],
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
            f"step {request.step} round {request.round} was selected before with other arguments (batch_size "
            f"{event.facts.batch_size}, now {request.batch_size}); use the next round for a further selection",
            violations=[FieldViolation("round", "already answered for other arguments")],
        )

    def _answered(self, key: RequestKey, result_type: type[_Result]) -> _Result | None:
        if not key.request_id:
            return None
        answered = self.store.find_request(self.row.id, key.request_id)
        if answered is None:
            return None
        if (answered.method, answered.fingerprint) != (key.method, key.fingerprint):
            raise self._request_id_reused(key, answered.method)
        return result_type(**json.loads(answered.response))

    def _answered_differently(self, key: RequestKey) -> None:
        answered = self.store.find_request(self.row.id, key.request_id) if key.request_id else None
        if answered is not None:
            raise self._request_id_reused(key, answered.method)

    @staticmethod
    def _request_id_reused(key: RequestKey, method: str) -> ServiceError:
        return invalid(
            "request_id", f"{key.request_id!r} was used before for a different {method}", Reason.REQUEST_ID_REUSED
        )

    def _remember(self, tx: Transaction, key: RequestKey, result: object, step: int | None) -> None:
        if key.request_id:
            response = json.dumps(dataclasses.asdict(result)).encode()  # type: ignore[call-overload]
            tx.remember_request(
                self.row.id, AnsweredRequest(key.request_id, key.method, key.fingerprint, response, step)
            )


def _share(total: int, index: int, count: int) -> int:
    return total // count + (index < total % count)


def _shortfall_reason(wanted: int, active: int, held: Mapping[int, int]) -> int:
    """What holds most of the missing prompts back."""
    if active < wanted or not any(held.values()):
        return POOL_TOO_SMALL
    return max(held, key=lambda name: held[name])
