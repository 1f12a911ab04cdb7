"""A server process under fuzzing, and what has to hold of it whatever it is sent.

Beside the runs that are fuzzed there is one that is not: a trainer takes its steps from time to time, and must be
answered bit for bit as by a service that nobody disturbs.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from pathlib import Path

import grpc
from google.protobuf.message import Message

from selector.v1 import selector_service_pb2 as pb
from tests.fuzz.faults import Fault
from tests.fuzz.process_memory import open_files, peak_bytes
from tests.fuzz.stubs import FuzzStubs
from tests.fuzz.world import RUNS
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import Trainer, prompts

UNTOUCHED = "untouched-by-fuzzing"
# Far above what the fuzzed state needs, far below what a declared size could make it.
_MOST_BYTES = 1500 * 2**20
_MOST_FILES = 300
# Every look at the state waits for what has begun on the runs, so this is only for calls that are about to begin.
_SETTLING_S = 0.1
_LIMITS = ("--max-runs=40", "--max-prompts=2000", "--max-message-bytes=4194304", "--max-stream-bytes=16777216")

# gRPC itself logs what it makes of broken connections, as errors too.
_DEFECT = re.compile(r"(?:ERROR|CRITICAL) (selector.*)|(?<=\n)(Fatal Python error.*)")


class Served:
    """One server process over a copy of the template.

    Attributes:
        stubs: raw stubs of it.
    """

    def __init__(self, template: Path, directory: Path) -> None:
        self._directory = directory
        shutil.copytree(template, directory / "state")
        self._process = ServiceProcess(directory / "state", "--log-level=error", *_LIMITS)
        self._calm = InProcessService(directory / "calm")
        self.stubs = FuzzStubs(self._process.address)
        self._client = self._process.client(UNTOUCHED)
        self._step = 0
        for client in (self._client, self._calm.client(UNTOUCHED)):
            client.create_run({"group_size": 2})
            client.register_prompts(prompts(24), texts=[f"text {i}" for i in range(24)])

    @property
    def address(self) -> str:
        return self._process.address

    def state(self) -> list[bytes]:
        """Everything that is shown of the runs that are fuzzed."""
        for _ in range(3):
            try:
                return self._state()
            except grpc.RpcError as error:
                # A call that its caller has left may delete a run meanwhile.
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
        return self._state()

    def settled_state(self) -> list[bytes]:
        """The state once it no longer moves: what has begun is carried to its end when its caller has left."""
        shown = self.state()
        while True:
            time.sleep(_SETTLING_S)
            before, shown = shown, self.state()
            if shown == before:
                return shown

    def _state(self) -> list[bytes]:
        listed = self.stubs.call("ListRuns", pb.ListRunsRequest(page_size=1000))
        there = {run.run_id for run in listed.runs}
        requests: list[tuple[str, Message]] = []
        for run_id in RUNS:
            if run_id in there:
                requests.append(("PredictDifficulty", pb.PredictDifficultyRequest(run_id=run_id)))
                requests.append(("GetSelectionQuality", pb.GetSelectionQualityRequest(run_id=run_id)))
        runs = [run.SerializeToString(deterministic=True) for run in listed.runs if run.run_id != UNTOUCHED]
        return [
            *runs,
            *(self.stubs.call(rpc, request).SerializeToString(deterministic=True) for rpc, request in requests),
        ]

    def check(self) -> None:
        """The process lives, within bounds, has logged no defect, and serves the run that is left alone.

        Raises:
            Fault: it does not.
        """
        if self._process.process.poll() is not None:
            raise Fault("the server died", f"{self._process.process.poll()} " + "".join(self._process.stderr)[-4000:])
        pid = self._process.process.pid
        if peak_bytes(pid) > _MOST_BYTES:
            raise Fault("the server's memory is not bounded", f"{peak_bytes(pid)} bytes")
        if open_files(pid) > _MOST_FILES:
            raise Fault("the server leaks connections", f"{open_files(pid)} open files")
        told, self._process.stderr[:] = "".join(self._process.stderr), []
        if (defect := _DEFECT.search(told)) is not None:
            raise Fault(f"the server logged: {defect[1][:100]}", told[defect.start() : defect.start() + 5000])
        disturbed = Trainer(self._client, 4, replays=True).step(self._step)
        calm = Trainer(self._calm.client(UNTOUCHED), 4, replays=True).step(self._step)
        self._step += 1
        if disturbed != calm:
            raise Fault("another run was disturbed", f"step {self._step - 1}")

    def restart(self) -> None:
        """kill -9 and start over the same directory.

        Raises:
            Fault: what the service shows of its runs is not what it was.
        """
        before = self.settled_state()
        self._end()
        try:
            self._process = ServiceProcess(self._directory / "state", "--log-level=error", *_LIMITS)
        except RuntimeError as error:
            raise Fault("the server does not start over the state it left", str(error)) from error
        self.stubs = FuzzStubs(self._process.address)
        self._client = self._process.client(UNTOUCHED)
        if self.state() != before:
            raise Fault("a restart changed the state", "")

    def close(self) -> None:
        """End the processes and delete the state."""
        self._end()
        self._calm.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self) -> None:
        self.stubs.close()
        self._client.close()
        if self._process.process.poll() is None:
            self._process.kill()


class Bystander:
    """Calls GetRun on a connection of its own in the background, and remembers what went wrong."""

    def __init__(self, address: str) -> None:
        self._stubs = FuzzStubs(address)
        self._done = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop.

        Raises:
            Fault: a call failed.
        """
        self._done.set()
        self._thread.join()
        self._stubs.close()
        if self.failure is not None:
            raise Fault("another connection was disturbed", str(self.failure))

    def _call(self) -> None:
        try:
            while not self._done.wait(0.05):
                self._stubs.call("GetRun", pb.GetRunRequest(run_id=UNTOUCHED))
        except Exception as error:
            self.failure = error
