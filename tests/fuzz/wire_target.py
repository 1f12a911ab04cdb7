"""Bytes as messages of every RPC, handed to the service's handlers in this process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from google.protobuf import message_factory

from tests.fuzz import verdict
from tests.fuzz.faults import Fault, Findings
from tests.fuzz.handlers import Handlers, Refused, recorded
from tests.fuzz.process_memory import resident_bytes
from tests.fuzz.world import RUNS, sound_requests, write_template
from tests.service.bad_input import METHODS
from tests.service.running import InProcessService

_RPCS = sorted(METHODS)
# Inputs between two fresh copies of the state.
_PER_SERVER = 4000
_MOST_BYTES = 3000 * 2**20


class WireTarget:
    """Tries an input: number of the RPC (1 byte), then each message after its length (2 bytes, little-endian)."""

    def __init__(self, findings: Findings, scratch: Path) -> None:
        self._findings = findings
        self._scratch = scratch
        write_template(scratch / "template")
        self._service: InProcessService | None = None
        self._handlers = Handlers()

    def seeds(self) -> list[bytes]:
        """A sound call of every RPC on every run."""
        found = []
        for step, run_id in enumerate(RUNS):
            for rpc, requests in sound_requests(run_id, step).items():
                parts = [request.SerializeToString() for request in requests]
                framed = b"".join(len(part).to_bytes(2, "little") + part for part in parts)
                found.append(bytes([_RPCS.index(rpc)]) + framed)
        return found

    def __call__(self, data: bytes) -> str:
        """How the call ended."""
        if self._service is None or self._findings.inputs % _PER_SERVER == 0:
            self._begin()
        rpc = _RPCS[(data[0] if data else 0) % len(_RPCS)]
        method, _ = METHODS[rpc]
        contents = _messages(data[1:], method.client_streaming)
        if resident_bytes(os.getpid()) > _MOST_BYTES:
            raise Fault("memory is not bounded", f"{resident_bytes(os.getpid())} bytes")
        decoded = [verdict.decodable(message_factory.GetMessageClass(method.input_type), c) for c in contents]
        sound = [message for message in decoded if message is not None]
        assert self._service is not None
        try:
            path = f"/{method.containing_service.full_name}/{rpc}"
            answers = self._service.run(self._handlers.call(path, contents))
        except Refused as error:
            told = sound if len(sound) == len(contents) else None
            return verdict.refusal(error.code, error.message, error.details, told)
        cls = message_factory.GetMessageClass(method.output_type)
        verdict.answer(rpc, sound, [cls.FromString(answer) for answer in answers])
        return "OK"

    def _begin(self) -> None:
        if self._service is not None:
            self._service.close()
        shutil.rmtree(self._scratch / "state", ignore_errors=True)
        shutil.copytree(self._scratch / "template", self._scratch / "state")
        with recorded() as self._handlers:
            self._service = InProcessService(self._scratch / "state", max_prompts=2000)


def _messages(data: bytes, several: bool) -> list[bytes]:
    """The messages of an input; what is not framed is one message."""
    found = []
    while len(data) >= 2:
        size = int.from_bytes(data[:2], "little")
        found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return found if several else (found[:1] or [data])
