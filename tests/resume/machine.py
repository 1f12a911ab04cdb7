"""The service and the model get the same random calls, over restarts, kills, rewinds and forks, and must agree.

Besides what ``tests.resume.comparing`` compares at every call:

    what comes next   selections, reports, pushes, samples and predictions of the next steps, on a fork of the run as of
                      any step, so that the run itself goes on undisturbed
    steps again       a trainer that goes back to its checkpoint is answered as it was the first time
    a repeated call   the recorded answer, whatever happened since
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from selector.v1 import selector_service_pb2 as pb
from tests.resume import calls
from tests.resume.comparing import NUMBERS
from tests.resume.model import Entry, Model
from tests.resume.operations import Answer, Operation, answered
from tests.resume.sites import LocalSite, ProcessSite
from tests.resume.training import Training


class ResumeMachine(Training):
    """All rules, with a server in this process."""

    @precondition(lambda self: self.model.last_step >= 1)
    @rule(
        back=st.sampled_from([0, 1, 1, 2, 3, 5, 7, 9, 99]),
        named=st.booleans(),
        torn=st.sampled_from([False, False, True]),
        late=st.booleans(),
    )
    def rewind(self, back: int, named: bool, torn: bool, late: bool) -> None:
        """Back to a checkpoint; ``torn``: the replay store cannot be written just then; ``late``: something of the
        step before the checkpoint has only just arrived.
        """
        step = max(0, self.model.last_step + 1 - back)
        if late and step:
            ids = self.some(self.ids, 3, "late", step)
            self.report(step - 1, ids, salt="late")
            self.push(step - 1, [(prompt_id, step - 1, "") for prompt_id in ids], salt="late")
        torn = torn and self.site.in_process
        self.rewind_to(step, self.new_id() if named or torn else "", torn)

    @precondition(lambda self: self.forgotten(1))
    @rule(before=st.sampled_from([0, 0, 1, 4]), named=st.booleans())
    def rewind_too_far(self, before: int, named: bool) -> None:
        """Back to a step whose groups may be gone for good."""
        self.rewind_to(max(1, self.reached - self.site.window - before), self.new_id() if named else "")

    def rewind_to(self, step: int, request_id: str, torn: bool = False) -> None:
        """The trainer goes on from there, unless it is refused."""
        operation = calls.rewind(self.run_id, step, request_id)
        if self.go_back(operation, self.torn(operation) if torn else None):
            self.open = [batch for batch in self.open if batch.step < step]
            self.step = step
        self.look(self.run_id, self.model)

    def go_back(self, operation: Operation, got: Answer | None = None) -> bool:
        """Rewind, unless that was answered; False = it is refused, since groups that are needed are gone for good."""
        step = operation.request.step
        got = got or self.site.call(operation)
        if got.reason == "REWIND_BEYOND_HISTORY":
            assert self.forgotten(step)
            self.saw("refused REWIND_BEYOND_HISTORY")
            return False
        self.count_rewind(step)
        ids = {entry.operation.request_id for entry in self.model.log}
        self.compare(operation, got)
        self.dropped_ids += sorted(ids - {entry.operation.request_id for entry in self.model.log})
        return True

    def torn(self, operation: Operation) -> Answer | None:
        """Rewind while the replay store cannot be written; None = it failed, and has to be asked for again."""
        assert isinstance(self.site, LocalSite)
        with self.site.full_disk() as write:
            got = self.site.call(operation)
        assert got.reason in ("STORAGE_FAILED", "REWIND_BEYOND_HISTORY", ""), got
        if write.called:
            self.saw("rewind cut short")
        if self.step % 2:
            self.site.kill()
        return None if got.reason == "STORAGE_FAILED" else got

    def count_rewind(self, step: int) -> None:
        log = self.model.log
        dropped = [entry for entry in log if entry.dropped_by(step)]
        self.saw("operations taken back", len(dropped))
        if not dropped:
            self.saw("rewind that drops nothing")
            return
        first = log.index(dropped[0])
        late = [e for e in log[first:] if not e.dropped_by(step) and e.operation.step is not None]
        self.saw("rewind behind late operations" if late else "clean rewind")
        if self.evicted:
            self.saw("rewind after evictions")
        if self.model.run.state.replaced:
            self.saw("rewind after replaced prompts")
        if self.model.run.state.signals:
            self.saw("rewind after signals")
        if any(entry.operation.rpc == "SampleRollouts" for entry in dropped):
            self.saw("rewind of samples")

    @precondition(lambda self: self.undisturbed >= self.patience)
    @rule(kill=st.booleans(), looked_at=st.sampled_from([False, True]))
    def interrupt(self, kill: bool, looked_at: bool) -> None:
        self.interrupt_now(kill)
        if looked_at:
            self.look(self.run_id, self.model)

    def interrupt_now(self, kill: bool) -> None:
        self.undisturbed = 0
        if kill:
            self.site.kill()
        else:
            self.site.restart()
        self.saw("kills" if kill else "restarts")

    @rule(
        steps=st.integers(1, 4),
        size=st.sampled_from([2, 4]),
        reported=st.sampled_from(["all", "all", "some"]),
        signals=st.booleans(),
        named=st.booleans(),
        interrupted=st.booleans(),
    )
    def resume(self, steps: int, size: int, reported: str, signals: bool, named: bool, interrupted: bool) -> None:
        """The trainer makes a checkpoint, goes on, crashes, and does the same steps again: it is answered the same."""
        start = self.step = max(self.step, self.model.last_step + 1)
        waiting = list(self.open)
        habits = (size, reported, True, signals, named)
        first = [self.train_step(*habits) for _ in range(steps)]
        if interrupted and self.undisturbed >= self.patience:
            self.interrupt_now(kill=signals)
        if not self.go_back(calls.rewind(self.run_id, start)):
            return
        self.step, self.open = start, waiting
        again = [self.train_step(*habits) for _ in range(steps)]
        assert again == first, f"first {first}\nagain {again}"
        self.saw("steps taken again", steps)

    @precondition(lambda self: self.model.log)
    @rule(which=st.integers(0, 10**6))
    def repeat(self, which: int) -> None:
        """A call that was answered comes again, as from a client whose answer was lost: it is answered alike."""
        entry = self.model.log[which % len(self.model.log)]
        expected = _repeated(entry)
        if expected is None:
            return
        operation = entry.operation.changed(run_id=self.run_id)
        got = self.site.call(operation)
        if operation.rpc == "SampleRollouts" and got.reason == "REWIND_BEYOND_HISTORY":
            assert self.forgotten(operation.request.step)
            return
        assert got == expected, f"{operation}:\nservice {got}\nrecorded {expected}"
        self.saw("operations")
        self.saw("repeated calls")

    @precondition(lambda self: self.model.log)
    @rule(which=st.integers(0, 10**6), count=st.integers(1, 2))
    def reuse(self, which: int, count: int) -> None:
        """The id of one call under another call: refused, or accepted where the id is not remembered."""
        request_id = self.model.log[which % len(self.model.log)].operation.request_id
        if request_id:
            ids = self.some(self.ids, count, "reuse", which)
            self.report(self.step, ids, salt="reuse", request_id=request_id)

    # --- looking, and looking ahead ---------------------------------------------------------------------------------

    @precondition(lambda self: self.unseen >= 5)
    @rule(seed=st.integers(0, 9))
    def look_closely(self, seed: int) -> None:
        self.look(self.run_id, self.model, self.some(self.ids, 3, "explain", seed))

    @precondition(lambda self: self.model.last_step >= 2)
    @rule(back=st.sampled_from([0, 0, 0, 1, 2, 4, 8, 99]), stay=st.sampled_from([False, False, True]))
    def fork(self, back: int, stay: bool) -> None:
        """A fork as of some step is followed for a while, or from now on (``stay``)."""
        step = max(0, self.model.last_step + 1 - back)
        run_id = f"fork-{next(NUMBERS)}"
        operation = calls.fork(self.run_id, run_id, step)
        got = self.site.call(operation)
        if got.reason == "REWIND_BEYOND_HISTORY":
            assert self.forgotten(step)
            return
        model = self.model.fork(step)
        shown = model.look(calls.looks(run_id)[0])
        assert got == answered(pb.ForkRunResponse(run=shown.message.run)), f"{operation}: {got}"
        self.saw("operations")
        self.saw("forks")
        if stay:
            self.saw("forks that are stayed with")
            left, self.run_id = self.run_id, run_id
            self.model.close()
            self.model, self.step = model, step
            self.open = [batch for batch in self.open if batch.step < step]
            self.site.call(calls.delete(left))
        else:
            self.follow(run_id, model, step)
            model.close()
            self.site.call(calls.delete(run_id))
        self.look(self.run_id, self.model)

    def follow(self, run_id: str, model: Model, start: int) -> None:
        """A trainer takes the next steps of a fork."""

        def both(operation: Operation) -> Answer:
            got, expected = self.site.call(operation), model.apply(operation)
            assert got == expected, f"on a fork, {operation}:\nservice {got}\nmodel   {expected}"
            self.saw("operations")
            self.saw("operations on forks")
            return got

        for step in range(start, start + self.ahead):
            if model.run.state.reference_due(step):
                drawn = both(calls.select(run_id, step, 3, reference=True))
                if not drawn.reason and drawn.message.prompt_ids:
                    both(calls.report(run_id, step, drawn.message.prompt_ids, reference=True, salt="fork"))
            answer = both(calls.select(run_id, step, 4))
            ids = list(answer.message.prompt_ids) if not answer.reason else []
            both(calls.sample(run_id, step, 3))
            if ids:
                both(calls.report(run_id, step, ids, salt="fork"))
                both(calls.push(run_id, step, [(prompt_id, step, "") for prompt_id in ids], salt="fork"))
            if step % 5 == 0 and ids:
                both(calls.training(run_id, step, {"entropy": ids}, "fork"))
            self.saw("steps followed on forks")
            predicted = calls.looks(run_id)[1]
            got, expected = self.site.call(predicted), model.look(predicted)
            assert got == expected, f"on a fork, {predicted}:\nservice {got}\nmodel   {expected}"
            self.saw("operations")
        self.look(run_id, model, self.some(self.ids, 2, "fork", start))


class ProcessMachine(ResumeMachine):
    """The same with a server that is a process of its own, and is really killed."""

    make_site = ProcessSite
    # Starting a process takes a second.
    patience = 40


def _repeated(entry: Entry) -> Answer | None:
    """How the call must be answered when it comes again; None = it would be another call."""
    operation, answer = entry.operation, entry.answer
    if operation.rpc in ("SelectBatch", "SampleRollouts"):
        return answer
    named = operation.request_id and (not entry.inherited or operation.rpc == "PushRollouts")
    if not named:
        return None
    if hasattr(answer.message, "already_applied"):
        message = type(answer.message)()
        message.CopyFrom(answer.message)
        message.already_applied = True
        return answered(message)
    return answer
