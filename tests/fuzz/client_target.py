"""A hostile server and hostile arguments against both clients.

Whatever the server answers, a method returns or raises ``SelectorError``, in time. Whatever an argument is, the method
may also raise a ``ValueError``, which names that argument.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from hypothesis import strategies as st

from clients import AsyncSelectorClient, RetryPolicy, RolloutGroup, SelectorClient, SelectorError
from selector.v1 import error_details_pb2 as details_pb
from tests.fuzz.faults import Fault, Findings
from tests.fuzz.messages import any_message
from tests.fuzz.mutation import mutated
from tests.fuzz.process_memory import resident_bytes
from tests.fuzz.rpc_target import examples
from tests.fuzz.world import KNOWN
from tests.service.bad_input import METHODS
from tests.service.trainer import group_of

_TIMEOUT_S = 0.5
_SLOWEST_S = 20.0
_MOST_BYTES = 1500 * 2**20
_PER_BATCH = 2000

# Methods of the clients by the RPC they end in, with arguments that can be sent.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "CreateRun": ("create_run", {"config": {"group_size": 2}}),
    "GetRun": ("get_run", {}),
    "ListRuns": ("list_runs", {}),
    "DeleteRun": ("delete_run", {}),
    "ForkRun": ("fork", {"new_run_id": "other", "step": 1}),
    "RewindRun": ("rewind", {"step": 1}),
    "RegisterPrompts": ("register_prompts", {"prompt_ids": ["a"], "texts": ["b"]}),
    "RetirePrompts": ("retire_prompts", {"prompt_ids": ["a"]}),
    "ImportPriors": ("import_priors", {"priors": {"a": (0.5, 8)}}),
    "SelectBatch": ("select_batch", {"step": 0, "batch_size": 2}),
    "ReportOutcomes": ("report_outcomes", {"step": 0, "outcomes": {"a": [0.0, 1.0]}}),
    "PredictDifficulty": ("predict_difficulty", {}),
    "ExplainPrompt": ("explain", {"prompt_id": "a"}),
    "ReportTraining": ("report_training", {"step": 0, "clip_fraction": 0.5}),
    "GetSelectionQuality": ("quality", {}),
    "ExportRun": ("export", {"kind": "outcomes"}),
    "PushRollouts": ("push_rollouts", {"step": 0, "groups": [group_of("a", 0)]}),
    "SampleRollouts": ("sample_rollouts", {"step": 0, "count": 2}),
}


def _use(rpc: str) -> Callable[..., Any]:
    method, sound = CALLS[rpc]
    return lambda client, **changed: getattr(client, method)(**{**sound, **changed})


USES: dict[str, Callable[..., Any]] = {rpc: _use(rpc) for rpc in CALLS}

_SCALARS = (
    *(None, True, np.False_, 0, 1, -1, 2, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400),
    *(0.5, 2.0, math.nan, math.inf, np.int64(3), np.float32(0.5), 1j, object(), "", "a", "train", "\ud800", b"a"),
    *(np.zeros(()), np.zeros(2), np.zeros((1, 2)), np.array(["a", None], object), group_of("a", 0), len),
)
_KEYS = st.sampled_from(("a", "b", "\ud800", "group_size", "seed", "replay", 5, None, b"a", (0, 1)))
_SMALL = st.sampled_from(_SCALARS) | st.integers(-2, 9) | st.floats() | st.text(max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SMALL,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True)
class Answer:
    """What the server does when it is called.

    Attributes:
        messages: sent, as bytes.
        code: the status afterwards.
        details: the ``grpc-status-details-bin`` trailer, None = none.
        asynchronous: which client calls.
        changed: arguments of the call in place of those that can be sent.
    """

    rpc: str
    messages: list[bytes]
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: bytes | None = None
    asynchronous: bool = False
    changed: dict[str, Any] = field(default_factory=dict)


@st.composite
def answers(draw: Any) -> Answer:
    """Answers built from the RPC's own message type, perhaps with bytes changed, and every status."""
    rpc = draw(st.sampled_from(sorted(METHODS)))
    method, _ = METHODS[rpc]
    made = draw(st.lists(any_message(method.output_type, KNOWN), max_size=3 if method.server_streaming else 1))
    messages = [message.SerializeToString() for message in made]
    if draw(st.integers(0, 3)) == 3:
        source = random.Random(draw(st.integers(0, 2**32)))
        messages = [mutated(source, [message, b"\x0a"]) for message in messages]
    way = draw(st.integers(0, 6))
    if way < 4:
        return Answer(rpc, messages, asynchronous=draw(st.booleans()))
    if way < 6:
        name = draw(st.sampled_from(_arguments(rpc)))
        return Answer(rpc, messages, asynchronous=draw(st.booleans()), changed={name: draw(VALUES)})
    status = any_message(details_pb.StatusDetails.DESCRIPTOR, KNOWN)
    details = draw(st.none() | st.binary(max_size=50) | status.map(lambda message: message.SerializeToString()))
    if details is not None and draw(st.booleans()):
        details = _with_details(draw)
    code = draw(st.sampled_from(list(grpc.StatusCode)))
    return Answer(rpc, messages, code, None if details is None else details[:4000], draw(st.booleans()))


