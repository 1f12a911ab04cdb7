"""The blocking client. Plain numpy at the boundary; imports neither torch nor anything of the server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import grpc

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


class SelectorClient:
    """One run of a service, from one process.

    Every method takes ``timeout_s`` (seconds for the whole method, retries and pages included; None = the client's).
    Methods that change something take ``request_id``: it is made up once per call and repeated on every attempt, so
    that a retry is applied once. Give one yourself when the *same* call may come again from a restarted process.

    All methods raise ``SelectorError`` (see ``clients.errors``), and ``ValueError`` for arguments that cannot be sent,
    which names the argument, what was expected and what was got (see ``clients.messages`` for what can).
    Threads may share a client. Processes may not: gRPC channels do not survive ``fork``, so make the client after
    forking, in the process that uses it (PyTorch ``DataLoader`` workers and Ray actors included).

    Args:
        target: ``host:port``, an IPv6 host in brackets; or a target of gRPC's with its scheme, such as ``dns:`` or
            ``unix:``.
        run_id: matches ``[A-Za-z0-9._-]{1,128}``; the run need not exist yet.
        token: bearer token, sent with every call.
        tls: None = unencrypted; True = the system's authorities; a path or PEM bytes = this authority; a ``Tls`` with
            a client certificate or the server's name; or gRPC's own credentials. See ``clients.tls``.
        timeout_s: default deadline.
        retry: when a failed call is tried again.
        max_message_bytes: largest message in either direction; as the server's default.
        same_host: rollouts go through shared memory where the service runs on this host (see ``clients.same_host``).
        clock: monotonic seconds.
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
        self._closed = False
        self._plaintext = credentials is None
        self._metadata = call_metadata(token, target, encrypted=not self._plaintext)
        self._same_host = SameHost(same_host, target, clock)
        self._channel = (
            grpc.insecure_channel(target, options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options)
        )
        self._selector = SelectorServiceStub(self._channel)
        self._replay = replay_stub(self._channel)
        self._health = health_method(self._channel)

    # Runs

    def create_run(
        self,
        config: Mapping[str, Any] | run_pb2.RunConfig | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.RunCreated:
        """Creates the run; the same config again is a no-op. Warnings of the service are logged once.

        Args:
            config: a mapping (see ``clients.config``) or the message; None = all defaults.

        Raises:
            AlreadyExists: the run exists with another config.
            ValueError: an unknown field or enum name in the mapping.
        """
        created = self._run(operations.create_run(self.run_id, config, request_id_of(request_id)), timeout_s)
        for warning in created.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                LOGGER.warning("run %s: %s", self.run_id, warning)
        return created

    def get_run(self, *, timeout_s: float | None = None) -> results.RunInfo:
        """The run's config in effect, state and counts."""
        return self._run(operations.get_run(self.run_id), timeout_s)

    def list_runs(self, *, timeout_s: float | None = None) -> list[results.RunInfo]:
        """All runs of the service, by id."""
        return self._run(operations.list_runs(), timeout_s)

    def delete_run(self, *, request_id: str | None = None, timeout_s: float | None = None) -> None:
        """Deletes the run and frees all of its storage."""
        return self._run(operations.delete_run(self.run_id, request_id_of(request_id)), timeout_s)

    def fork(
        self, new_run_id: str, step: int, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> results.RunInfo:
        """A new run that starts from this run's state as before ``step``. This client stays with its own run."""
        return self._run(operations.fork(self.run_id, new_run_id, step, request_id_of(request_id)), timeout_s)

    def rewind(self, step: int, *, request_id: str | None = None, timeout_s: float | None = None) -> results.Rewound:
        """Drops everything of steps >= ``step``: what a trainer calls when it resumes from a checkpoint."""
        return self._run(operations.rewind(self.run_id, step, request_id_of(request_id)), timeout_s)

    # Prompts

    def register_prompts(
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
        """Adds N prompts, all or none; those that exist with the same content are left as they are.

        Args:
            texts: what the model sees; embedded by the service where ``embeddings`` is None.
            embeddings: (N, width) numbers, sent as float32.
            domains: a tag per prompt.
            priors: per prompt another model's ``(pass_rate, trials)``, or None. A bare pass rate counts as one trial,
                the weakest evidence there is: give the trials when you know them.
            token_counts: (N,) lengths in the policy's tokens; 0 = unknown.
            replace: replace prompts that exist with other content, instead of refusing. What is known about a prompt
                is forgotten where its text or embedding changes, and stays where only the rest does.
        """
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
        return self._run(operation, timeout_s)

    def import_priors(
        self,
        priors: Mapping[str, Prior],
        step: int | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.PriorsImported:
        """Other models' pass rates on prompts that are registered, in place of the priors they have.

        Ids that are not registered are counted and left out. More than 100,000 priors are sent in parts, each applied
        whole.

        Args:
            priors: by prompt id ``(pass_rate, trials)``, or a bare pass rate, which counts as one trial. None takes the
                prompt's prior away.
            step: a rewind to this step or before takes the import back; None = it stays, as the pool does.
        """
        return self._run(operations.import_priors(self.run_id, priors, step, request_id_of(request_id)), timeout_s)

    def retire_prompts(
        self, prompt_ids: Iterable[str], *, request_id: str | None = None, timeout_s: float | None = None
    ) -> results.Retired:
        """Takes prompts out of selection; reports about them are still accepted."""
        return self._run(operations.retire_prompts(self.run_id, prompt_ids, request_id_of(request_id)), timeout_s)

    def explain(self, prompt_id: str, limit: int = 0, *, timeout_s: float | None = None) -> results.Explanation:
        """One prompt's history, prediction and why it was not selected; ``limit`` newest records (0 = 100)."""
        return self._run(operations.explain(self.run_id, prompt_id, limit), timeout_s)

    def predict_difficulty(
        self, prompt_ids: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> results.Predictions:
        """Predicted difficulty of the given prompts, or of the whole pool in order of registration."""
        return self._run(operations.predict_difficulty(self.run_id, prompt_ids), timeout_s)

    # Every step

    def select_batch(
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
        """Which prompts to roll out, and how many groups to replay. The same step and round again answer the same.

        Args:
            batch_size: prompt groups the trainer trains on; 0 only with ``purpose="reference"`` (the run's size).
            purpose: ``"train"`` or ``"reference"``.
            round: 1, 2, … for further selections within the step.
            fresh_only: ask for ``batch_size`` prompts to roll out, whatever the buffer holds.
            exclude_prompt_ids: known ids that must not be chosen.
            shard: ``(index, count)``, this caller's part of one and the same selection.
        """
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
        return self._run(operation, timeout_s)

    def report_outcomes(
        self,
        step: int,
        outcomes: Mapping[str, Any],
        purpose: str = "train",
        statuses: Mapping[str, Sequence[str]] | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.OutcomesReported:
        """Raw task scores of freshly generated rollouts, by prompt: all applied, or none. Never of replayed ones.

        Args:
            step: the step whose policy made the rollouts.
            outcomes: prompt id -> one score per rollout.
            statuses: prompt id -> one of COMPLETED, TRUNCATED, ABORTED, UNSCORABLE per rollout, where not all are
                completed. ABORTED and UNSCORABLE rollouts are left out of the mean.
        """
        operation = operations.report_outcomes(
            self.run_id, step, outcomes, purpose, statuses, request_id_of(request_id)
        )
        return self._run(operation, timeout_s)

    def push_rollouts(
        self,
        step: int,
        groups: Iterable[RolloutGroup],
        skip_refused: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> results.Pushed:
        """Stores groups for later batches: all or none, unless ``skip_refused``. Durable once this returns."""
        operation = operations.push_rollouts(
            self.run_id, step, groups, skip_refused, request_id_of(request_id), self._same_host
        )
        return self._run(operation, timeout_s)

    def sample_rollouts(
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
        """Stored groups, a list with ``shortfall`` and ``eligible_groups``; fewer than ``count`` is not an error.

        Args:
            step: ages are measured from it; the same step again answers the same.
            count: groups wanted; 0 is an empty sample without a call.
            wait: wait until that many are eligible; a wait that ends in ``DeadlineExceeded`` consumes nothing.
            order: ``"uniform"`` or ``"newest"``.
            min_age_steps: younger groups are passed over.
            exclude_prompt_ids: groups of these prompts are passed over.
            informative_only: only groups whose outcomes differ, whatever the run keeps.
            shard: ``(index, count)``, this caller's part of one and the same sample.
        """
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
        return self._run(operation, timeout_s)

    def report_training(
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
        """What the trainer saw in a step. True if this request had been applied before.

        Args:
            effective_sample_size: of the replayed rows, as a share of their number, in [0, 1].
            max_importance_weight: largest of the replayed rows.
            clip_fraction: share of tokens clipped, in [0, 1].
            updates: optimiser updates in this step.
            signals: name -> prompt id -> value, of the current policy; used as features of the prediction.
        """
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
        return self._run(operation, timeout_s)

    # Figures

    def quality(self, *, timeout_s: float | None = None) -> results.Quality:
        """Whether selection is any good: by arm, and predicted against measured difficulty."""
        return self._run(operations.quality(self.run_id), timeout_s)

    @overload
    def export(self, kind: Literal["outcomes"], *, timeout_s: float | None = None) -> Iterator[results.OutcomeRow]: ...

    @overload
    def export(
        self, kind: Literal["selections"], *, timeout_s: float | None = None
    ) -> Iterator[results.SelectionRow]: ...

    @overload
    def export(self, kind: Literal["prompts"], *, timeout_s: float | None = None) -> Iterator[results.PromptRow]: ...

    @overload
    def export(self, kind: str, *, timeout_s: float | None = None) -> Iterator[results.ExportRow]: ...

    def export(self, kind: str, *, timeout_s: float | None = None) -> Iterator[Any]:
        """The run's recorded history in order: ``"outcomes"`` by reported group or ``"selections"`` by prompt; or its
        pool: ``"prompts"`` in order of registration.

        Rows come as they are received; a stream that breaks off is not begun again. ``timeout_s`` is for all of it.
        """
        return self._export(operations.export_request(self.run_id, kind), self._timeout(timeout_s))

    # The connection

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Returns when the service answers calls.

        Raises:
            Unavailable, DeadlineExceeded: it could not be reached, or was not ready, in time.
        """
        self._run(operations.wait_ready(), timeout_s)

    def close(self) -> None:
        """Closes the connection; calls under way fail, and later ones raise ``ClientClosed``."""
        self._closed = True
        self._channel.close()
        self._same_host.close()

    def __enter__(self) -> SelectorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timeout(self, timeout_s: float | None) -> float:
        return seconds(self._timeout_s if timeout_s is None else timeout_s)

    def _run(self, operation: Operation[T], timeout_s: float | None) -> T:
        deadline = self._clock() + self._timeout(timeout_s)
        response: Any = None
        while True:
            try:
                step = operations.answered(operation, response)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(step, Call):
                response = self._call(step, deadline)
            else:
                time.sleep(step)
                response = None

    def _call(self, call: Call, deadline: float) -> Any:
        attempt = 1
        while True:
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise DeadlineExceeded(f"no time left for {call.rpc}")
            try:
                return self._attempt(call, remaining)
            except SelectorError as error:
                remaining = deadline - self._clock()
                delay = self._retry.delay_s(attempt, error, remaining, self._jitter.random(), call.patient)
                if delay is None:
                    raise
                LOGGER.info("%s failed (%s), trying again in %.2f s", call.rpc, error, delay)
            time.sleep(delay)
            attempt += 1
            call = call.retried

    def _attempt(self, call: Call, timeout_s: float) -> Any:
        try:
            if call.rpc == operations.HEALTH:
                return self._health(call.request, timeout=timeout_s, metadata=self._metadata)
            stub = self._replay if hasattr(self._replay, call.rpc) else self._selector
            request = iter(call.request) if isinstance(call.request, RequestStream) else call.request
            answer = getattr(stub, call.rpc)(request, timeout=timeout_s, metadata=self._metadata)
            if call.rpc == operations.STREAMED:
                return [operations.received(message) for message in answer]
            return operations.received(answer)
        except grpc.RpcError as error:
            if isinstance(call.request, RequestStream) and call.request.failure is not None:
                raise call.request.failure from None
            raise from_rpc_error(error, self._plaintext) from error
        except ValueError as error:
            # gRPC's own, of a channel that was closed.
            if self._closed:
                raise ClientClosed from error
            raise

    def _export(self, request: Any, timeout_s: float) -> Iterator[results.ExportRow]:
        try:
            for response in self._selector.ExportRun(request, timeout=timeout_s, metadata=self._metadata):
                yield from operations.export_rows(response)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._plaintext) from error
        except ValueError as error:
            if self._closed:
                raise ClientClosed from error
            raise
