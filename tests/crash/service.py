"""The real server as a process that can be killed, and plain calls to it.

The generated stubs are called directly: the client library would retry by itself and hide what the harness looks at.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from selector.v1 import error_details_pb2, replay_service_pb2_grpc, selector_service_pb2_grpc

_SERVING = re.compile(r"selector: serving grpc=(\S+) ")
_ROOT = Path(__file__).resolve().parents[2]
_CALL_S = 60.0
_START_S = 120.0

# Refused before anything was looked at.
_NOT_TAKEN = ("STARTING", "DRAINING")


class Mismatch(Exception):
    """The service is not in the state that its answers promised."""


@dataclass(frozen=True)
class Refused:
    """An error that the service answered with; ``retry``: it says after what time trying again may help."""

    reason: str
    message: str
    retry: bool = False


class Lost(Exception):
    """No answer came: the call may have been applied, or not."""


class NotTaken(Exception):
    """The service refused the call because it was starting or stopping."""


class Process:
    """``selector serve``, possibly under a command such as strace that runs it."""

    def __init__(
        self, state_dir: Path, arguments: Sequence[str], under: Sequence[str] = (), log: Path | None = None
    ) -> None:
        """``log``: file that its log goes to; None = one beside the state directory."""
        command = [sys.executable, "-m", "selector", "serve", "--listen=127.0.0.1:0", "--metrics-listen="]
        self.log_path = log or state_dir.with_name(f"{state_dir.name}.log")
        with open(self.log_path, "ab") as written:
            self._process = subprocess.Popen(
                [*under, *command, f"--state-dir={state_dir}", *arguments],
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        self._serving = threading.Event()
        self._address = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def address(self) -> str:
        """HOST:PORT once it serves; empty when it ended before, which then has been waited for.

        Raises:
            Mismatch: it neither serves nor ends; it was killed.
        """
        if not self._serving.wait(_START_S):
            self.kill()
            self.close()
            raise Mismatch(f"the server neither serves nor ends:\n{self.last_words()}")
        if not self._address:
            self.close()
        return self._address

    def kill(self) -> None:
        """kill -9."""
        if self.alive:
            self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def ended(self, timeout_s: float) -> bool:
        """Whether it ends within a time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> int:
        """Wait for its end; the exit code, negative for a signal. May be called again."""
        code = self._process.wait(_CALL_S)
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = _SERVING.match(line)
            if found:
                self._address = found[1]
                self._serving.set()
        self._serving.set()


class Service:
    """Calls to a server."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._stubs: tuple[Any, Any] = (
            selector_service_pb2_grpc.SelectorServiceStub(self._channel),
            replay_service_pb2_grpc.ReplayServiceStub(self._channel),
        )

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Message) -> Any:
        """The answer, a list of messages from a streaming method, or ``Refused``.

        Raises:
            Lost: the connection broke.
            NotTaken: the server is starting or stopping.
        """
        stub = next(stub for stub in self._stubs if hasattr(stub, method))
        sent: Any = iter(_frames(request)) if method in ("RegisterPrompts", "PushRollouts") else request
        try:
            answer = getattr(stub, method)(sent, timeout=_CALL_S)
            return list(answer) if method in ("SampleRollouts", "ExportRun") else answer
        except grpc.RpcError as error:
            reason, retry = _details(error)
            if reason in _NOT_TAKEN:
                raise NotTaken(reason) from error
            if not reason:
                raise Lost(f"{error.code()}: {error.details()}") from error
            return Refused(reason, error.details() or "", retry)


def _frames(request: Any) -> Iterator[Message]:
    """The request in two messages, so that a stream can be cut in its middle."""
    name = "groups" if hasattr(request, "groups") else "prompts"
    items = getattr(request, name)
    first, second = type(request)(), type(request)(run_id=request.run_id)
    first.CopyFrom(request)
    half = len(items) // 2
    del getattr(first, name)[half:]
    getattr(second, name).extend(items[half:])
    yield first
    yield second


def _details(error: Any) -> tuple[str, bool]:
    """The named reason, and whether there is a RetryInfo."""
    reason, retry = "", False
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in error_details_pb2.StatusDetails.FromString(value).details:
                retry |= detail.type_url.endswith("RetryInfo")
                if detail.type_url.endswith("ErrorInfo"):
                    reason = error_details_pb2.ErrorInfoDetail.FromString(detail.value).reason
    return reason, retry