def _arguments(rpc: str) -> list[str]:
    """Of the method, all that it can be given."""
    return list(inspect.signature(getattr(SelectorClient, CALLS[rpc][0])).parameters)[1:]


def _with_details(draw: Any) -> bytes:
    """A status with details of google.rpc's types that hold anything."""
    status = details_pb.StatusDetails(code=3, message="message")
    for name in ("BadRequest", "ErrorInfo", "RetryInfo"):
        kind = getattr(details_pb, f"{name}Detail")
        content: Message = draw(any_message(kind.DESCRIPTOR, KNOWN))
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=content.SerializeToString()[:800])
    return status.SerializeToString()


def try_answers(findings: Findings, count: int, seed: int, scratch: Path) -> None:
    """Try ``count`` answers; faults go to ``findings``."""
    batch = 0
    while findings.inputs < count:
        hostile = Hostile()
        try:
            attempt = _Attempts(findings, hostile)
            examples(answers(), attempt, min(_PER_BATCH, count - findings.inputs), seed * 1_000_003 + batch)
        finally:
            hostile.close()
        batch += 1


@dataclass
class _Server(grpc.GenericRpcHandler):
    """Answers every call with ``answer``."""

    answer: Answer | None = None
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def service(self, handler_call_details: Any) -> Any:
        def behave(_requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            answer = self.answer
            assert answer is not None
            with self._lock:
                self.calls += 1
            yield from answer.messages
            if answer.code is not grpc.StatusCode.OK or answer.details is not None:
                trailers = () if answer.details is None else (("grpc-status-details-bin", answer.details),)
                context.set_trailing_metadata(trailers)
                context.set_code(answer.code)
                context.set_details("as asked")

        return grpc.stream_stream_rpc_method_handler(behave)


class Hostile:
    """The server, and a client of either kind."""

    def __init__(self) -> None:
        self.behaviour = _Server()
        self._server = grpc.server(ThreadPoolExecutor(4), [self.behaviour])
        target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        retry = RetryPolicy(max_attempts=2, initial_backoff_s=0.001)
        self.client = SelectorClient(target, "run", timeout_s=_TIMEOUT_S, retry=retry)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def connect() -> AsyncSelectorClient:
            return AsyncSelectorClient(target, "run", timeout_s=_TIMEOUT_S, retry=retry)

        self.asynchronous: AsyncSelectorClient = self.run(connect())

    def run(self, work: Any) -> Any:
        """The result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SLOWEST_S)

    def use(self, answer: Answer) -> Any:
        """What the client makes of an answer."""
        self.behaviour.answer = answer
        made = USES[answer.rpc](self.asynchronous if answer.asynchronous else self.client, **answer.changed)
        if answer.asynchronous:
            return self.run(_awaited(made))
        return list(made) if answer.rpc == "ExportRun" else made

    def close(self) -> None:
        """End the server and the clients."""
        self.client.close()
        self.run(self.asynchronous.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._server.stop(None).wait()


class _Attempts:
    """Calls a client and judges what comes of it."""

    def __init__(self, findings: Findings, hostile: Hostile) -> None:
        self._findings = findings
        self._hostile = hostile

    def __call__(self, answer: Answer) -> None:
        self._findings.begin()
        try:
            self._findings.ended(self._judged(answer))
        except Exception as error:
            self._findings.record(error, repr(answer))
        self._findings.done()

    def _judged(self, answer: Answer) -> str:
        try:
            result = self._hostile.use(answer)
        except SelectorError as error:
            str(error), error.reason, error.violations, error.retry_after_s
            return type(error).__name__
        except ValueError as error:
            # It may only be about arguments, and says about which.
            if not any(str(error).startswith(name) for name in _arguments(answer.rpc)):
                raise
            str(error).encode()
            return "not sent"
        if resident_bytes(os.getpid()) > _MOST_BYTES:
            raise Fault("the client's memory is not bounded", f"{resident_bytes(os.getpid())} bytes")
        if answer.code is not grpc.StatusCode.OK:
            raise Fault(f"a client took {answer.code.name} for an answer", answer.rpc)
        _look_at(answer.rpc, result)
        return "OK"


def _look_at(rpc: str, result: Any) -> None:
    """What a trainer does with an answer cannot fail for the answer's sake."""
    if rpc in ("SelectBatch", "PredictDifficulty"):
        for column in vars(result).values():
            if isinstance(column, np.ndarray | tuple) and len(column) != len(result.prompt_ids):
                raise Fault("columns that are not parallel were handed out", rpc)
    if rpc == "SampleRollouts":
        group: RolloutGroup
        for group in result:
            for index in range(len(group.lengths)):
                group.response(index), group.log_probs(index), group.mask(index)


async def _awaited(made: Any) -> Any:
    return [row async for row in made] if hasattr(made, "__aiter__") else await made
