"""ReplayRun and the naive model get the same random calls and must agree, across restarts, rewinds and forks."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from selector.config import ReplayConfig
from selector.replay import (
    CheckedGroup,
    GroupRefused,
    ReplayRun,
    ReplayStore,
    RewindBeyondHistory,
    SampleDiffers,
    SampleOrder,
    SampleRequest,
    replay_run,
)
from tests.replay.groups import Answer, payload, sampled
from tests.replay.model import Conflict, Held, NaiveReplay, PushedGroup

WINDOW = 2
SEED = 11

configs = st.builds(
    ReplayConfig,
    capacity_groups=st.integers(2, 8),
    capacity_bytes=st.sampled_from([0, 0, 150, 300]),
    max_age_steps=st.sampled_from([0, 2, 4]),
    max_uses=st.sampled_from([0, 1, 2]),
    informative_only=st.booleans(),
    newest_per_prompt=st.booleans(),
)
# Steps mostly move on, and sometimes an event is late.
strides = st.sampled_from([-3, -1, -1, 0, 0, 1, 1, 1, 2, 2])


def groups_for(step: int) -> st.SearchStrategy[list[PushedGroup]]:
    def build(prompt: int, lag: int, informative: bool, explicit: bool, content: int) -> PushedGroup:
        version = max(0, step - lag)
        group_id = f"g{content % 4}" if explicit else f"p{prompt}@{version}"
        data = payload(content, size=30 + 10 * content)
        return PushedGroup(f"p{prompt}", group_id, version, informative, data)

    one = st.builds(
        build,
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([True, False, False]),
        st.sampled_from([0, 0, 0, 0, 1, 2, 3, 5]),
    )
    return st.lists(one, min_size=1, max_size=4)


class ReplayMachine(RuleBasedStateMachine):
    """One run in one store; every rule is applied to both sides."""

    @initialize(config=configs, requests_kept=st.sampled_from([3, 10_000]))
    def create(self, config: ReplayConfig, requests_kept: int) -> None:
        self.kept = mock.patch.object(replay_run, "REQUESTS_KEPT", requests_kept)
        self.kept.start()
        fast = Path("/dev/shm")
        self.path = Path(tempfile.mkdtemp(dir=fast if fast.is_dir() else None))
        self.config = config
        self.model = NaiveReplay(config, SEED)
        self.step = 0
        # Rewinds to this step or an earlier one may be impossible.
        self.forgotten = -1
        self.epoch = 0
        self.answers: dict[int, tuple[SampleRequest, Answer]] = {}
        self.open()

    def open(self) -> None:
        self.store = ReplayStore(self.path, map_bytes=64 << 20)
        self.run = ReplayRun(self.store, 7, self.config, SEED, WINDOW)

    def saw(self, step: int) -> None:
        self.step = max(self.step, step)
        self.forgotten = max(self.forgotten, self.step - WINDOW)

    @rule(stride=strides, data=st.data())
    def push(self, stride: int, data: st.DataObject) -> None:
        step = max(0, self.step + stride)
        groups = data.draw(groups_for(step))
        arrivals = [
            (CheckedGroup(g.prompt_id, g.group_id, g.policy_version, 0.5, g.informative), g.payload) for g in groups
        ]
        try:
            expected = self.model.push(step, groups)
        except Conflict:
            with pytest.raises(GroupRefused):
                self.run.push(arrivals, step)
            return
        result = self.run.push(arrivals, step)
        assert {name: getattr(result, name) for name in expected} == expected
        self.saw(step)

    @rule(
        stride=strides,
        count=st.integers(1, 5),
        order=st.sampled_from(SampleOrder),
        min_age=st.sampled_from([0, 0, 1]),
        exclude=st.sampled_from([frozenset(), frozenset({"p0"}), frozenset({"p1", "p9"})]),
        informative=st.booleans(),
    )
    def sample(
        self, stride: int, count: int, order: SampleOrder, min_age: int, exclude: frozenset[str], informative: bool
    ) -> None:
        step = max(0, self.step + stride)
        if step in self.answers:
            return
        request = SampleRequest(step, count, order, min_age, exclude, informative)
        eligible = len(self.model.eligible(self.model.state(), request))
        assert self.run.eligible_count(request) == eligible
        expected = self.model.sample(request)
        sample = sampled(self.run, request)
        assert [(g.group_id, g.payload, g.age_steps, g.times_sampled) for g in sample.groups] == [
            (h.group.group_id, h.group.payload, step - h.group.policy_version, h.uses) for h in expected
        ]
        assert (sample.eligible, sample.shortfall) == (eligible, count - len(expected))
        uniform = order is SampleOrder.UNIFORM
        assert {g.probability for g in sample.groups} <= {min(1.0, count / max(1, eligible)) if uniform else 1.0}
        if expected:
            self.answers[step] = (request, sample)
            self.saw(step)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def sample_again(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.answers)))
        request, answer = self.answers[step]
        with pytest.raises(SampleDiffers):
            sampled(self.run, replace(request, count=request.count + 1))
        try:
            assert sampled(self.run, request) == answer
        except RewindBeyondHistory:
            assert step <= self.forgotten

    @rule()
    def restart(self) -> None:
        before = self.run.stats()
        self.store.close()
        self.open()
        assert self.run.stats() == replace(before, counters=self.run.stats().counters)

    @precondition(lambda self: self.step >= 3)
    @rule(back=st.sampled_from([-1, 0, 1, 2, 3, 4, 6]))
    def rewind(self, back: int) -> None:
        step = max(0, self.step - back)
        self.epoch += 1
        before = self.run.stats()
        try:
            self.run.rewind(step, self.epoch)
        except RewindBeyondHistory:
            assert step <= self.forgotten
            assert self.run.stats() == before
            self.epoch -= 1
            return
        self.model.rewind(step)
        self.answers = {at: answer for at, answer in self.answers.items() if at < step}
        self.step = max([event.step for _, event in self.model.log], default=0)

    @rule(back=st.integers(0, 4))
    def fork(self, back: int) -> None:
        step = max(0, self.step - back)
        try:
            forked = self.run.fork(8, step)
        except RewindBeyondHistory:
            assert step <= self.forgotten
            return
        assert self.live_of(forked) == [self.described(held) for held in self.model.state(before_step=step).live]

    @invariant()
    def same_groups_are_live(self) -> None:
        assert self.live_of(self.run) == [self.described(held) for held in self.model.state().live]

    @staticmethod
    def described(held: Held) -> tuple[str, str, int, int, int, int]:
        group = held.group
        return (group.prompt_id, group.group_id, group.policy_version, held.seq, held.uses, held.pushed_step)

    @staticmethod
    def live_of(run: ReplayRun) -> list[tuple[str, str, int, int, int, int]]:
        buffer = run.buffer
        rows = buffer.rows[buffer.live()]
        names = ("position", "policy_version", "seq", "uses", "pushed_step")
        columns = zip(*(rows[name].tolist() for name in names), strict=True)
        return [(*buffer.identities[position], *rest) for position, *rest in columns]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.kept.stop()
            self.store.close()
            shutil.rmtree(self.path)


ReplayMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAgainstModel = ReplayMachine.TestCase
