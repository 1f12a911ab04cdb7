"""What clients do to runs. Each operation knows its calls, and what its answer must be and do according to the model.

An operation whose answer was lost is sent again under the same request id until it is answered. ``apply`` then must
hold all the same, whether the service had applied it the first time or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf.message import Message

from selector.replay import SampleOrder, SampleRequest
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import selector_service_pb2 as pb
from tests.crash.model import (
    TRAIN,
    Profile,
    PromptFacts,
    Reported,
    RunModel,
    Sampled,
    Selected,
    Trained,
    first_difference,
    seen,
    with_status,
)
from tests.crash.observation import sampled_rows
from tests.crash.service import Mismatch, Refused
from tests.replay.model import NaiveReplay, PushedGroup

World = dict[str, RunModel]

_BEYOND = "REWIND_BEYOND_HISTORY"
_numbers = itertools.count()


def fresh_id() -> str:
    """A request id that no other operation has."""
    return f"request-{next(_numbers)}"


def expect(what: str, expected: Any, found: Any) -> None:
    """Equal, or Mismatch."""
    difference = first_difference(expected, found)
    if difference:
        raise Mismatch(f"{what}{difference}")


@dataclass
class Operation:
    """One operation.

    Attributes:
        requests: sent at once, each of its own: the same request twice, or the shards of one selection.
    """

    method: ClassVar[str]
    # Whether an error can be the right answer; ``apply`` then sees to it.
    refusable: ClassVar[bool] = False
    # Messages, whose fields differ from one kind of operation to the next.
    requests: list[Any]

    def run_ids(self) -> list[str]:
        """Runs that it may change."""
        return [self.requests[0].run_id]

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        """Check the answers against the model, and do to it what the service did."""
        raise NotImplementedError

    def describe(self) -> str:
        text = str(self.requests[0]).replace("\n", " ")
        return f"{self.method} {text[:160]}"

    def _model(self, world: World) -> RunModel:
        return world[self.run_ids()[0]]

    def _same(self, answers: Sequence[Any]) -> Any:
        """One answer of several equal ones; only whether it had been applied before may differ."""
        plain = []
        for answer in answers:
            if isinstance(answer, Message) and "already_applied" in answer.DESCRIPTOR.fields_by_name:
                kept = type(answer)()
                kept.CopyFrom(answer)
                kept.ClearField("already_applied")
                answer = kept
            plain.append(answer)
        for other in plain[1:]:
            expect(f"{self.method}: the same request was answered in two ways: ", str(plain[0]), str(other))
        return plain[0]


@dataclass
class Create(Operation):
    """CreateRun."""

    method = "CreateRun"
    profile: Profile

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        run_id = self.run_ids()[0]
        replay = NaiveReplay(self.profile.replay, self.profile.config.seed)
        world[run_id] = RunModel(run_id, self.profile, replay)
        for answer in answers:
            expect(f"CreateRun {run_id}: ", run_id, answer.run.run_id)


@dataclass
class Delete(Operation):
    """DeleteRun."""

    method = "DeleteRun"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        del world[self.run_ids()[0]]


@dataclass
class Fork(Operation):
    """ForkRun."""

    method = "ForkRun"
    refusable = True

    def run_ids(self) -> list[str]:
        request = self.requests[0]
        return [request.run_id, request.new_run_id]

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        request = self.requests[0]
        source = world[request.run_id]
        if _refused_history(source, request.step, answers[0]):
            return
        world[request.new_run_id] = source.fork(request.new_run_id, request.step)


@dataclass
class Rewind(Operation):
    """RewindRun."""

    method = "RewindRun"
    refusable = True

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer, model, step = self._same(answers), self._model(world), self.requests[0].step
        if _refused_history(model, step, answer):
            return
        found = [
            answer.dropped_selections,
            answer.dropped_reports,
            answer.dropped_replay_groups,
            answer.restored_replay_groups,
        ]
        expect(f"RewindRun {model.run_id} to {step}: ", list(model.rewind(step)), found)


def _question(facts: PromptFacts) -> tuple[str, bytes]:
    prompt = pb.Prompt.FromString(facts.content)
    return prompt.text, prompt.embedding


@dataclass
class Register(Operation):
    """RegisterPrompts."""

    method = "RegisterPrompts"
    refusable = True

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer, model, request = self._same(answers), self._model(world), self.requests[0]
        counts = dict.fromkeys(("added", "unchanged", "replaced", "ineligible"), 0)
        placed: dict[str, PromptFacts] = {}
        contradicts = False
        for prompt in request.prompts:
            limit = model.profile.config.max_prompt_tokens
            too_long = 0 < limit < prompt.token_count
            facts = PromptFacts(
                prompt.SerializeToString(deterministic=True),
                pb.PROMPT_STATUS_INELIGIBLE if too_long else pb.PROMPT_STATUS_ACTIVE,
            )
            known = model.prompts.get(prompt.prompt_id)
            back = known is not None and known.status == pb.PROMPT_STATUS_RETIRED and request.replace
            if known is not None and known.content == facts.content and not back:
                counts["unchanged"] += 1
                continue
            contradicts |= known is not None and known.content != facts.content
            counts["added" if known is None else "replaced"] += 1
            counts["ineligible"] += too_long
            placed[prompt.prompt_id] = facts
        if contradicts and not request.replace:
            expect(f"{self.describe()}: ", "PROMPT_CONTENT_DIFFERS", getattr(answer, "reason", "no refusal"))
            return
        expect(f"{self.describe()}: ", counts, {name: getattr(answer, name) for name in counts})
        for prompt_id, facts in placed.items():
            if prompt_id in model.prompts and _question(model.prompts[prompt_id]) != _question(facts):
                model.replaced.add(prompt_id)
            model.prompts[prompt_id] = facts


@dataclass
class Retire(Operation):
    """RetirePrompts."""

    method = "RetirePrompts"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer, model = self._same(answers), self._model(world)
        asked = set(self.requests[0].prompt_ids)
        fresh = {p for p in asked if model.prompts[p].status != pb.PROMPT_STATUS_RETIRED}
        expect(f"{self.describe()}: ", [len(fresh), len(asked - fresh)], [answer.retired, answer.already_retired])
        for prompt_id in fresh:
            model.prompts[prompt_id] = with_status(model.prompts[prompt_id], pb.PROMPT_STATUS_RETIRED)


@dataclass
class Select(Operation):
    """SelectBatch: whole, or as all shards at once."""

    method = "SelectBatch"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        model = self._model(world)
        parts = {(r.shard.index, max(r.shard.count, 1)): a for r, a in zip(self.requests, answers, strict=True)}
        for sent, answer in zip(self.requests, answers, strict=True):
            part = parts[sent.shard.index, max(sent.shard.count, 1)]
            expect(f"{self.describe()}, sent twice: ", part.SerializeToString(), answer.SerializeToString())
        count = next(iter(parts))[1]
        rows: list[Any] = [None] * sum(len(answer.prompt_ids) for answer in parts.values())
        for (index, _), a in parts.items():
            columns = (a.prompt_ids, a.arms, a.probabilities, a.predicted_difficulties, a.standard_errors)
            rows[index::count] = zip(*columns, strict=True)
        self._check(model, [row[0] for row in rows], list(parts.values()))
        request = self.requests[0]
        raw = tuple((r, a.SerializeToString()) for r, a in zip(self.requests, answers, strict=True))
        model.events.append(
            Selected(request.step, request.purpose, request.round, tuple(rows), len(model.prompts), raw)
        )

    def _check(self, model: RunModel, chosen: list[str], parts: list[Any]) -> None:
        request = self.requests[0]
        what = f"{self.describe()} chose {chosen}: "
        training = request.purpose == TRAIN
        free = model.active() - model.leased(request.step) - set(request.exclude_prompt_ids)
        free -= model.selected_at(request.step) if training else set()
        expect(f"{what} twice the same prompt", len(set(chosen)), len(chosen))
        expect(f"{what} leased, excluded or retired prompts", [], sorted(set(chosen) - free))
        replay = 0
        if training and not request.fresh_only and request.round == 0:
            replay = int((1 - model.replay.config.fresh_fraction) * request.batch_size + 1e-9)
            eligible = model.replay.eligible(model.replay.state(), SampleRequest(request.step, 1))
            replay = replay if len(eligible) >= replay else 0
        fresh = request.batch_size - replay
        expect(f"{what} replay_groups", replay, sum(part.replay_groups for part in parts))
        expect(f"{what} shortfall", max(0, fresh - len(free)), sum(part.shortfall for part in parts))
        expect(f"{what} size", min(fresh, len(free)), len(chosen))


@dataclass
class Report(Operation):
    """ReportOutcomes."""

    method = "ReportOutcomes"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer, model, request = self._same(answers), self._model(world), self.requests[0]
        lost = (pb.ROLLOUT_STATUS_ABORTED, pb.ROLLOUT_STATUS_UNSCORABLE)
        groups = []
        skipped = 0
        for group in request.outcomes:
            statuses = list(group.statuses) or [pb.ROLLOUT_STATUS_COMPLETED] * len(group.outcomes)
            counted = tuple(o for o, status in zip(group.outcomes, statuses, strict=True) if status not in lost)
            skipped += len(statuses) - len(counted)
            groups.append((group.prompt_id, counted))
        full = [outcomes for _, outcomes in groups if outcomes]
        expected = {
            "applied_groups": len(full),
            "informative_groups": sum(max(outcomes) - min(outcomes) > 1e-6 for outcomes in full),
            "empty_groups": len(groups) - len(full),
            "skipped_rollouts": skipped,
        }
        expect(f"{self.describe()}: ", expected, {name: getattr(answer, name) for name in expected})
        model.events.append(Reported(request.step, request.purpose, tuple(groups)))


@dataclass
class Train(Operation):
    """ReportTraining."""

    method = "ReportTraining"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        self._same(answers)
        request = self.requests[0]
        names = ("effective_sample_size", "max_importance_weight", "clip_fraction")
        facts = tuple((name, getattr(request, name)) for name in names if request.HasField(name))
        self._model(world).events.append(Trained(request.step, facts))


@dataclass
class Push(Operation):
    """PushRollouts."""

    method = "PushRollouts"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer, model, request = self._same(answers), self._model(world), self.requests[0]
        groups = [
            PushedGroup(
                g.prompt_id,
                g.group_id,
                g.policy_version,
                max(g.outcomes) - min(g.outcomes) > 1e-6,
                g.SerializeToString(),
            )
            for g in request.groups
        ]
        counts = model.replay.push(request.step, groups)
        # The answer does not tell apart why a group came too late.
        counts["outdated"] += counts.pop("too_old")
        expect(f"{self.describe()}: ", counts, {name: getattr(answer, name) for name in counts})
        model.highest = max(model.highest, request.step)


@dataclass
class Sample(Operation):
    """SampleRollouts."""

    method = "SampleRollouts"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        model, request = self._model(world), self.requests[0]
        raw = [tuple(frame.SerializeToString() for frame in frames) for frames in answers]
        for other in raw[1:]:
            expect(f"{self.describe()}, sent twice: ", raw[0], other)
        asked = sample_request(request)
        state = model.replay.state()
        eligible = len(model.replay.eligible(state, asked))
        picked = model.replay.sample(asked)
        rows = [seen(held, asked.step, held.uses) for held in picked]
        expect(f"{self.describe()}: ", rows, sampled_rows(answers[0]))
        last = answers[0][-1]
        expect(f"{self.describe()} eligible", eligible, last.eligible_groups)
        expect(f"{self.describe()} shortfall", asked.count - len(picked), last.shortfall)
        if picked:
            model.samples.append(Sampled(asked.step, request, raw[0]))
            model.highest = max(model.highest, asked.step)


@dataclass
class Predict(Operation):
    """PredictDifficulty of the whole pool. It changes nothing; an uninterrupted service must answer the same."""

    method = "PredictDifficulty"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer = self._same(answers)
        expect(f"{self.describe()}: ", list(self._model(world).prompts), list(answer.prompt_ids))


@dataclass
class Quality(Operation):
    """GetSelectionQuality. It changes nothing; an uninterrupted service must answer the same."""

    method = "GetSelectionQuality"

    def apply(self, world: World, answers: Sequence[Any]) -> None:
        answer = self._same(answers)
        held = self._model(world).replay.state().live
        expect(f"{self.describe()}: ", len(held), answer.replay_groups)


def sample_request(request: Any) -> SampleRequest:
    """The request in the terms of the model."""
    newest = request.order == replay_pb.SAMPLE_ORDER_NEWEST
    return SampleRequest(
        request.step,
        request.count,
        SampleOrder.NEWEST if newest else SampleOrder.UNIFORM,
        request.min_age_steps,
        frozenset(request.exclude_prompt_ids),
        request.informative_only,
    )


def _refused_history(model: RunModel, step: int, answer: Any) -> bool:
    """Whether a rewind or fork was refused because groups that left long ago are gone."""
    if not isinstance(answer, Refused):
        return False
    if answer.reason != _BEYOND or step > model.highest - REWIND_WINDOW:
        raise Mismatch(f"{model.run_id} to step {step}: {answer.reason}: {answer.message}")
    return True


# Steps for which groups that left can come back; the server is started with the same.
REWIND_WINDOW = 4
