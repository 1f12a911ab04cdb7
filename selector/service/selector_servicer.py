"""SelectorService: each method checks form, asks the domain in the run's lane, and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

import grpc
import numpy as np

from selector.embedding.embedder import Embedder
from selector.errors import invalid
from selector.explain import Explanation, explain
from selector.history import prompt_history
from selector.predictor.predictor import References
from selector.registration import Registration, prepare
from selector.requests import Batch, RetireResult, SelectRequest
from selector.run import Run
from selector.run_metrics import run_metrics
from selector.runs import Runs
from selector.selecting import look_ahead, select, select_unless_waiting
from selector.service import checks
from selector.service.access import Access
from selector.service.allocator import give_freed_memory_back
from selector.service.answers import BatchMessages, explanation_message, outcome_frames, selection_frames
from selector.service.calls import Calls
from selector.service.config_messages import config_message, explicit_config
from selector.service.lanes import Awaited, Lanes, Later, while_wanted
from selector.service.pages import page_key, page_position, page_token
from selector.service.prompt_messages import PromptStream, import_request, prompt_frames
from selector.service.quality_messages import quality_message
from selector.service.rpc import RpcObserver, streaming, unary
from selector.service.run_messages import run_message
from selector.service.step_requests import report_request, select_request, training_request
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from selector.v1 import selector_service_pb2_grpc as pb_grpc
from selector.v1.reasons import Reason

_MOST_LISTED = 1000
_MOST_PREDICTED = 100_000
_MOST_EXPLAINED = 10_000
_EXPORT_ROWS = 2000
# Prompts whose registration leaves so much freed memory that it is worth giving back.
_MANY_REGISTERED = 50_000
_LISTING_BUDGET_S = 5.0


class SelectorServicer(pb_grpc.SelectorServiceServicer):
    """See ``proto/selector/v1/selector_service.proto``.

    Attributes:
        embedder: set once the encoder is loaded; the gate lets no call in before.
    """

    embedder: Embedder

    def __init__(
        self,
        runs: Runs,
        lanes: Lanes,
        encoding: Executor,
        access: Access,
        calls: Calls,
        observer: RpcObserver,
        monotonic: Callable[[], float],
    ) -> None:
        self._runs = runs
        self._lanes = lanes
        self._encoding = encoding
        # What ListRuns shows of a run that is too busy to be asked.
        self._listed: dict[str, run_pb2.Run] = {}
        self._batches = BatchMessages()
        self.access = access
        self.calls = calls
        self.observer = observer
        self.monotonic = monotonic

    # --- runs -----------------------------------------------------------------------------------------------------

    @unary
    async def CreateRun(self, request: pb.CreateRunRequest, context: grpc.aio.ServicerContext) -> pb.CreateRunResponse:
        run_id = checks.run_id(request.run_id)
        key = checks.request_key(request, "CreateRun")
        explicit = explicit_config(request.config)
        run, created = await self._lanes.run(
            run_id, lambda: self._runs.create(run_id, explicit, key), context, alone=True
        )
        warnings = []
        if run.config.sampling is None:
            warnings.append(
                "the run has no sampling settings: any behaviour log-probs are accepted, whatever they were made with"
            )
        if run.config.estimator.name == "ATTENTION" and self.embedder.encoder is None:
            warnings.append(
                "ATTENTION needs embeddings and the service has no encoder: send embeddings with the prompts"
            )
        misfit = None if self.embedder.encoder is None else run.adapter.misfit(self.embedder.encoder)
        if misfit is not None:
            warnings.append(f"{misfit}: send embeddings with the prompts, texts would be refused")
        quotas = self._runs.ledger.quotas
        if run.config.replay.capacity_groups > quotas.max_replay_groups:
            warnings.append(
                f"replay.capacity_groups is beyond the server's max_replay_groups={quotas.max_replay_groups}: from "
                "there on pushes are refused"
            )
        message = await self._lanes.run(run_id, lambda: run_message(run))
        if not created and message.last_step >= 0:
            warnings.append(
                f"the run exists and has got to step {message.last_step}: rewind to the step that training begins at, "
                "or its outcomes will be added to those of that time"
            )
        return pb.CreateRunResponse(run=message, created=created, warnings=warnings)

    @unary
    async def GetRun(self, request: pb.GetRunRequest, context: grpc.aio.ServicerContext) -> pb.GetRunResponse:
        run_id = checks.run_id(request.run_id)
        message = await self._lanes.run(run_id, lambda: run_message(self._runs.get(run_id)), context)
        return pb.GetRunResponse(run=message)

    @unary
    async def ListRuns(self, request: pb.ListRunsRequest, context: grpc.aio.ServicerContext) -> pb.ListRunsResponse:
        size = checks.between(request.page_size, 0, _MOST_LISTED, "page_size") or 100
        after = page_key("runs", request.page_token)
        readable = self.access.readable(context)
        later = [run for run in self._runs.all() if run.row.run_id > after and readable(run.row.run_id)]
        page = later[:size]
        await self._look_at(page, context)
        # A run that is busy shows what it showed last, or its id and configuration alone.
        bare = ((run, run_pb2.Run(run_id=run.row.run_id, config=config_message(run.config))) for run in page)
        answer = pb.ListRunsResponse(runs=[self._listed.get(run.row.run_id, shown) for run, shown in bare])
        if len(later) > size:
            answer.next_page_token = page_token("runs", later[size - 1].row.run_id)
        return answer

    async def _look_at(self, runs: Sequence[Run], context: grpc.aio.ServicerContext) -> None:
        left = context.time_remaining()
        works = {run.row.run_id: partial(run_message, run) for run in runs}
        looks = await self._lanes.look_at("listing", works, _LISTING_BUDGET_S if left is None else left / 2)
        self._listed.update({run_id: look.result() for run_id, look in looks.items() if look.exception() is None})

    @unary
    async def DeleteRun(self, request: pb.DeleteRunRequest, context: grpc.aio.ServicerContext) -> pb.DeleteRunResponse:
        run_id = checks.run_id(request.run_id)
        key = checks.request_key(request, "DeleteRun")
        await self._lanes.run(run_id, lambda: self._runs.delete(run_id, key), context, alone=True)
        self._lanes.forget(run_id)
        self._listed.pop(run_id, None)
        return pb.DeleteRunResponse()

    @unary
    async def ForkRun(self, request: pb.ForkRunRequest, context: grpc.aio.ServicerContext) -> pb.ForkRunResponse:
        run_id = checks.run_id(request.run_id)
        new_run_id = checks.run_id(request.new_run_id, "new_run_id")
        step = checks.step(request.step)
        key = checks.request_key(request, "ForkRun")
        fork = await self._lanes.run(
            run_id, lambda: self._runs.fork(run_id, new_run_id, step, key), context, alone=True
        )
        return pb.ForkRunResponse(run=await self._lanes.run(new_run_id, lambda: run_message(fork)))

    @unary
    async def RewindRun(self, request: pb.RewindRunRequest, context: grpc.aio.ServicerContext) -> pb.RewindRunResponse:
        run_id = checks.run_id(request.run_id)
        step = checks.step(request.step)
        key = checks.request_key(request, "RewindRun")
        result = await self._lanes.run(run_id, lambda: self._runs.rewind(run_id, step, key), context)
        self._lanes.announce(run_id)
        return pb.RewindRunResponse(
            dropped_selections=result.dropped_selections,
            dropped_reports=result.dropped_reports,
            dropped_replay_groups=result.dropped_replay_groups,
            restored_replay_groups=result.restored_replay_groups,
        )

    # --- pool -----------------------------------------------------------------------------------------------------

    @unary
    async def RegisterPrompts(
        self, request: AsyncIterator[pb.RegisterPromptsRequest], context: grpc.aio.ServicerContext
    ) -> pb.RegisterPromptsResponse:
        first: pb.RegisterPromptsRequest | None = None
        stream = PromptStream()
        async for message in request:
            if first is None:
                first = message
                self._runs.find(checks.run_id(first.run_id))
            elif message.run_id not in ("", first.run_id):
                raise invalid("run_id", f"expected {first.run_id!r} throughout the stream; got {message.run_id!r}")
            await self._lanes.take_in(first.run_id, partial(stream.add, message), context)
        if first is None:
            raise invalid("run_id", "expected at least one message; got an empty stream")
        head = pb.RegisterPromptsRequest(run_id=first.run_id, replace=first.replace, request_id=first.request_id)
        key = checks.request_key(head, "RegisterPrompts", stream.digest())
        run = self._runs.find(first.run_id)

        def prepared_for(gone: Callable[[], bool]) -> Registration:
            run.check_room(stream.specs)
            return prepare(run.config, run.row.space, run.pool, stream.specs, self.embedder, gone, run.adapter)

        prepared = await while_wanted(self._encoding, prepared_for)
        replace = first.replace
        result = await self._lanes.run(
            run.row.run_id,
            lambda: self._runs.same(run).register(prepared, replace, key),
            context,
        )
        if len(stream.specs) >= _MANY_REGISTERED:
            # Two thirds of what the service has grown by.
            del stream, prepared
            await self._lanes.off_loop(give_freed_memory_back)
        return pb.RegisterPromptsResponse(
            added=result.added,
            unchanged=result.unchanged,
            replaced=result.replaced,
            ineligible=result.ineligible,
            ineligible_prompt_ids=result.ineligible_prompt_ids,
        )

    @unary
    async def RetirePrompts(
        self, request: pb.RetirePromptsRequest, context: grpc.aio.ServicerContext
    ) -> pb.RetirePromptsResponse:
        run_id = checks.run_id(request.run_id)

        def retire() -> RetireResult:
            run = self._runs.get(run_id)
            key = checks.request_key(request, "RetirePrompts")
            if not request.prompt_ids:
                raise invalid("prompt_ids", "expected at least one id; got none")
            return run.retire(list(request.prompt_ids), key)

        result = await self._lanes.run(run_id, retire, context)
        return pb.RetirePromptsResponse(retired=result.retired, already_retired=result.already_retired)

    @unary
    async def ImportPriors(
        self, request: pb.ImportPriorsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ImportPriorsResponse:
        run_id = checks.run_id(request.run_id)
        self._runs.find(run_id)
        # Of a whole pool it takes a while.
        asked = await self._lanes.take_in(run_id, lambda: import_request(request), context)
        result = await self._lanes.run(run_id, lambda: self._runs.get(run_id).import_priors(asked), context)
        return pb.ImportPriorsResponse(
            imported=result.imported, unknown=result.unknown, unknown_prompt_ids=result.unknown_prompt_ids
        )

    # --- the step -------------------------------------------------------------------------------------------------

    @unary
    async def SelectBatch(
        self, request: pb.SelectBatchRequest, context: grpc.aio.ServicerContext
    ) -> pb.SelectBatchResponse:
        run_id = checks.run_id(request.run_id)
        left = context.time_remaining()
        half_gone = None if left is None else self.monotonic() + left / 2

        def begun() -> Batch | Later[Batch]:
            self._runs.find(run_id)
            return chosen(select_request(request))

        def chosen(asked: SelectRequest) -> Batch | Later[Batch]:
            run = self._runs.get(run_id)
            # What waiting for the lane took is gone from the time that the estimate may take.
            budget = None if half_gone is None else max(half_gone - self.monotonic(), 0.0)
            if budget == 0:
                return select(run, asked, budget)
            found = select_unless_waiting(run, asked)
            return found if isinstance(found, Batch) else Later(found, budget, partial(chosen, asked))

        batch = await self._lanes.run(run_id, begun, context)
        return self._batches.of(batch)

    @unary
    async def ReportOutcomes(
        self, request: pb.ReportOutcomesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReportOutcomesResponse:
        run_id = checks.run_id(request.run_id)
        # Read in the lane: of a large report that takes long, and others must not wait for it.
        result = await self._lanes.run(run_id, lambda: self._runs.get(run_id).report(report_request(request)), context)

        def prepare_next() -> Awaited[None] | None:
            found = look_ahead(self._runs.get(run_id))
            if isinstance(found, Future):
                return Awaited(found, prepare_next)
            if found is not None:
                self._batches.of(found)
            return None

        def fold_log() -> None:
            self._runs.find(run_id).store.fold_log()

        self._lanes.aside(run_id, prepare_next)
        # In no run's lane: its next call need not wait.
        self._lanes.aside("", fold_log)
        return pb.ReportOutcomesResponse(
            applied_groups=result.applied_groups,
            informative_groups=result.informative_groups,
            empty_groups=result.empty_groups,
            skipped_rollouts=result.skipped_rollouts,
            dropped_rollouts=result.dropped_rollouts,
            clipped_outcomes=result.clipped_outcomes,
            already_applied=result.already_applied,
        )

    @unary
    async def ReportTraining(
        self, request: pb.ReportTrainingRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReportTrainingResponse:
        run_id = checks.run_id(request.run_id)
        result = await self._lanes.run(
            run_id, lambda: self._runs.get(run_id).report_training(training_request(request)), context
        )
        return pb.ReportTrainingResponse(already_applied=result.already_applied)

    # --- looking --------------------------------------------------------------------------------------------------

    @unary
    async def PredictDifficulty(
        self, request: pb.PredictDifficultyRequest, context: grpc.aio.ServicerContext
    ) -> pb.PredictDifficultyResponse:
        run_id = checks.run_id(request.run_id)
        size = checks.between(request.page_size, 0, _MOST_PREDICTED, "page_size") or 10_000
        for field in ("page_token", "page_size"):
            if request.prompt_ids and getattr(request, field):
                raise invalid(field, "is for the whole pool; prompt_ids are given", Reason.CONTRADICTORY_FIELDS)
        ids = list(request.prompt_ids)

        def predict() -> pb.PredictDifficultyResponse | Awaited[pb.PredictDifficultyResponse]:
            run = self._runs.get(run_id)
            if (awaited := run.estimate_awaits(max(run.state.last_step, 0))) is not None:
                return Awaited(awaited, predict)
            start = page_position("pool", request.page_token, len(run.pool))
            estimate = run.undegraded_estimate(max(run.state.last_step, 0))
            at = run.indices(ids, "prompt_ids") if ids else np.arange(start, min(start + size, len(run.pool)))
            token = page_token("pool", start + size) if not ids and start + size < len(run.pool) else ""
            return pb.PredictDifficultyResponse(
                prompt_ids=[run.pool.prompt_ids[i] for i in at],
                predicted_difficulties=estimate.difficulty[at].tolist(),
                standard_errors=estimate.standard_error[at].tolist(),
                bases=estimate.basis[at].tolist(),
                own_weights=estimate.own_weight[at].tolist(),
                estimate_step=estimate.step,
                next_page_token=token,
            )

        return await self._lanes.patiently(run_id, predict, context)

    @unary
    async def ExplainPrompt(
        self, request: pb.ExplainPromptRequest, context: grpc.aio.ServicerContext
    ) -> pb.ExplainPromptResponse:
        run_id = checks.run_id(request.run_id)
        prompt_id = checks.identifier(request.prompt_id, "prompt_id")
        limit = checks.between(request.limit, 0, _MOST_EXPLAINED, "limit") or 100
        run = self._runs.find(run_id)
        # Reading the history takes longer than the rest, and need not keep the run from its next step.
        history = await self._lanes.read(run_id, lambda: prompt_history(run, prompt_id, limit), context)

        def explained() -> Explanation | Awaited[Explanation]:
            self._runs.same(run)
            if (awaited := run.estimate_awaits(max(run.state.last_step, 0))) is not None:
                return Awaited(awaited, explained)
            references = run.references(history.prompt)
            return Awaited(references, partial(with_references, references, run.state.next_seq))

        def with_references(references: Future[References], seq: int) -> Explanation | Awaited[Explanation]:
            self._runs.same(run)
            if run.state.next_seq != seq or run.estimate_awaits(max(run.state.last_step, 0)) is not None:
                # The run has gone on meanwhile.
                return explained()
            return explain(run, history, references)

        return explanation_message(await self._lanes.patiently(run_id, explained, context))

    @unary
    async def GetSelectionQuality(
        self, request: pb.GetSelectionQualityRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetSelectionQualityResponse:
        run_id = checks.run_id(request.run_id)
        metrics = await self._lanes.run(run_id, lambda: run_metrics(self._runs.get(run_id), 0.0), context)
        return quality_message(metrics)

    @streaming
    async def ExportRun(
        self, request: pb.ExportRunRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ExportRunResponse]:
        run_id = checks.run_id(request.run_id)
        kind = checks.choice(request, "kind")
        if kind == pb.EXPORT_KIND_UNSPECIFIED:
            raise invalid("kind", "expected OUTCOMES, SELECTIONS or PROMPTS; got UNSPECIFIED")
        run = self._runs.find(run_id)
        if kind == pb.EXPORT_KIND_PROMPTS:
            # The pool's columns are only steady within the lane.
            frames = await self._lanes.run(run_id, lambda: prompt_frames(self._runs.get(run_id)), context)
        else:
            frames = (outcome_frames if kind == pb.EXPORT_KIND_OUTCOMES else selection_frames)(run, _EXPORT_ROWS)
        while (frame := await self._lanes.read(run_id, lambda: next(frames, None), context)) is not None:
            yield frame
