"""The same calls again, on a server that nothing happens to: every answer must be the same, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tests.crash.operations import Create, Fork, Operation
from tests.crash.service import Mismatch, Process, Refused, Service

Journal = Sequence[tuple[Operation, Sequence[Any]]]


def compare(state_dir: Path, journals: Sequence[Journal], options: Sequence[str]) -> int:
    """Do everything again; the number of answers compared.

    Raises:
        Mismatch: an answer differs.
    """
    process = Process(state_dir, (*options, "--encoder=default", "--encoder-threads=1"))
    address = process.address()
    if not address:
        raise Mismatch(f"the server does not start:\n{process.last_words()}")
    service = Service(address)
    try:
        with ThreadPoolExecutor(len(journals)) as threads:
            return sum(threads.map(lambda journal: _repeat(service, journal), journals))
    finally:
        service.close()
        process.terminate()
        process.close()


def _repeat(service: Service, journal: Journal) -> int:
    compared = 0
    for number, (operation, answers) in enumerate(journal):
        for request, answer in zip(operation.requests, answers, strict=True):
            found = service.call(operation.method, request)
            # What these answer shows the run at another time.
            if not isinstance(operation, Create | Fork) and _plain(found) != _plain(answer):
                raise Mismatch(
                    f"an uninterrupted service answers {operation.describe()} (operation {number}) in another way:\n"
                    f"  without a kill: {_plain(found)!r:.400}\n  with kills: {_plain(answer)!r:.400}"
                )
            compared += 1
    return compared


def _plain(answer: Any) -> Any:
    if isinstance(answer, list):
        return [message.SerializeToString(deterministic=True) for message in answer]
    if isinstance(answer, Refused):
        return answer.reason
    assert isinstance(answer, Message)
    if "already_applied" in answer.DESCRIPTOR.fields_by_name:
        kept = type(answer)()
        kept.CopyFrom(answer)
        kept.ClearField("already_applied")
        answer = kept
    return answer.SerializeToString(deterministic=True)
