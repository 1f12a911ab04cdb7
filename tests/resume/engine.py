"""The reference: runs of the domain over stores of their own, called directly, never restarted and never rewound.

A run is what a list of operations makes of it, applied in order. ``force`` puts in what was once answered instead of
answering anew; ``model`` says when that is called for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selector.embedding.embedder import Embedder
from selector.embedding.store import EmbeddingStore
from selector.errors import ServiceError
from selector.events import EventRow, decode
from selector.explain import explain
from selector.history import prompt_history
from selector.predictor.predictor import LocalPredictor
from selector.registration import prepare
from selector.replay.group import CheckedGroup, validate_group
from selector.replay.history import SampleEvent
from selector.replay.plans import SampleOrder, SampleRequest
from selector.replay.store import ReplayStore
from selector.requests import RequestKey
from selector.run import Run
from selector.run_metrics import run_metrics
from selector.runs import Runs
from selector.selecting import select
from selector.service import checks
from selector.service.answers import batch_message, explanation_message, outcome_frames, selection_frames
from selector.service.config_messages import explicit_config
from selector.service.group_messages import group_columns
from selector.service.prompt_messages import import_request, prompt_spec
from selector.service.quality_messages import quality_message
from selector.service.run_messages import run_message
from selector.service.step_requests import report_request, select_request, training_request
from selector.storage.database import Database
from selector.storage.runs import AnsweredRequest, RunStore
from selector.storage.snapshot_files import SnapshotFiles
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from tests.resume.operations import Answer, Operation, answered, answered_stream

_FOR_EVER = 2**40


class Engine:
    """Runs that are told apart by number; see the module docstring."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self._database = Database(path / "state.db")
        self.store = RunStore(self._database)
        self.replay = ReplayStore(path / "replay", 1 << 30)
        embeddings = EmbeddingStore(path / "embeddings")
        self._embedder = Embedder(None, embeddings)
        self._predictor = LocalPredictor()
        self._runs = Runs(
            store=self.store,
            replay=self.replay,
            embeddings=embeddings,
            snapshots=SnapshotFiles(path / "snapshots"),
            adapters={},
            rewind_window_steps=_FOR_EVER,
            snapshot_groups=_FOR_EVER,
            predictor=self._predictor,
            monotonic=lambda: 0.0,
            now=lambda: 0.0,
        )
        self._made = 0

    def close(self) -> None:
        self._predictor.close()
        self.replay.close()
        self._database.close()

    def create(self, config: run_pb2.RunConfig) -> Run:
        """A run without prompts."""
        self._made += 1
        run, _ = self._runs.create(f"reference-{self._made}", explicit_config(config), RequestKey("", "CreateRun", b""))
        return run

    def delete(self, run: Run) -> None:
        self._runs.delete(run.row.run_id, RequestKey("", "DeleteRun", b""))

    def apply(self, run: Run, operation: Operation) -> Answer:
        """Answer a call on the run; whatever its message says the run is called."""
        answer: Callable[[Run, Operation], Answer] = getattr(self, f"_{operation.rpc}")
        try:
            return answer(run, operation)
        except ServiceError as error:
            return Answer(error.reason.name)

    # --- putting in what was answered -----------------------------------------------------------------------------

    def remembered(self, run: Run, request_id: str) -> AnsweredRequest | None:
        """The request that was applied under this id."""
        return self.store.find_request(run.row.id, request_id) if request_id else None

    def force_event(self, run: Run, columns: EventRow, request: AnsweredRequest | None) -> None:
        """Append an event as it was recorded, together with its request."""
        row = EventRow(**{**columns.__dict__, "seq": run.state.next_seq})
        with self.store.transaction() as tx:
            tx.append_event(run.row.id, row)
            if request is not None:
                tx.remember_request(run.row.id, request)
        run.state.apply(decode(row))

    def force_request(self, run: Run, operation: Operation, result: Any) -> None:
        """Remember a call that belongs to no step and leaves nothing but its answer."""
        key = checks.request_key(operation.request, operation.rpc)
        with self.store.transaction() as tx:
            run.answered.remember(tx, key, result, None)

    def force_sample(self, run: Run, event: SampleEvent) -> None:
        """Append a sample as it was answered."""
        with self.replay.write(run.row.id) as writer:
            writer.sample(event)
        run.replay.buffer.refold_sample(np.asarray(event.picks, dtype=np.int64), event.step, event.position)

    # --- one method for each RPC ----------------------------------------------------------------------------------

    def _RegisterPrompts(self, run: Run, operation: Operation) -> Answer:
        first = operation.request
        prompts = [prompt for message in operation.messages for prompt in message.prompts]
        head = pb.RegisterPromptsRequest(replace=first.replace, request_id=first.request_id, prompts=prompts)
        key = checks.request_key(head, operation.rpc)
        specs = [prompt_spec(prompt, i) for i, prompt in enumerate(prompts)]
        ready = prepare(run.config, run.row.space, run.pool, specs, self._embedder, lambda: False)
        result = run.register(ready, first.replace, key)
        return answered(pb.RegisterPromptsResponse(**result.__dict__))

    def _RetirePrompts(self, run: Run, operation: Operation) -> Answer:
        key = checks.request_key(operation.request, operation.rpc)
        result = run.retire(list(operation.request.prompt_ids), key)
        return answered(pb.RetirePromptsResponse(**result.__dict__))

    def _ImportPriors(self, run: Run, operation: Operation) -> Answer:
        result = run.import_priors(import_request(operation.request))
        return answered(pb.ImportPriorsResponse(**result.__dict__))

    def _SelectBatch(self, run: Run, operation: Operation) -> Answer:
        return answered(batch_message(select(run, select_request(operation.request), None)))

    def _ReportOutcomes(self, run: Run, operation: Operation) -> Answer:
        result = run.report(report_request(operation.request))
        return answered(pb.ReportOutcomesResponse(**result.__dict__))

    def _ReportTraining(self, run: Run, operation: Operation) -> Answer:
        result = run.report_training(training_request(operation.request))
        return answered(pb.ReportTrainingResponse(**result.__dict__))

    def _PushRollouts(self, run: Run, operation: Operation) -> Answer:
        first = operation.request
        groups = [group for message in operation.messages for group in message.groups]
        result = run.replay.push(checked(run, groups, first.step), first.step, first.request_id)
        return answered(
            replay_pb.PushRolloutsResponse(
                stored=result.stored,
                uninformative=result.uninformative,
                unchanged=result.unchanged,
                outdated=result.outdated + result.too_old,
                evicted=result.evicted,
                already_applied=result.already_applied,
            )
        )

    def _SampleRollouts(self, run: Run, operation: Operation) -> Answer:
        request = operation.request
        part = (request.shard.index, request.shard.count) if request.HasField("shard") else (0, 1)
        newest = request.order == replay_pb.SAMPLE_ORDER_NEWEST
        asked = SampleRequest(
            step=request.step,
            count=request.count,
            order=SampleOrder.NEWEST if newest else SampleOrder.UNIFORM,
            min_age_steps=request.min_age_steps,
            exclude=frozenset(request.exclude_prompt_ids),
            informative_only=request.informative_only,
        )
        sample = run.replay.sample(asked, part)
        share = sample.shortfall // part[1] + (part[0] < sample.shortfall % part[1])
        message = replay_pb.SampleRolloutsResponse(
            shortfall=share,
            shortfall_reason=pb.SHORTFALL_REASON_BUFFER_TOO_SMALL if share else None,
            eligible_groups=sample.eligible,
            last=True,
        )
        start = 0
        while start < len(sample.positions):
            for group in run.replay.read(sample, start, 1 << 30):
                added = message.groups.add(
                    age_steps=group.age_steps, times_sampled=group.times_sampled, probability=group.probability
                )
                added.group.ParseFromString(group.payload)
                added.group.group_id = group.group_id
                start += 1
        return answered(message)

    def _GetRun(self, run: Run, operation: Operation) -> Answer:
        return answered(pb.GetRunResponse(run=run_message(run)))

    def _PredictDifficulty(self, run: Run, operation: Operation) -> Answer:
        estimate = run.estimate(max(run.state.last_step, 0)).estimate
        return answered(
            pb.PredictDifficultyResponse(
                prompt_ids=run.pool.prompt_ids,
                predicted_difficulties=estimate.difficulty.tolist(),
                standard_errors=estimate.standard_error.tolist(),
                bases=estimate.basis.tolist(),
                own_weights=estimate.own_weight.tolist(),
                estimate_step=estimate.step,
            )
        )

    def _ExplainPrompt(self, run: Run, operation: Operation) -> Answer:
        history = prompt_history(run, operation.request.prompt_id, 100)
        run.estimate(max(run.state.last_step, 0))
        references = run.references(history.prompt)
        references.exception()
        return answered(explanation_message(explain(run, history, references)))

    def _GetSelectionQuality(self, run: Run, operation: Operation) -> Answer:
        return answered(quality_message(run_metrics(run, 0.0)))

    def _ExportRun(self, run: Run, operation: Operation) -> Answer:
        frames = outcome_frames if operation.request.kind == pb.EXPORT_KIND_OUTCOMES else selection_frames
        return answered_stream(operation.rpc, list(frames(run, 2000)))


def checked(run: Run, groups: Sequence[replay_pb.RolloutGroup], step: int) -> list[tuple[CheckedGroup, bytes]]:
    """Groups as the replay store takes them."""
    return [(validate_group(group_columns(g), run.group_rules, step), g.SerializeToString()) for g in groups]
