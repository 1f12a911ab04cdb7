"""A server whose storage can be made to fail, with a trainer that goes on making calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from tests.crash.model import first_difference
from tests.crash.observation import recorded
from tests.crash.operations import REWIND_WINDOW, Delete, Operation, Rewind
from tests.crash.owner import Owner
from tests.crash.service import Mismatch, Process, Refused, Service
from tests.crash.trainer import Trainer, profiles

OPTIONS = (f"--rewind-window-steps={REWIND_WINDOW}", "--encoder=none", "--snapshot-groups=25")
_RUNS = ["a-0", "a-1"]
# One for each thread that a single write fails in.
_ATTEMPTS = 10


class Faulty:
    """See the module docstring.

    Attributes:
        refusals: operations that were refused since ``take_failing`` began.
    """

    def __init__(self, state_dir: Path, *options: str, log: Path | None = None) -> None:
        self.state_dir = state_dir
        self._log = log
        self._options = (*OPTIONS, *options)
        self._lines: list[str] = []
        self.trainer = Trainer(_RUNS, [p for p in profiles() if not p.texts], np.random.default_rng(4))
        self.refusals = 0
        self.owner = Owner("a-", self.trainer, np.random.default_rng(5), self._lines.append)
        self.start()

    def start(self) -> None:
        """Start the server over the state directory."""
        self.process = Process(self.state_dir, self._options, log=self._log)
        address = self.process.address()
        if not address:
            raise Mismatch(f"the server does not start:\n{self.process.last_words()}")
        self.service = Service(address)

    def restart(self) -> None:
        """kill -9, and start again."""
        self.close()
        self.start()

    def close(self) -> None:
        self.service.close()
        self.process.kill()
        self.process.close()

    def send(self, operation: Operation) -> list[object]:
        """The answers to an operation; nothing is applied to the model."""
        return [self.service.call(operation.method, request) for request in operation.requests]

    def take(self, steps: int) -> None:
        """Operations that succeed."""
        for _ in range(steps):
            operation = self.trainer.next(self.owner.world, encoder=False)
            self.owner.apply(operation, self.send(operation))

    def take_failing(self, steps: int, deleting: bool = True) -> list[Operation]:
        """Operations of which some are refused; each of those is checked to have had no effect.

        Args:
            deleting: runs may be rewound and deleted, too.

        Returns:
            Operations that were refused and can be sent again, since nothing else was done to their runs.
        """
        refused: dict[str, Operation] = {}
        self.refusals = 0
        for step in range(steps):
            model = self.owner.world.get(_RUNS[step // 5 % len(_RUNS)])
            # Embeddings are written by registrations only, of which there would be few.
            registering = step % 5 == 0 and model is not None
            operation = (
                self.trainer.register(model, encoder=False)
                if model is not None and registering
                else self.trainer.next(self.owner.world, encoder=False)
            )
            if isinstance(operation, Rewind | Delete) and not deleting:
                continue
            answers = self.send(operation)
            if any(map(_failed, answers)) and not all(map(_failed, answers)):
                # Where single writes fail, one of two shards' calls may be refused; its trainer asks again.
                self.refusals += 1
                sent = zip(operation.requests, answers, strict=True)
                answers = [self._answered(operation.method, request, answer) for request, answer in sent]
            if not any(map(_failed, answers)):
                self.owner.apply(operation, answers)
                for run_id in operation.run_ids():
                    refused.pop(run_id, None)
                continue
            for answer in answers:
                assert isinstance(answer, Refused) and answer.reason == "STORAGE_FAILED", (operation.describe(), answer)
                assert answer.retry, f"no RetryInfo: {answer}"
            self.refusals += 1
            refused |= {run_id: operation for run_id in operation.run_ids()}
            self.check_reading()
        return list({id(operation): operation for operation in refused.values()}.values())

    def _answered(self, method: str, request: Message, answer: object) -> object:
        """The answer, asked for again while storage fails."""
        for _ in range(_ATTEMPTS):
            if not _failed(answer):
                break
            answer = self.service.call(method, request)
        return answer

    def check_reading(self) -> None:
        """What can be read is what was acknowledged."""
        for run_id, model in self.owner.world.items():
            expected = model.expected(model.reached + 1)
            del expected["replay"]
            difference = first_difference(expected, recorded(self.service, run_id))
            assert not difference, f"{run_id}: {difference}"


def _failed(answer: object) -> bool:
    return isinstance(answer, Refused) and answer.reason == "STORAGE_FAILED"
