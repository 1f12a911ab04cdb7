"""A client thread: it alone changes its runs, so the order of what was acknowledged is known, one call at a time.

After a kill at most one operation is in doubt. It must have been applied whole or not at all; sent again, it must be
answered as if nothing had happened, and be applied once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from selector.v1 import selector_service_pb2 as pb
from tests.crash.model import RunModel, first_difference
from tests.crash.observation import SCRATCH, Failed, ask, check_rewound_fork, listed, observe
from tests.crash.operations import REWIND_WINDOW, Operation, World
from tests.crash.service import Lost, Mismatch, NotTaken, Refused, Service
from tests.crash.trainer import Trainer

# Newest selections and samples of each run that are asked for again after every kill; the others now and then.
_ASKED_AGAIN = 12
# Of the runs, a fork is rewound after a kill.
_REWOUND_SHARE = 0.4


@dataclass
class InDoubt:
    """An operation with the answers that came; None for those that were lost."""

    operation: Operation
    answers: list[Any]


class Owner:
    """See the module docstring.

    Attributes:
        world: the model of its runs.
        journal: every operation with its answers, in order.
        in_doubt: what was on its way when the server was killed.
        counted: what was done and checked.
    """

    def __init__(self, name: str, trainer: Trainer, rng: np.random.Generator, record: Callable[[str], None]) -> None:
        self.name = name
        self.world: World = {}
        self.journal: list[tuple[Operation, Sequence[Any]]] = []
        self.in_doubt: InDoubt | None = None
        self.counted: Counter[str] = Counter()
        self._trainer = trainer
        self._rng = rng
        self._record = record
        self._threads = ThreadPoolExecutor(2)

    def close(self) -> None:
        self._threads.shutdown()

    def work(self, service: Service, encoder: bool, stop: threading.Event, answered: Callable[[], None]) -> None:
        """Do operations until the server is gone, or ``stop`` is set.

        Args:
            answered: called after every answer.
        """
        while not stop.is_set():
            operation = self._trainer.next(self.world, encoder)
            answers = self._send(service, operation, [None] * len(operation.requests))
            if answers is None:
                return
            if any(answer is None for answer in answers):
                self.in_doubt = InDoubt(operation, answers)
                self._record(f"{self.name} IN DOUBT {operation.describe()}")
                return
            answered()
            flags = [answer.already_applied for answer in answers if hasattr(answer, "already_applied")]
            if flags and flags.count(False) != 1:
                raise Mismatch(f"{operation.describe()}: applied {flags.count(False)} times")
            self.apply(operation, answers)

    def check(self, service: Service, thorough: bool) -> None:
        """Compare everything with the model, after a restart; what was in doubt is settled.

        Args:
            thorough: ask for everything again, not only for what is newest.
        """
        self._drop_scratch(service)
        if self.in_doubt is not None:
            self._settle(service, self.in_doubt)
            self.in_doubt = None
        expect_runs(self.world, listed(service), self.name)
        for model in self.world.values():
            self._check_run(service, model)
            self._ask_again(service, model, thorough)
        self.counted["runs compared"] += len(self.world)

    @property
    def needs_encoder(self) -> bool:
        """Whether texts are in doubt: without an encoder they would be registered in another way."""
        return self.in_doubt is not None and self.in_doubt.operation.method == "RegisterPrompts"

    # --- one operation --------------------------------------------------------------------------------------------

    def _send(self, service: Service, operation: Operation, answers: list[Any]) -> list[Any] | None:
        """Send what is not answered yet, all at once; None when the server took none of it."""
        lost: list[Lost | NotTaken | None] = [None] * len(answers)

        def send(i: int) -> None:
            try:
                answers[i] = service.call(operation.method, operation.requests[i])
            except (Lost, NotTaken) as error:
                lost[i] = error

        missing = [i for i, answer in enumerate(answers) if answer is None]
        if len(missing) == 1:
            send(missing[0])
        else:
            list(self._threads.map(send, missing))
        if all(isinstance(error, NotTaken) for error in lost):
            return None
        return answers

    def apply(self, operation: Operation, answers: Sequence[Any]) -> None:
        """Check the answers to an operation, and do to the model what the service did."""
        for answer in answers:
            if isinstance(answer, Refused) and not operation.refusable:
                raise Mismatch(f"{operation.describe()} failed: {answer.reason}: {answer.message}")
        operation.apply(self.world, answers)
        self.journal.append((operation, answers))
        self.counted[operation.method] += 1
        self._record(f"{self.name} {operation.describe()}")

    # --- after a kill ---------------------------------------------------------------------------------------------

    def _settle(self, service: Service, in_doubt: InDoubt) -> None:
        operation = in_doubt.operation
        acknowledged = any(answer is not None for answer in in_doubt.answers)
        before = {run_id: model.copy() for run_id, model in self.world.items()}
        probes = {run_id: self._probe(run_id) for run_id in operation.run_ids()}
        found = self._observe(service, probes)
        answers = self._send(service, operation, list(in_doubt.answers))
        if answers is None or any(answer is None for answer in answers):
            raise Mismatch(f"{operation.describe()}: no answer after the restart")
        after = self.world
        self.apply(operation, answers)
        absent = first_difference(_expected(before, probes), found)
        present = first_difference(_expected(after, probes), found)
        if absent and present:
            raise Mismatch(
                f"{operation.describe()} was applied in part.\n  compared with not applied: {absent}\n"
                f"  compared with applied: {present}"
            )
        if acknowledged and present:
            raise Mismatch(f"{operation.describe()} was acknowledged and is lost: {present}")
        flags = [answer.already_applied for answer in answers if hasattr(answer, "already_applied")]
        if flags and absent and not acknowledged and not all(flags):
            raise Mismatch(f"{operation.describe()} was applied before the kill and again after it")
        if flags and present and flags.count(False) != 1:
            raise Mismatch(f"{operation.describe()} was not applied before the kill; now {flags.count(False)} times")
        difference = first_difference(_expected(after, probes), self._observe(service, probes))
        if difference:
            raise Mismatch(f"{operation.describe()}, settled after the kill: {difference}")
        self.counted[
            "in doubt, applied" if absent else "in doubt, not applied" if present else "in doubt, no effect"
        ] += 1

    def _observe(self, service: Service, probes: dict[str, int]) -> dict[str, Any]:
        there = listed(service)
        return {run_id: observe(service, run_id, probe) for run_id, probe in probes.items() if run_id in there}

    def _check_run(self, service: Service, model: RunModel) -> None:
        probe = self._probe(model.run_id)
        difference = first_difference(model.expected(probe), observe(service, model.run_id, probe))
        if difference:
            raise Mismatch(f"{model.run_id}: {difference}")
        newest = max(model.last_step, model.highest)
        if newest > 0 and self._rng.random() < _REWOUND_SHARE:
            fork_step = newest + 1 - int(self._rng.integers(0, 2))
            rewind_step = max(newest - int(self._rng.integers(0, REWIND_WINDOW)), 0)
            check_rewound_fork(service, model, fork_step, min(fork_step, rewind_step), probe)
            self.counted["forks rewound"] += 1

    def _ask_again(self, service: Service, model: RunModel, thorough: bool) -> None:
        newest = slice(None) if thorough else slice(-_ASKED_AGAIN, None)
        selections = [answer for event in model.events if hasattr(event, "answers") for answer in event.answers]
        for asked, raw in selections[newest]:
            request = _of(model, asked)
            if ask(service, "SelectBatch", request).SerializeToString() != raw:
                raise Mismatch(f"the selection is answered in another way: {request}")
            self.counted["selections repeated"] += 1
        for sample in model.samples[newest]:
            request = _of(model, sample.request)
            answer = service.call("SampleRollouts", request)
            if isinstance(answer, Refused) and answer.reason == "REWIND_BEYOND_HISTORY":
                if sample.step > model.highest - REWIND_WINDOW:
                    raise Mismatch(f"the sample is gone too early: {request}")
                continue
            if isinstance(answer, Refused):
                raise Failed("SampleRollouts", answer)
            if tuple(frame.SerializeToString() for frame in answer) != sample.answer:
                raise Mismatch(f"the sample is answered in another way: {request}")
            self.counted["samples repeated"] += 1

    def _drop_scratch(self, service: Service) -> None:
        """Forks for looking that a kill left."""
        for run_id in sorted(listed(service)):
            if run_id.startswith(self.name) and run_id.endswith(SCRATCH):
                ask(service, "DeleteRun", pb.DeleteRunRequest(run_id=run_id))

    def _probe(self, run_id: str) -> int:
        """A step behind everything the run has seen, for samples in forks."""
        model = self.world.get(run_id)
        return 1 + max((m.reached for m in ([model] if model else self.world.values())), default=0)


def expect_runs(world: World, there: set[str], name: str) -> None:
    """The runs of one client are those of its model: what was deleted stays so."""
    mine = {run_id for run_id in there if run_id.startswith(name)}
    if mine != set(world):
        raise Mismatch(f"runs of {name}: expected {sorted(world)}, found {sorted(mine)}")


def _of(model: RunModel, request: Any) -> Any:
    """The request to a run, which a fork inherited from the run that it was sent to."""
    mine = type(request)()
    mine.CopyFrom(request)
    mine.run_id = model.run_id
    return mine


def _expected(world: World, probes: dict[str, int]) -> dict[str, Any]:
    return {run_id: world[run_id].expected(probe) for run_id, probe in probes.items() if run_id in world}
