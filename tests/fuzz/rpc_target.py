"""Messages of every RPC against a server process, over its port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz import verdict
from tests.fuzz.faults import Fault, Findings
from tests.fuzz.messages import any_message, mutated
from tests.fuzz.served import Bystander, Served
from tests.fuzz.world import KNOWN, RUNS, sound_requests, write_template
from tests.service.bad_input import METHODS

_DEADLINE_S = 20.0
# Inputs between two servers, between two checks of the server, and refusals between two looks at the state.
_PER_SERVER = 1500
_PER_CHECK = 250
_PER_LOOK = 12


@dataclass(frozen=True)
class Input:
    """A call.

    Attributes:
        raw: sent instead of the requests.
        deadline_s: short ones may expire.
        abandon: the caller leaves without waiting for the answer.
    """

    rpc: str
    requests: list[Message]
    raw: list[bytes] | None = None
    deadline_s: float = _DEADLINE_S
    compression: grpc.Compression | None = None
    abandon: bool = False

    def told(self) -> str:
        """As text, to be repeated by hand."""
        content = self.raw if self.raw is not None else [r.SerializeToString() for r in self.requests]
        return f"{self.rpc} {content!r}\n" + "\n".join(map(str, self.requests))[:4000]


@st.composite
def inputs(draw: Any) -> Input:
    """Calls of every RPC: descriptors' messages, sound messages with changes, and bytes."""
    rpc = draw(st.sampled_from(sorted(METHODS)))
    method, _ = METHODS[rpc]
    sound = sound_requests(draw(st.sampled_from(RUNS)), draw(st.integers(0, 5))).get(rpc)
    if sound is None or draw(st.integers(0, 9)) == 9:
        message = any_message(method.input_type, KNOWN)
        requests = draw(st.lists(message, max_size=3)) if method.client_streaming else [draw(message)]
    else:
        requests = mutated(sound, KNOWN, draw)
    kind = draw(st.sampled_from(range(60)))
    if kind == 55:
        raw = [bytes(draw(st.binary(max_size=64))) for _ in requests]
        return Input(rpc, requests, raw)
    if kind == 56:
        raw = [data[: draw(st.integers(0, max(len(data), 1)))] for r in requests if (data := r.SerializeToString())]
        return Input(rpc, requests, raw or [b""])
    if kind == 57:
        return Input(rpc, requests, deadline_s=draw(st.sampled_from((0.0, 0.001, 0.005, 0.02))))
    if kind == 58:
        return Input(rpc, requests, abandon=True)
    if kind == 59:
        return Input(rpc, requests, compression=grpc.Compression.Gzip)
    return Input(rpc, requests)


def try_messages(findings: Findings, count: int, seed: int, scratch: Path) -> None:
    """Try ``count`` calls; faults go to ``findings``."""
    template = scratch / "template"
    write_template(template)
    batch = 0
    while findings.inputs < count:
        served = Served(template, scratch / f"batch-{batch}")
        bystander = Bystander(served.address)
        attempt = _Attempts(findings, served)
        try:
            examples(inputs(), attempt, min(_PER_SERVER, count - findings.inputs), seed * 1_000_003 + batch)
            attempt.recorded(bystander.close)
            attempt.recorded(served.restart)
        finally:
            served.close()
        batch += 1


def examples(strategy: st.SearchStrategy[Any], attempt: Callable[[Any], None], count: int, seed: int) -> None:
    """Call ``attempt`` on so many examples, which follow from the seed."""

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(strategy)
    def run(example: Any) -> None:
        attempt(example)

    run()


class _Attempts:
    """Makes calls and judges what comes of them."""

    def __init__(self, findings: Findings, served: Served) -> None:
        self._findings = findings
        self._served = served
        self._shown: list[bytes] | None = None
        # A call whose caller has left may still be under way.
        self._moving = False
        self._refusals = 0
        self._tried = 0

    def __call__(self, tried: Input) -> None:
        self._findings.begin()
        try:
            self._findings.ended(self._judged(tried))
        except Exception as error:
            self._shown = None
            self._findings.record(error, tried.told())
        self._tried += 1
        if self._tried % _PER_CHECK == 0:
            self.recorded(self._served.check, tried.told())
        self._findings.done()

    def recorded(self, check: Callable[[], None], example: str = "") -> None:
        """A check whose failure is a finding."""
        try:
            check()
        except Exception as error:
            self._findings.record(error, example)

    def _judged(self, tried: Input) -> str:
        if tried.abandon:
            self._shown, self._moving = None, True
            return _abandoned(self._served, tried)
        if self._shown is None:
            self._shown = self._served.settled_state() if self._moving else self._served.state()
            self._moving = False
        may_expire = tried.deadline_s < _DEADLINE_S or getattr(tried.requests[0:1] and tried.requests[0], "wait", False)
        deadline_s = min(tried.deadline_s, 0.05) if may_expire else tried.deadline_s
        try:
            answers = _call(self._served, tried, deadline_s)
        except grpc.RpcError as error:
            rpc_error: Any = error
            sound = None if tried.raw is not None else tried.requests
            details = verdict.details_of(rpc_error.trailing_metadata())
            reason = verdict.refusal(rpc_error.code(), rpc_error.details(), details, sound, may_expire)
            if reason in ("DEADLINE_EXCEEDED", "MESSAGE_TOO_LARGE") and details is None:
                self._shown, self._moving = None, True
            else:
                self._check_unchanged(tried.rpc, reason)
            return reason
        # A read that is answered may move what is shown too, such as a sample that uses groups up.
        self._shown = None
        if tried.raw is None:
            verdict.answer(tried.rpc, tried.requests, answers)
        return "OK"

    def _check_unchanged(self, rpc: str, reason: str) -> None:
        self._refusals += 1
        if self._refusals % _PER_LOOK:
            return
        before, self._shown = self._shown, self._served.state()
        if before is not None and self._shown != before:
            raise Fault(f"a refused {rpc} ({reason}) changed the state", "")


def _call(served: Served, tried: Input, deadline_s: float) -> list[Any]:
    options = {} if tried.compression is None else {"compression": tried.compression}
    if tried.raw is None:
        messages: Any = tried.requests if METHODS[tried.rpc][0].client_streaming else tried.requests[0]
        answer = served.stubs.call(tried.rpc, messages, deadline_s, **options)
    else:
        answer = served.stubs.raw(tried.rpc, tried.raw, deadline_s)
    return answer if isinstance(answer, list) else [answer]


def _abandoned(served: Served, tried: Input) -> str:
    call = served.stubs.begin(tried.rpc, tried.requests, _DEADLINE_S)
    call.cancel()
    return "ABANDONED"
