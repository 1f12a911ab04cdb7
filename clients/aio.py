"""The asyncio client: the methods of ``SelectorClient``, awaited. Both drive the same operations."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import grpc
import grpc.aio

from clients import operations, results
from clients.arguments import Shard
from clients.connection import (
    LOGGER,
    MAX_MESSAGE_BYTES,
    call_metadata,
    channel_options,
    health_method,
    replay_stub,
    seconds,
)
from clients.errors import ClientClosed, DeadlineExceeded, SelectorError, from_rpc_error
from clients.operations import Call, Operation, request_id_of
from clients.retry import RetryPolicy
from clients.rollout_group import RolloutGroup
from clients.same_host import SameHost
from clients.streams import Prior, RequestStream
from clients.tls import TlsOption, channel_security
from selector.v1 import run_pb2
from selector.v1.selector_service_pb2_grpc import SelectorServiceStub

T = TypeVar("T")


class AsyncSelectorClient:
    """One run of a service, from one event loop.

    Arguments, methods and errors are those of ``SelectorClient``. Make the client inside the running event loop that
    uses it. A task that is cancelled leaves open whether the service applied its call; call again with the same
    ``request_id`` to be sure.
    """

    def __init__(
        self,
        target: str,
        run_id: str,
        token: str | None = None,
        tls: TlsOption = None,
        timeout_s: float = 30.0,
        *,
        retry: RetryPolicy | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        same_host: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        credentials, naming = channel_security(tls)
        options = [*channel_options(max_message_bytes), *naming]
        self.run_id = run_id
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        self._clock = clock
        self._jitter = random.Random()
        self._warned: set[str] = set()
        self._plaintext = credentials is None
        self._metadata = call_metadata(token, target, encrypted=not self._plaintext)
        self._same_host = SameHost(same_host, target, clock)
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        self._selector = SelectorServiceStub(self._channel)
        self._replay = replay_stub(self._channel)
        self._health = health_method(self._channel)

    # Runs

    async def create_run(
        self,
        config: Mapping[str, Any] | run_pb2.RunConfig | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.RunCreated:
        """As ``SelectorClient.create_run``."""
        created = await self._run(operations.create_run(self.run_id, config, request_id_of(request_id)), timeout_s)
        for warning in created.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                LOGGER.warning("run %s: %s", self.run_id, warning)
        return created

    async def get_run(self, *, timeout_s: float | None = None) -> results.RunInfo:
        """As ``SelectorClient.get_run``."""
        return await self._run(operations.get_run(self.run_id), timeout_s)

    async def list_runs(self, *, timeout_s: float | None = None) -> list[results.RunInfo]:
        """As ``SelectorClient.list_runs``."""
        return await self._run(operations.list_runs(), timeout_s)

    async def delete_run(self, *, request_id: str | None = None, timeout_s: float | None = None) -> None:
        """As ``SelectorClient.delete_run``."""
        return await self._run(operations.delete_run(self.run_id, request_id_of(request_id)), timeout_s)

    async def fork(
        self, new_run_id: str, step: int, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> results.RunInfo:
        """As ``SelectorClient.fork``."""
        return await self._run(operations.fork(self.run_id, new_run_id, step, request_id_of(request_id)), timeout_s)

    async def rewind(
        self, step: int, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> results.Rewound:
        """As ``SelectorClient.rewind``."""
        return await self._run(operations.rewind(self.run_id, step, request_id_of(request_id)), timeout_s)

    # Prompts

    async def register_prompts(
        self,
        prompt_ids: Sequence[str],
        texts: Sequence[str | None] | None = None,
        embeddings: Any = None,
        domains: Sequence[str | None] | None = None,
        priors: Sequence[Prior] | None = None,
        token_counts: Any = None,
        replace: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.Registered:
        """As ``SelectorClient.register_prompts``."""
        operation = operations.register_prompts(
            self.run_id,
            prompt_ids,
            texts,
            embeddings,
            domains,
            priors,
            token_counts,
            replace,
            request_id_of(request_id),
        )
        return await self._run(operation, timeout_s)

    async def import_priors(
        self,
        priors: Mapping[str, Prior],
        step: int | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.PriorsImported:
        """As ``SelectorClient.import_priors``."""
        operation = operations.import_priors(self.run_id, priors, step, request_id_of(request_id))
        return await self._run(operation, timeout_s)

    async def retire_prompts(
        self, prompt_ids: Iterable[str], *, request_id: str | None = None, timeout_s: float | None = None
    ) -> results.Retired:
        """As ``SelectorClient.retire_prompts``."""
        return await self._run(operations.retire_prompts(self.run_id, prompt_ids, request_id_of(request_id)), timeout_s)

    async def explain(self, prompt_id: str, limit: int = 0, *, timeout_s: float | None = None) -> results.Explanation:
        """As ``SelectorClient.explain``."""
        return await self._run(operations.explain(self.run_id, prompt_id, limit), timeout_s)

    async def predict_difficulty(
        self, prompt_ids: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> results.Predictions:
        """As ``SelectorClient.predict_difficulty``."""
        return await self._run(operations.predict_difficulty(self.run_id, prompt_ids), timeout_s)

    # Every step

    async def select_batch(
        self,
        step: int,
        batch_size: int = 0,
        purpose: str = "train",
        round: int = 0,
        fresh_only: bool = False,
        exclude_prompt_ids: Iterable[str] = (),
        shard: Shard | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.Selection:
        """As ``SelectorClient.select_batch``."""
        operation = operations.select_batch(
            self.run_id,
            step,
            batch_size,
            purpose,
            round,
            fresh_only,
            exclude_prompt_ids,
            shard,
            request_id_of(request_id),
        )
        return await self._run(operation, timeout_s)

    async def report_outcomes(
        self,
        step: int,
        outcomes: Mapping[str, Any],
        purpose: str = "train",
        statuses: Mapping[str, Sequence[str]] | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.OutcomesReported:
        """As ``SelectorClient.report_outcomes``."""
        operation = operations.report_outcomes(
            self.run_id, step, outcomes, purpose, statuses, request_id_of(request_id)
        )
        return await self._run(operation, timeout_s)

    async def push_rollouts(
        self,
        step: int,
        groups: Iterable[RolloutGroup],
        skip_refused: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.Pushed:
        """As ``SelectorClient.push_rollouts``."""
        operation = operations.push_rollouts(
            self.run_id, step, groups, skip_refused, request_id_of(request_id), self._same_host
        )
        return await self._run(operation, timeout_s)

    async def sample_rollouts(
        self,
        step: int,
        count: int,
        wait: bool = False,
        order: str = "uniform",
        min_age_steps: int = 0,
        exclude_prompt_ids: Iterable[str] = (),
        informative_only: bool = False,
        shard: Shard | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.Sample:
        """As ``SelectorClient.sample_rollouts``."""
        operation = operations.sample_rollouts(
            self.run_id,
            step,
            count,
            wait,
            order,
            min_age_steps,
            exclude_prompt_ids,
            informative_only,
            shard,
            # The step says which sample it is; an id of its own would have to be remembered, which takes a flush.
            "" if request_id is None else request_id,
            self._same_host,
        )
        return await self._run(operation, timeout_s)

    async def report_training(
        self,
        step: int,
        effective_sample_size: float | None = None,
        max_importance_weight: float | None = None,
        clip_fraction: float | None = None,
        updates: int | None = None,
        signals: Mapping[str, Mapping[str, float]] | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """As ``SelectorClient.report_training``."""
        operation = operations.report_training(
            self.run_id,
            step,
            effective_sample_size,
            max_importance_weight,
            clip_fraction,
            updates,
            signals,
            request_id_of(request_id),
        )
        return await self._run(operation, timeout_s)

    # Figures

    async def quality(self, *, timeout_s: float | None = None) -> results.Quality:
        """As ``SelectorClient.quality``."""
        return await self._run(operations.quality(self.run_id), timeout_s)

    @overload
    def export(
        self, kind: Literal["outcomes"], *, timeout_s: float | None = None
    ) -> AsyncIterator[results.OutcomeRow]: ...

    @overload
    def export(
        self, kind: Literal["selections"], *, timeout_s: float | None = None
    ) -> AsyncIterator[results.SelectionRow]: ...

    @overload
    def export(
        self, kind: Literal["prompts"], *, timeout_s: float | None = None
    ) -> AsyncIterator[results.PromptRow]: ...

    @overload
    def export(self, kind: str, *, timeout_s: float | None = None) -> AsyncIterator[results.ExportRow]: ...

    def export(self, kind: str, *, timeout_s: float | None = None) -> AsyncIterator[Any]:
        """As ``SelectorClient.export``."""
        return self._export(operations.export_request(self.run_id, kind), self._timeout(timeout_s))

    # The connection

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """As ``SelectorClient.wait_ready``."""
        await self._run(operations.wait_ready(), timeout_s)

    async def close(self) -> None:
        """As ``SelectorClient.close``."""
        await self._channel.close()
        self._same_host.close()

    async def __aenter__(self) -> AsyncSelectorClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _timeout(self, timeout_s: float | None) -> float:
        return seconds(self._timeout_s if timeout_s is None else timeout_s)

    async def _run(self, operation: Operation[T], timeout_s: float | None) -> T:
        deadline = self._clock() + self._timeout(timeout_s)
        response: Any = None
        while True:
            try:
                step = operations.answered(operation, response)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(step, Call):
                response = await self._call(step, deadline)
            else:
                await asyncio.sleep(step)
                response = None

    async def _call(self, call: Call, deadline: float) -> Any:
        attempt = 1
        while True:
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise DeadlineExceeded(f"no time left for {call.rpc}")
            try:
                return await self._attempt(call, remaining)
            except SelectorError as error:
                remaining = deadline - self._clock()
                delay = self._retry.delay_s(attempt, error, remaining, self._jitter.random(), call.patient)
                if delay is None:
                    raise
                LOGGER.info("%s failed (%s), trying again in %.2f s", call.rpc, error, delay)
            await asyncio.sleep(delay)
            attempt += 1
            call = call.retried

    async def _attempt(self, call: Call, timeout_s: float) -> Any:
        try:
            if call.rpc == operations.HEALTH:
                return await self._health(call.request, timeout=timeout_s, metadata=self._metadata)
            stub = self._replay if hasattr(self._replay, call.rpc) else self._selector
            request = iter(call.request) if isinstance(call.request, RequestStream) else call.request
            answer = getattr(stub, call.rpc)(request, timeout=timeout_s, metadata=self._metadata)
            if call.rpc == operations.STREAMED:
                return [operations.received(message) async for message in answer]
            return operations.received(await answer)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # grpc.aio cancels the call when the request iterator raises.
            if isinstance(call.request, RequestStream) and call.request.failure is not None:
                raise call.request.failure from None
            if isinstance(error, asyncio.CancelledError):
                raise
            raise from_rpc_error(error, self._plaintext) from error
        except grpc.aio.UsageError as error:
            raise ClientClosed from error

    async def _export(self, request: Any, timeout_s: float) -> AsyncIterator[results.ExportRow]:
        try:
            async for response in self._selector.ExportRun(request, timeout=timeout_s, metadata=self._metadata):
                for row in operations.export_rows(response):
                    yield row
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._plaintext) from error
        except grpc.aio.UsageError as error:
            raise ClientClosed from error
