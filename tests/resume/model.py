"""What a run must be after any operations and rewinds, worked out without a restart and without a rewind.

After a rewind to step s the run is made anew from the operations that survive: those of steps < s, and those that
belong to no step, in the order in which they were acknowledged.

    clean     nothing that the rewind takes back came before: the operation is answered anew, and must be answered as it
              was the first time. With a trainer that takes step after step every operation is clean.
    forced    something that is taken back came before it, as with trainers that select ahead or report late. What was
              answered then stands: a selection keeps its prompts, a report the selection it belonged to, a sample its
              groups. A push is decided anew, since what stood in its way may be gone.

Operations that belong to no step (registered and retired prompts, rewinds) depend on no step and are always clean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selector.events import EventRow
from selector.replay.history import SampleEvent
from selector.requests import RewindResult
from selector.service import checks
from selector.storage.runs import AnsweredRequest
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from tests.resume.engine import Engine, checked
from tests.resume.operations import Answer, Operation, answered

_FORCED = frozenset({"SelectBatch", "ReportOutcomes", "PushRollouts", "SampleRollouts"})


@dataclass
class Entry:
    """An acknowledged operation.

    Attributes:
        number: of the operation, over all that were ever applied.
        seq: of its event in the reference run, 0 = it made none.
        position: of its event in the reference run's replay log, -1 = it made none.
        groups: of a push, which of its groups the reference run was given.
        inherited: it was applied to the run that this one was forked from, whose request ids are its own.
        forced: see the module docstring.
        event, request, sample: what the reference run recorded of it, where it is forced.
        picks: of a sample, (number of the push, group within it).
        result: of a rewind.
    """

    number: int
    operation: Operation
    answer: Answer
    seq: int = 0
    position: int = -1
    groups: tuple[int, ...] = ()
    inherited: bool = False
    forced: bool = False
    event: EventRow | None = None
    request: AnsweredRequest | None = None
    sample: SampleEvent | None = None
    picks: tuple[tuple[int, int], ...] = ()
    result: RewindResult | None = None

    def dropped_by(self, step: int) -> bool:
        """Whether a rewind to this step takes it back."""
        own = self.operation.step
        return own is not None and own >= step


class Model:
    """One run: its log of operations, and the reference run that they make."""

    def __init__(self, engine: Engine, config: run_pb2.RunConfig) -> None:
        self._engine = engine
        self.config = config
        self.run = engine.create(config)
        self.log: list[Entry] = []
        self._numbers = 0

    def close(self) -> None:
        self._engine.delete(self.run)

    def look(self, operation: Operation) -> Answer:
        """Answer a call that changes nothing."""
        return self._engine.apply(self.run, operation)

    def apply(self, operation: Operation) -> Answer:
        """Answer a call; one that is refused, or repeats an earlier one, changes nothing."""
        if operation.rpc == "RewindRun":
            return self._rewind(operation)
        self._numbers += 1
        entry = Entry(self._numbers, operation, Answer(""))
        entry.answer = self._perform(entry)
        if not entry.answer.reason and (entry.seq or entry.position >= 0 or operation.step is None):
            self.log.append(entry)
        return entry.answer

    def fork(self, step: int) -> Model:
        """The run that starts from this one's state as of before the step."""
        self._record(step)
        model = Model(self._engine, self.config)
        model._numbers = self._numbers
        for entry in self._survivors(step):
            if entry.operation.rpc != "RewindRun":
                # A fork knows the pushes that it inherited by their ids, but no other request.
                named = entry.operation.rpc == "PushRollouts"
                operation = entry.operation if named else entry.operation.changed(request_id="")
                model._redo(replace(entry, operation=operation, request=None, inherited=True))
        return model

    @property
    def last_step(self) -> int:
        """The largest step of an operation, -1 before the first."""
        return max((entry.operation.step or 0 for entry in self.log if entry.operation.step is not None), default=-1)

    def _perform(self, entry: Entry) -> Answer:
        state, log = self.run.state, self.run.replay.buffer.log
        seq, position = state.next_seq, log.next_position
        answer = self._engine.apply(self.run, entry.operation)
        entry.seq = seq if self.run.state.next_seq > seq else 0
        entry.position = position if log.next_position > position else -1
        if entry.operation.rpc == "PushRollouts":
            entry.groups = tuple(range(sum(len(message.groups) for message in entry.operation.messages)))
        return answer

    def _rewind(self, operation: Operation) -> Answer:
        known = self._engine.remembered(self.run, operation.request_id)
        key = checks.request_key(operation.request, operation.rpc)
        if known is not None and (known.method, known.fingerprint) != (key.method, key.fingerprint):
            return Answer("REQUEST_ID_REUSED")
        step = operation.request.step
        dropped = [entry for entry in self.log if entry.dropped_by(step)]
        before = self._live()
        if dropped:
            self._record(step)
            survivors, old = self._survivors(step), self.run
            self.run, self.log = self._engine.create(self.config), []
            for entry in survivors:
                self._redo(entry)
            self._engine.delete(old)
        after = self._live()
        kinds = [entry.operation.rpc for entry in dropped]
        result = RewindResult(
            kinds.count("SelectBatch"), kinds.count("ReportOutcomes"), len(before - after), len(after - before)
        )
        self._numbers += 1
        answer = answered(pb.RewindRunResponse(**result.__dict__))
        self._redo(Entry(self._numbers, operation, answer, result=result))
        return answer

    def _survivors(self, step: int) -> list[Entry]:
        """What is left of the log; from the first operation that is not, later ones are forced."""
        first = next((i for i, entry in enumerate(self.log) if entry.dropped_by(step)), len(self.log))
        return [
            replace(entry, forced=entry.forced or (i > first and entry.operation.rpc in _FORCED))
            for i, entry in enumerate(self.log)
            if not entry.dropped_by(step)
        ]

    def _record(self, step: int) -> None:
        """Take down what the entries that will be forced were answered, as long as the reference run knows."""
        if not any(entry.dropped_by(step) for entry in self.log):
            return
        events = {row.seq: row for row in self._engine.store.events(self.run.row.id)}
        places = self._places()
        for entry in self.log:
            if entry.forced or entry.operation.rpc not in _FORCED:
                continue
            entry.event = events.get(entry.seq)
            entry.request = self._engine.remembered(self.run, entry.operation.request_id)
            if entry.operation.rpc == "SampleRollouts":
                entry.sample = self._engine.replay.sample(self.run.row.id, entry.operation.request.step)
                assert entry.sample is not None
                entry.picks = tuple(places[pick] for pick in entry.sample.picks)

    def _redo(self, entry: Entry) -> None:
        """Apply an entry to the reference run, which is being made anew."""
        if entry.operation.rpc == "RewindRun":
            self._engine.force_request(self.run, entry.operation, entry.result)
        elif entry.forced:
            self._force(entry)
        else:
            answer = self._perform(entry)
            assert answer == entry.answer, f"{entry.operation} was answered {entry.answer}; now {answer}"
        self.log.append(entry)

    def _force(self, entry: Entry) -> None:
        log = self.run.replay.buffer.log
        entry.position = log.next_position
        if entry.operation.rpc == "PushRollouts":
            self._push_again(entry)
        elif entry.operation.rpc == "SampleRollouts":
            assert entry.sample is not None
            positions = {place: position for position, place in self._places().items()}
            picks = tuple(positions[pick] for pick in entry.picks)
            self._engine.force_sample(self.run, replace(entry.sample, position=entry.position, picks=picks))
        else:
            assert entry.event is not None
            entry.position, entry.seq = -1, self.run.state.next_seq
            self._engine.force_event(self.run, entry.event, entry.request)

    def _push_again(self, entry: Entry) -> None:
        first = entry.operation.request
        groups = [group for message in entry.operation.messages for group in message.groups]
        entry.groups = tuple(range(len(groups)))
        self.run.replay.push(checked(self.run, groups, first.step), first.step, first.request_id, skip_refused=True)

    def _places(self) -> dict[int, tuple[int, int]]:
        """Position in the reference run's replay log -> the push that brought the group, and its place there."""
        return {
            entry.position + 1 + i: (entry.number, group)
            for entry in self.log
            if entry.operation.rpc == "PushRollouts"
            for i, group in enumerate(entry.groups)
        }

    def _live(self) -> set[tuple[int, int]]:
        """The groups that can be sampled."""
        buffer, places = self.run.replay.buffer, self._places()
        return {places[position] for position in buffer.rows["position"][buffer.live()].tolist()}
