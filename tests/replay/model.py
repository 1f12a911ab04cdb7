"""Rollout replay as plainly as it can be said: the whole log is folded again for every question.

Nothing is ever deleted here, so a rewind is nothing but a shorter log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from selector.config import ReplayConfig
from selector.noise import noise_key, uniforms_at
from selector.replay import SampleOrder, SampleRequest


@dataclass(frozen=True)
class PushedGroup:
    prompt_id: str
    group_id: str
    policy_version: int
    informative: bool
    payload: bytes


@dataclass(frozen=True)
class Pushed:
    step: int
    groups: tuple[PushedGroup, ...]


@dataclass(frozen=True)
class Sampled:
    step: int
    picks: tuple[tuple[int, int], ...]  # (push, group within it), counted over all pushes ever


@dataclass
class Held:
    origin: tuple[int, int]
    group: PushedGroup
    seq: int
    pushed_step: int
    uses: int = 0


@dataclass
class State:
    live: list[Held] = field(default_factory=list)
    left: list[Held] = field(default_factory=list)
    next_seq: int = 0

    def leave(self, held: Held) -> None:
        self.live.remove(held)
        self.left.append(held)


class Conflict(Exception):
    """A group's id belongs to another group."""


@dataclass
class NaiveReplay:
    config: ReplayConfig
    seed: int
    log: list[tuple[int, Pushed | Sampled]] = field(default_factory=list)
    events: int = 0

    def state(self, before_step: int | None = None) -> State:
        state = State()
        for number, event in self.log:
            if before_step is not None and event.step >= before_step:
                continue
            if isinstance(event, Pushed):
                self._push(state, number, event, refuse=False)
            else:
                self._use(state, event)
        return state

    def push(self, step: int, groups: list[PushedGroup]) -> dict[str, int]:
        event = Pushed(step, tuple(groups))
        counts = self._push(self.state(), self.events, event, refuse=True)
        self.log.append((self.events, event))
        self.events += 1
        return counts

    def sample(self, request: SampleRequest) -> list[Held]:
        state = self.state()
        eligible = self.eligible(state, request)
        if request.order is SampleOrder.NEWEST:
            eligible.sort(key=lambda held: (-held.group.policy_version, -held.seq))
        else:
            key = noise_key(self.seed, "replay", request.step)
            eligible.sort(key=lambda held: float(uniforms_at(key, [held.seq])[0]))  # type: ignore[arg-type]
        picked = eligible[: request.count]
        if picked:
            self.log.append((self.events, Sampled(request.step, tuple(held.origin for held in picked))))
            self.events += 1
        return [replace(held, uses=held.uses + 1) for held in picked]

    def eligible(self, state: State, request: SampleRequest) -> list[Held]:
        found = []
        for held in state.live:
            age = request.step - held.group.policy_version
            if held.pushed_step > request.step or age < 0 or age < request.min_age_steps:
                continue
            if self.config.max_age_steps and age > self.config.max_age_steps:
                continue
            if held.group.prompt_id in request.exclude or (request.informative_only and not held.group.informative):
                continue
            found.append(held)
        return found

    def rewind(self, step: int) -> None:
        self.log = [(number, event) for number, event in self.log if event.step < step]

    def _age_out(self, state: State, step: int) -> int:
        limit = self.config.max_age_steps
        old = [held for held in state.live if limit and step - held.group.policy_version > limit]
        for held in old:
            state.leave(held)
        return len(old)

    def _push(self, state: State, number: int, event: Pushed, refuse: bool) -> dict[str, int]:
        config = self.config
        counts = dict.fromkeys(("stored", "uninformative", "unchanged", "outdated", "too_old"), 0)
        evicted = self._age_out(state, event.step)
        for index, group in enumerate(event.groups):
            same_id = [held for held in state.live if held.group.group_id == group.group_id]
            if any(held.group.payload != group.payload for held in same_id):
                if refuse:
                    raise Conflict(index)
                continue
            same_prompt = [held for held in state.live if held.group.prompt_id == group.prompt_id]
            if config.informative_only and not group.informative:
                counts["uninformative"] += 1
            elif config.max_age_steps and event.step - group.policy_version > config.max_age_steps:
                counts["too_old"] += 1
            elif same_id:
                counts["unchanged"] += 1
            elif config.newest_per_prompt and any(
                held.group.policy_version > group.policy_version for held in same_prompt
            ):
                counts["outdated"] += 1
            else:
                counts["stored"] += 1
                if config.newest_per_prompt:
                    evicted += len(same_prompt)
                    for held in same_prompt:
                        state.leave(held)
                state.live.append(Held((number, index), group, state.next_seq, event.step))
                state.next_seq += 1
        while len(state.live) > config.capacity_groups or (
            config.capacity_bytes and sum(len(held.group.payload) for held in state.live) > config.capacity_bytes
        ):
            state.leave(state.live[0])
            evicted += 1
        return {**counts, "evicted": evicted}

    def _use(self, state: State, event: Sampled) -> None:
        for held in state.live + state.left:
            held.uses += held.origin in event.picks
        self._age_out(state, event.step)
        for held in list(state.live):
            if self.config.max_uses and held.origin in event.picks and held.uses >= self.config.max_uses:
                state.leave(held)
