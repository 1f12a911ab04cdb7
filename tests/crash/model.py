"""What was acknowledged of one run, and what must therefore be seen of it, as plainly as it can be said.

A run is its prompts and a list of events, folded anew for every question. Nothing is ever deleted: a rewind is a
shorter list, a fork a shorter copy. The replay buffer is the naive one that the replay store is tested against as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selector.config import ReplayConfig
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from tests.replay.model import Held, NaiveReplay

TRAIN, REFERENCE = pb.PURPOSE_TRAIN, pb.PURPOSE_REFERENCE


@dataclass(frozen=True)
class Profile:
    """How a run is configured; ``replay`` says the same as ``config.replay``.

    Attributes:
        texts: prompts are sent as texts and embedded by the service; else with embeddings.
    """

    name: str
    config: run_pb2.RunConfig
    replay: ReplayConfig
    texts: bool = False


@dataclass(frozen=True)
class PromptFacts:
    """A prompt as registered; ``content`` is the whole message."""

    content: bytes
    status: int


@dataclass(frozen=True)
class Selected:
    """A batch: (prompt, arm, probability, difficulty, standard error) each, and every answer about it as it came."""

    step: int
    purpose: int
    round: int
    rows: tuple[tuple[str, int, float, float, float], ...]
    pool_size: int
    answers: tuple[tuple[pb.SelectBatchRequest, bytes], ...]


@dataclass(frozen=True)
class Reported:
    """Outcomes that counted, per prompt; none for a group of which every rollout was aborted."""

    step: int
    purpose: int
    groups: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Trained:
    """What the trainer said about a step."""

    step: int
    facts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Sampled:
    """A sample with the request and the answer as it came."""

    step: int
    request: Any
    answer: tuple[bytes, ...]


Event = Selected | Reported | Trained


@dataclass
class RunModel:
    """One run.

    Attributes:
        events: in order of acknowledgement.
        highest: largest step that the replay log ever had: groups that left are kept for a window behind it.
        reached: largest step in any call so far, answered or not.
    """

    run_id: str
    profile: Profile
    replay: NaiveReplay
    prompts: dict[str, PromptFacts] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    samples: list[Sampled] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    forked: tuple[str, int] = ("", 0)
    highest: int = -1
    reached: int = 0

    @property
    def last_step(self) -> int:
        return max((event.step for event in self.events), default=-1)

    @property
    def replay_step(self) -> int:
        return max((event.step for _, event in self.replay.log), default=-1)

    def copy(self) -> RunModel:
        """An independent copy; events and payloads never change and are shared."""
        replay_copy = NaiveReplay(self.replay.config, self.replay.seed, list(self.replay.log), self.replay.events)
        made = copy.copy(self)
        made.replay, made.prompts, made.events = replay_copy, dict(self.prompts), list(self.events)
        made.samples, made.replaced = list(self.samples), set(self.replaced)
        return made

    def rewind(self, step: int) -> tuple[int, int, int, int]:
        """Drop everything of ``step`` and later: (selections, reports, replay groups gone, replay groups back)."""
        dropped = [event for event in self.events if event.step >= step]
        before = {held.origin for held in self.replay.state().live}
        self.events = [event for event in self.events if event.step < step]
        self.samples = [sample for sample in self.samples if sample.step < step]
        self.replay.rewind(step)
        after = {held.origin for held in self.replay.state().live}
        counts = [sum(isinstance(event, kind) for event in dropped) for kind in (Selected, Reported)]
        return counts[0], counts[1], len(before - after), len(after - before)

    def fork(self, run_id: str, step: int) -> RunModel:
        """The run that a fork before ``step`` makes."""
        made = self.copy()
        made.rewind(step)
        made.run_id, made.forked = run_id, (self.run_id, step)
        return made

    def open(self) -> dict[str, list[tuple[int, int]]]:
        """(step, purpose) of each prompt's selections that were not reported."""
        found: dict[str, list[tuple[int, int]]] = {}
        for event in self.events:
            if isinstance(event, Selected):
                for row in event.rows:
                    found.setdefault(row[0], []).append((event.step, event.purpose))
            elif isinstance(event, Reported):
                for prompt_id, _ in event.groups:
                    if (event.step, event.purpose) in found.get(prompt_id, ()):
                        found[prompt_id].remove((event.step, event.purpose))
        return {prompt_id: selections for prompt_id, selections in found.items() if selections}

    def leased(self, step: int) -> set[str]:
        """Prompts that must not be offered at a step."""
        limit = self.profile.config.lease_steps
        return {p for p, selections in self.open().items() if step - max(s for s, _ in selections) < limit}

    def active(self) -> set[str]:
        return {p for p, facts in self.prompts.items() if facts.status == pb.PROMPT_STATUS_ACTIVE}

    def selected_at(self, step: int) -> set[str]:
        """Prompts selected for training at a step."""
        return {
            row[0]
            for event in self.events
            if isinstance(event, Selected) and (event.step, event.purpose) == (step, TRAIN)
            for row in event.rows
        }

    # --- what must be seen ----------------------------------------------------------------------------------------

    def expected(self, probe_step: int) -> dict[str, Any]:
        """Everything that ``observation.observe`` finds."""
        return {
            "counts": self._counts(),
            "pool": list(self.prompts),
            "selections": self._selection_rows(),
            "outcomes": self._outcome_rows(),
            "training": self._training(),
            "replay": self.replay_rows(probe_step),
        }

    def replay_rows(self, step: int) -> list[tuple[bytes, int, int]]:
        """(payload, age, times sampled) of what a sample of everything at a step holds, newest first."""
        state = self.replay.state()
        live = [held for held in state.live if held.pushed_step <= step and held.group.policy_version <= step]
        limit = self.replay.config.max_age_steps
        young = [held for held in live if not limit or step - held.group.policy_version <= limit]
        young.sort(key=lambda held: (-held.group.policy_version, -held.seq))
        return [seen(held, step, held.uses + 1) for held in young]

    def _counts(self) -> Mapping[str, int | str]:
        trained = [event for event in self.events if isinstance(event, Selected) and event.purpose == TRAIN]
        groups = [g for event in self.events if isinstance(event, Reported) for g in event.groups if g[1]]
        selected = {row[0] for event in trained for row in event.rows}
        statuses = [facts.status for facts in self.prompts.values()]
        live = self.replay.state().live
        return {
            "registered": len(self.prompts),
            "active": statuses.count(pb.PROMPT_STATUS_ACTIVE),
            "retired": statuses.count(pb.PROMPT_STATUS_RETIRED),
            "ineligible": statuses.count(pb.PROMPT_STATUS_INELIGIBLE),
            "selected": len(selected),
            "never_selected": len(self.active() - selected),
            "leased": len(self.leased(max(self.last_step, 0))),
            "registered_after_start": len(self.prompts) - trained[0].pool_size if trained else 0,
            "replaced": len(self.replaced),
            "last_step": self.last_step,
            "selections": len(trained),
            "outcome_groups": len(groups),
            "outcome_rollouts": sum(len(outcomes) for _, outcomes in groups),
            "replay_groups": len(live),
            "replay_bytes": sum(len(held.group.payload) for held in live),
            "forked_from": self.forked[0],
            "forked_at": self.forked[1],
        }

    def _selection_rows(self) -> list[tuple[Any, ...]]:
        return [
            (event.step, event.purpose, event.round, *row)
            for event in self.events
            if isinstance(event, Selected)
            for row in event.rows
        ]

    def _outcome_rows(self) -> list[tuple[Any, ...]]:
        """Outcomes with the arm and the prediction of the selection that they belong to."""
        chosen: dict[tuple[int, int, str], tuple[int, float | None]] = {}
        rows = []
        for event in self.events:
            if isinstance(event, Selected):
                for prompt_id, arm, _, difficulty, _ in event.rows:
                    chosen[event.step, event.purpose, prompt_id] = (arm, difficulty)
            elif isinstance(event, Reported):
                for prompt_id, outcomes in event.groups:
                    if outcomes:
                        belonging = chosen.get((event.step, event.purpose, prompt_id), (0, None))
                        rows.append((prompt_id, event.step, event.purpose, outcomes, *belonging))
        return rows

    def _training(self) -> dict[str, float]:
        facts: dict[str, float] = {}
        newest = -1
        for event in self.events:
            if isinstance(event, Trained) and event.step >= newest:
                facts.update(event.facts)
                newest = event.step
        return facts


def seen(held: Held, step: int, times: int) -> tuple[bytes, int, int]:
    """What a sample tells of a group."""
    return held.group.payload, step - held.group.policy_version, times


def with_status(facts: PromptFacts, status: int) -> PromptFacts:
    return replace(facts, status=status)


def first_difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two observations differ, empty when they do not."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name in [*expected, *(name for name in found if name not in expected)]:
            if name not in expected or name not in found:
                return f"{path}/{name}: only {'expected' if name in expected else 'found'}"
            difference = first_difference(expected[name], found[name], f"{path}/{name}")
            if difference:
                return difference
        return ""
    if isinstance(expected, Sequence) and isinstance(found, Sequence) and not isinstance(expected, str | bytes):
        for i, (ours, theirs) in enumerate(zip(expected, found, strict=False)):
            difference = first_difference(ours, theirs, f"{path}[{i}]")
            if difference:
                return difference
        return "" if len(expected) == len(found) else f"{path}: expected {len(expected)} entries, found {len(found)}"
    return "" if expected == found else f"{path}: expected {_short(expected)}, found {_short(found)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
