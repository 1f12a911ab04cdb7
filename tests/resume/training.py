"""Rules of a trainer: whole steps, and the calls of a step in any order, ahead of their turn and late."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.resume import calls
from tests.resume.comparing import Comparison
from tests.resume.operations import Answer


class Training(Comparison):
    """What happens to steps and to the pool."""

    @rule(
        steps=st.integers(1, 4),
        size=st.sampled_from([2, 4, 6]),
        reported=st.sampled_from(["all", "all", "all", "some", "none"]),
        replays=st.booleans(),
        signals=st.sampled_from([False, False, True]),
        named=st.booleans(),
    )
    def train(self, steps: int, size: int, reported: str, replays: bool, signals: bool, named: bool) -> None:
        """Some whole steps."""
        for _ in range(steps):
            self.train_step(size, reported, replays, signals, named)

    def train_step(self, size: int, reported: str, replays: bool, signals: bool, named: bool) -> list[Answer]:
        """One of them; what it was answered."""
        step, done = self.step, self.answers
        done.clear()
        self.step += 1

        def name(kind: str) -> str:
            return f"{kind}-{step}" if named else ""

        if self.model.run.state.reference_due(step):
            drawn = self.select(step, 4, reference=True, request_id=name("reference"))
            if not drawn.reason and drawn.message.prompt_ids:
                ids = list(drawn.message.prompt_ids)
                self.report(step, ids, reference=True, request_id=name("report-reference"))
        answer = self.select(step, size, request_id=name("select"))
        ids = list(answer.message.prompt_ids) if not answer.reason else []
        if replays:
            self.do(calls.sample(self.run_id, step, max(1, answer.message.replay_groups if ids else 2)))
        told = ids if reported == "all" else ids[: len(ids) // 2] if reported == "some" else []
        if told:
            self.report(step, told, request_id=name("report"))
        if replays and ids:
            self.push(step, [(prompt_id, step, "") for prompt_id in ids], request_id=name("push"))
        if signals and ids:
            signal = {"entropy": ids, **({"length": ids[:1]} if step % 2 else {})}
            self.do(calls.training(self.run_id, step, signal, request_id=name("training")))
            self.saw("signals")
        return list(done)

    @rule(
        offset=st.sampled_from([-2, -1, 0, 0, 1, 2, 4]),
        size=st.integers(1, 8),
        round_=st.sampled_from([0, 0, 1, 2]),
        reference=st.sampled_from([False, False, True]),
        excluded=st.sampled_from([0, 0, 2, 5]),
        fresh_only=st.booleans(),
        shard=st.sampled_from([None, None, (0, 2), (1, 3)]),
        free=st.booleans(),
    )
    def select_any(
        self,
        offset: int,
        size: int,
        round_: int,
        reference: bool,
        excluded: int,
        fresh_only: bool,
        shard: tuple[int, int] | None,
        free: bool,
    ) -> None:
        """A selection ahead of the others or behind them, a further round, or a part of one."""
        step = max(0, self.step + offset)
        fields: dict[str, Any] = {"round": round_, "exclude_prompt_ids": self.some(self.ids, excluded, step, size)}
        if shard is not None:
            fields["shard"] = pb.Shard(index=shard[0], count=shard[1])
        if not reference:
            fields["fresh_only"] = fresh_only
        if step > self.model.last_step + 1:
            self.saw("selection ahead")
        self.select(step, size, reference=reference, request_id=self.free_id() if free else "", **fields)

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 7),
        part=st.sampled_from([1, 2, 99]),
        at=st.sampled_from([0, 0, 0, -1, 1, 3]),
        aborted=st.sampled_from([0, 0, 0, 1, 99]),
        named=st.booleans(),
    )
    def report_any(self, which: int, part: int, at: int, aborted: int, named: bool) -> None:
        """Outcomes of any open selection: late, in parts, under another step, or of rollouts that never ended."""
        batch = self.open[which % len(self.open)]
        step = max(0, batch.step + at)
        if step < self.model.last_step:
            self.saw("late report")
        self.report(
            step,
            batch.waiting[:part],
            reference=batch.reference,
            salt=part,
            aborted=aborted,
            request_id=self.new_id() if named else "",
        )

    @rule(count=st.integers(1, 4), offset=st.sampled_from([-3, -1, 0, 1]), seed=st.integers(0, 9))
    def report_strangers(self, count: int, offset: int, seed: int) -> None:
        """Outcomes of prompts that nobody selected, or not any more."""
        self.report(max(0, self.step + offset), self.some(self.ids, count, "strangers", seed), salt=seed)

    @rule(offset=st.sampled_from([-2, 0, 0, 1]), names=st.integers(0, 3), named=st.booleans(), seed=st.integers(0, 9))
    def training_any(self, offset: int, names: int, named: bool, seed: int) -> None:
        signals = {f"signal-{i}": self.some(self.ids, 3, "signal", seed, i) for i in range(names)}
        request_id = self.new_id() if named else ""
        self.do(calls.training(self.run_id, max(0, self.step + offset), signals, seed, request_id))
        if names:
            self.saw("signals")

    @rule(
        offset=st.sampled_from([-3, -1, 0, 0, 1]),
        lags=st.lists(st.integers(0, 5), min_size=1, max_size=6),
        seed=st.integers(0, 9),
        salt=st.sampled_from(["", "", "other"]),
        ids=st.sampled_from(["", "", "", "g0", "g1"]),
        named=st.booleans(),
        frames=st.sampled_from([1, 1, 3]),
    )
    def push_any(self, offset: int, lags: list[int], seed: int, salt: str, ids: str, named: bool, frames: int) -> None:
        """Groups of any age; some are there already, with the same content or with other."""
        step = max(0, self.step + offset)
        prompts = self.some(self.ids, len(lags), "push", seed)
        groups = [
            (p, max(0, step - lag), ids if i == 0 else "")
            for i, (p, lag) in enumerate(zip(prompts, lags, strict=False))
        ]
        if step < self.model.run.replay.buffer.log.step:
            self.saw("late push")
        self.push(step, groups, salt=salt, request_id=self.new_id() if named else "", frames=frames)

    @rule(
        offset=st.sampled_from([-3, -1, 0, 0, 1]),
        count=st.integers(1, 6),
        newest=st.booleans(),
        min_age=st.sampled_from([0, 0, 1, 2]),
        excluded=st.sampled_from([0, 0, 3]),
        informative=st.booleans(),
        shard=st.sampled_from([None, None, (1, 2)]),
    )
    def sample_any(
        self,
        offset: int,
        count: int,
        newest: bool,
        min_age: int,
        excluded: int,
        informative: bool,
        shard: tuple[int, int] | None,
    ) -> None:
        step = max(0, self.step + offset)
        fields: dict[str, Any] = {
            "order": replay_pb.SAMPLE_ORDER_NEWEST if newest else replay_pb.SAMPLE_ORDER_UNIFORM,
            "min_age_steps": min_age,
            "exclude_prompt_ids": self.some(self.ids, excluded, "sample", step),
            "informative_only": informative,
        }
        if shard is not None:
            fields["shard"] = pb.Shard(index=shard[0], count=shard[1])
        operation = calls.sample(self.run_id, step, count, **fields)
        got = self.site.call(operation)
        if got.reason == "REWIND_BEYOND_HISTORY":
            # The groups that the step was answered with are gone for good.
            assert self.forgotten(step)
            self.saw("sample beyond history")
            return
        answer = self.compare(operation, got)
        if not answer.reason and answer.message.groups:
            self.saw("groups sampled", len(answer.message.groups))

    @rule(steps=st.integers(1, 4))
    def skip_steps(self, steps: int) -> None:
        """The trainer goes on without asking, and leases expire."""
        if self.open:
            self.saw("leases left to expire")
        self.step += steps

    @rule(count=st.integers(1, 3), known=st.integers(0, 2), named=st.booleans(), frames=st.sampled_from([1, 2]))
    def register_more(self, count: int, known: int, named: bool, frames: int) -> None:
        fresh = [f"later{len(self.ids) + i}" for i in range(count)]
        known_ids = self.some(self.ids, known, "known", len(self.ids))
        self.add([*fresh, *known_ids], frames=frames, request_id=self.new_id() if named else "")

    @rule(count=st.integers(1, 3), seed=st.integers(0, 9), replace=st.sampled_from([True, True, True, False]))
    def replace_prompts(self, count: int, seed: int, replace: bool) -> None:
        """Other content under the same ids: what was known of them no longer holds."""
        before = len(self.model.run.state.replaced)
        self.add(self.some(self.ids, count, "replace", seed), salt=seed, replace=replace)
        if len(self.model.run.state.replaced) > before:
            self.saw("prompts replaced")

    @rule(count=st.integers(1, 3), seed=st.integers(0, 9))
    def redescribe_prompts(self, count: int, seed: int) -> None:
        """Another domain, length or prior of the same questions: what is known of them still holds."""
        before = len(self.model.run.state.replaced)
        answer = self.add(self.some(self.ids, count, "redescribe", seed), said=seed, replace=True)
        assert len(self.model.run.state.replaced) == before
        if not answer.reason and answer.message.replaced:
            self.saw("prompts described anew")

    @rule(
        count=st.integers(1, 4),
        seed=st.integers(0, 9),
        offset=st.sampled_from([None, None, -2, 0, 0, 1]),
        named=st.booleans(),
        unknown=st.booleans(),
    )
    def import_priors(self, count: int, seed: int, offset: int | None, named: bool, unknown: bool) -> None:
        ids = [*self.some(self.ids, count, "priors", seed), *(["nobody"] if unknown else [])]
        step = None if offset is None else max(0, self.step + offset)
        request_id = self.new_id() if named else ""
        answer = self.do(calls.import_priors(self.run_id, ids, step, salt=seed, request_id=request_id))
        if not answer.reason:
            self.saw("priors imported for good" if step is None else "priors imported at a step")

    @rule(count=st.integers(1, 2), seed=st.integers(0, 9), named=st.booleans())
    def retire(self, count: int, seed: int, named: bool) -> None:
        ids = self.some(self.ids, count, "retire", seed)
        self.do(calls.retire(self.run_id, ids, self.new_id() if named else ""))
