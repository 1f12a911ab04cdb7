"""What a client does next: a trainer's steps over a few runs, in an unpredictable order, from a seed.

Everything is derived from the model of what was acknowledged, so a trainer that lost its server goes on where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from selector.config import ReplayConfig
from selector.v1 import replay_service_pb2 as replay_pb
from selector.v1 import run_pb2
from selector.v1 import selector_service_pb2 as pb
from tests.crash.model import REFERENCE, TRAIN, Profile, Reported, RunModel, Selected
from tests.crash.operations import (
    REWIND_WINDOW,
    Create,
    Delete,
    Fork,
    Operation,
    Predict,
    Push,
    Quality,
    Register,
    Report,
    Retire,
    Rewind,
    Sample,
    Select,
    Train,
    World,
    fresh_id,
)

WIDTH = 6
_MOST_PROMPTS = 40
# A run with more events is deleted soon: every check folds and reads all of them.
_MOST_EVENTS = 90
_WORDS = ["sum", "prime", "angle", "train", "speed", "apple", "chess", "coin", "river", "clock", "ratio", "tower"]


def _replay(**changes: Any) -> tuple[run_pb2.ReplayConfig, ReplayConfig]:
    changes.setdefault("max_age_steps", 0)
    return run_pb2.ReplayConfig(**changes), ReplayConfig(**changes)


def profiles() -> list[Profile]:
    """Every estimator and reference mode, and every way for a group to leave the buffer; all buffers are small."""
    tracker, tracker_replay = _replay(capacity_groups=5, max_uses=2, informative_only=False, newest_per_prompt=False)
    fused, fused_replay = _replay(capacity_groups=50, capacity_bytes=9000, max_age_steps=5, newest_per_prompt=False)
    paper, paper_replay = _replay(capacity_groups=6)
    texts, texts_replay = _replay(capacity_groups=8, fresh_fraction=0.75, max_age_steps=3)
    name = run_pb2.EstimatorConfig
    return [
        Profile(
            "tracker",
            run_pb2.RunConfig(
                estimator=name(name=run_pb2.ESTIMATOR_NAME_TRACKER),
                reference=run_pb2.ReferenceConfig(mode=run_pb2.REFERENCE_MODE_NONE),
                replay=tracker,
                lease_steps=3,
                cool_down_steps=1,
                seed=1,
            ),
            tracker_replay,
        ),
        Profile(
            "fused",
            run_pb2.RunConfig(replay=fused, lease_steps=4, cool_down_steps=2, max_prompt_tokens=90, seed=2),
            fused_replay,
        ),
        Profile(
            "paper",
            run_pb2.RunConfig(
                preset=run_pb2.PRESET_PAPER,
                reference=run_pb2.ReferenceConfig(size=4, every_steps=2),
                replay=paper,
                lease_steps=2,
                seed=3,
            ),
            paper_replay,
        ),
        Profile(
            "texts",
            run_pb2.RunConfig(
                replay=texts,
                lease_steps=2,
                score=run_pb2.SCORE_INFORMATIVE,
                score_evaluation=run_pb2.SCORE_EVALUATION_THOMPSON,
                max_unselected_steps=3,
                seed=4,
            ),
            texts_replay,
            texts=True,
        ),
    ]


class Trainer:
    """Chooses operations; whoever sends them changes the model by what they are answered."""

    def __init__(self, run_ids: list[str], profiles: list[Profile], rng: np.random.Generator) -> None:
        self._run_ids = run_ids
        self._profiles = profiles
        self._rng = rng
        self._made = 0

    def next(self, world: World, encoder: bool) -> Operation:
        """The next operation.

        Args:
            encoder: whether the service can embed texts now.
        """
        free = [run_id for run_id in self._run_ids if run_id not in world]
        if free and (len(free) == len(self._run_ids) or self._chance(0.02)):
            return self._create(self._pick(free))
        model = world[self._pick(sorted(world))]
        if not free and (len(model.events) > _MOST_EVENTS or self._chance(0.004)):
            return Delete([pb.DeleteRunRequest(run_id=model.run_id, request_id=fresh_id())])
        if len(model.active()) < 8:
            return self.register(model, encoder)
        choices: list[tuple[float, Callable[[RunModel], Operation | None]]] = [
            (5, self._select),
            (6, self._report),
            (4, self._push),
            (2, self._sample),
            (1, self._train),
            (1, lambda model: self.register(model, encoder)),
            (0.5, self._retire),
            (1.2, self._rewind),
            (0.5, lambda model: self._fork(model, free)),
            (0.7, lambda model: self._twice(Predict, pb.PredictDifficultyRequest(run_id=model.run_id))),
            (0.3, lambda model: self._twice(Quality, pb.GetSelectionQualityRequest(run_id=model.run_id))),
        ]
        weights = np.array([weight for weight, _ in choices])
        while True:
            made = choices[self._rng.choice(len(choices), p=weights / weights.sum())][1](model)
            if made is not None:
                request: Any = made.requests[0]
                model.reached = max(model.reached, getattr(request, "step", 0))
                return made

    # --- runs and pools -------------------------------------------------------------------------------------------

    def _create(self, run_id: str) -> Operation:
        profile = self._pick(self._profiles)
        request = pb.CreateRunRequest(run_id=run_id, config=profile.config, request_id=fresh_id())
        return Create([request], profile)

    def register(self, model: RunModel, encoder: bool) -> Operation:
        """A registration: new prompts, and known ones with the same or, to replace them, with other content."""
        rng = self._rng
        room = max(_MOST_PROMPTS - len(model.prompts), 0)
        count = min(int(rng.integers(4, 12)), room)
        known = list(model.prompts)
        prompts = [self._prompt(model, f"p{len(known) + i:03d}", encoder) for i in range(count)]
        replace = False
        if known and (not prompts or self._chance(0.5)):
            again = [known[i] for i in rng.choice(len(known), min(4, len(known)), replace=False)]
            replace = bool(self._chance(0.8) or len(model.active()) < 8)
            for prompt_id in again:
                kept = pb.Prompt.FromString(model.prompts[prompt_id].content)
                changed = replace and self._chance(0.5)
                prompts.append(self._prompt(model, prompt_id, encoder) if changed else kept)
        # A pool that is full and mostly retired comes back as it was.
        if replace and len(model.active()) < 8:
            sent = {prompt.prompt_id for prompt in prompts}
            prompts += [pb.Prompt.FromString(model.prompts[p].content) for p in known if p not in sent]
        request = pb.RegisterPromptsRequest(
            run_id=model.run_id, prompts=prompts, replace=replace, request_id=fresh_id()
        )
        return self._twice(Register, request)

    def _prompt(self, model: RunModel, prompt_id: str, encoder: bool) -> pb.Prompt:
        rng = self._rng
        self._made += 1
        prompt = pb.Prompt(prompt_id=prompt_id, domain=self._pick(["", "math", "code"]))
        prompt.token_count = int(rng.integers(1, 100))
        words = " ".join(rng.choice(_WORDS, rng.integers(5, 40)))
        if model.profile.texts and encoder:
            prompt.text = f"{self._made} {words}"
        elif not model.profile.texts:
            prompt.text = f"{words}?" if self._chance(0.5) else ""
            prompt.embedding = rng.normal(size=WIDTH).astype("<f4").tobytes()
        if self._chance(0.3):
            prompt.prior.CopyFrom(pb.Prior(pass_rate=float(rng.integers(0, 9)) / 8, trials=8))
        return prompt

    def _retire(self, model: RunModel) -> Operation | None:
        active = sorted(model.active())
        if len(active) < 10:
            return None
        asked = [active[i] for i in self._rng.choice(len(active), 2, replace=False)]
        retired = [p for p in model.prompts if p not in active]
        return self._twice(
            Retire, pb.RetirePromptsRequest(run_id=model.run_id, prompt_ids=asked + retired[:1], request_id=fresh_id())
        )

    def _rewind(self, model: RunModel) -> Operation | None:
        newest = max(model.last_step, model.replay_step)
        if newest < 1:
            return None
        back = int(self._rng.integers(0, REWIND_WINDOW if self._chance(0.8) else newest + 1))
        request = pb.RewindRunRequest(run_id=model.run_id, step=max(newest - back, 0), request_id=fresh_id())
        return self._twice(Rewind, request)

    def _fork(self, model: RunModel, free: list[str]) -> Operation | None:
        if not free:
            return None
        step = max(model.last_step + 1 - int(self._rng.integers(0, REWIND_WINDOW)), 0)
        request = pb.ForkRunRequest(run_id=model.run_id, new_run_id=free[0], step=step, request_id=fresh_id())
        return Fork([request])

    # --- the step -------------------------------------------------------------------------------------------------

    def _select(self, model: RunModel) -> Operation | None:
        rng = self._rng
        step = model.last_step + 1
        taken = {(e.step, e.purpose, e.round) for e in model.events if isinstance(e, Selected)}
        purpose = REFERENCE if self._chance(0.15) else TRAIN
        round_ = 0
        if self._chance(0.25) and step > 0:
            step -= 1
            round_ = next(i for i in range(100) if (step, purpose, i) not in taken)
        if (step, purpose, round_) in taken:
            return None
        active = sorted(model.active())
        request = pb.SelectBatchRequest(
            run_id=model.run_id,
            step=step,
            round=round_,
            batch_size=int(rng.integers(2, 7)),
            purpose=purpose,
            request_id=fresh_id(),
            exclude_prompt_ids=[active[int(rng.integers(len(active)))]] if self._chance(0.2) else [],
            fresh_only=bool(purpose == TRAIN and self._chance(0.3)),
        )
        if not self._chance(0.25):
            return self._twice(Select, request)
        shards = []
        for index in range(2):
            shard = pb.SelectBatchRequest()
            shard.CopyFrom(request)
            shard.shard.CopyFrom(pb.Shard(index=index, count=2))
            shards.append(shard)
        return Select(list(shards))

    def _report(self, model: RunModel) -> Operation | None:
        rng = self._rng
        open_at: dict[tuple[int, int], list[str]] = {}
        for prompt_id, selections in model.open().items():
            for key in selections:
                # Beyond the lease a prompt may have been selected too often since for the report to find its selection.
                if key[0] >= model.last_step - 2:
                    open_at.setdefault(key, []).append(prompt_id)
        newest = model.events[-1] if model.events else None
        if isinstance(newest, Reported) and self._chance(0.1):
            # Outcomes of one prompt reported several times within a step add up.
            key, prompts = (newest.step, newest.purpose), [newest.groups[0][0]]
        elif open_at:
            key = self._pick(sorted(open_at))
            prompts = open_at[key]
            prompts = prompts[: max(1, len(prompts) // 2)] if self._chance(0.5) else prompts
        else:
            return None
        request = pb.ReportOutcomesRequest(run_id=model.run_id, step=key[0], request_id=fresh_id())
        request.purpose = key[1]  # type: ignore[assignment]
        for prompt_id in prompts:
            size = int(rng.integers(1, 6))
            group = request.outcomes.add(prompt_id=prompt_id, outcomes=rng.integers(0, 5, size) / 4)
            if self._chance(0.2):
                statuses = [pb.ROLLOUT_STATUS_COMPLETED, pb.ROLLOUT_STATUS_TRUNCATED, pb.ROLLOUT_STATUS_ABORTED]
                group.statuses.extend(self._pick(statuses) for _ in range(size))
        return self._twice(Report, request)

    def _train(self, model: RunModel) -> Operation | None:
        if model.last_step < 0:
            return None
        rng = self._rng
        request = pb.ReportTrainingRequest(run_id=model.run_id, step=model.last_step, request_id=fresh_id())
        if self._chance(0.7):
            request.effective_sample_size = float(rng.random())
            request.max_importance_weight = float(rng.random() * 9)
        if self._chance(0.5):
            request.clip_fraction = float(rng.random())
        if self._chance(0.5):
            prompts = list(model.prompts)[:5]
            request.signals.add(name="entropy", prompt_ids=prompts, values=rng.normal(size=len(prompts)))
        return self._twice(Train, request)

    # --- replay ---------------------------------------------------------------------------------------------------

    def _push(self, model: RunModel) -> Operation | None:
        newest = model.last_step
        if newest < 0:
            return None
        rng = self._rng
        step = max(newest - int(rng.integers(0, 2)), 0)
        request = replay_pb.PushRolloutsRequest(run_id=model.run_id, step=step, request_id=fresh_id())
        known = list(model.prompts)
        for i in rng.choice(len(known), min(int(rng.integers(1, 5)), len(known)), replace=False):
            request.groups.append(self._group(known[i], max(step - int(rng.integers(0, 3)), 0)))
        pushed = [group for _, event in model.replay.log if hasattr(event, "groups") for group in event.groups]
        if pushed and self._chance(0.2):
            again = replay_pb.RolloutGroup.FromString(pushed[int(rng.integers(len(pushed)))].payload)
            if again.policy_version <= step and all(again.group_id != g.group_id for g in request.groups):
                request.groups.append(again)
        return self._twice(Push, request)

    def _group(self, prompt_id: str, version: int) -> replay_pb.RolloutGroup:
        rng = self._rng
        self._made += 1
        lengths = rng.integers(1, 160, int(rng.integers(1, 4)))
        total = int(lengths.sum())
        # Distinct outcomes make most groups informative.
        outcomes = rng.permutation(len(lengths)) / 4 if self._chance(0.8) else np.ones(len(lengths))
        group = replay_pb.RolloutGroup(
            prompt_id=prompt_id,
            group_id=f"{prompt_id}@{version}/{self._made}",
            policy_version=version,
            lengths=lengths.tolist(),
            rewards=rng.normal(size=len(lengths)),
            outcomes=outcomes,
            prompt_token_ids=rng.integers(0, 50_000, 5).astype("<i4").tobytes(),
            response_token_ids=rng.integers(0, 50_000, total).astype("<i4").tobytes(),
            behavior_log_probs=(-rng.random(total)).astype("<f4").tobytes(),
        )
        if self._chance(0.3):
            column = rng.integers(0, 9, total).astype("<i4")
            group.columns.add(
                name="experts", dtype="int32", shape=[total], data=column.tobytes(), lengths=lengths.tolist()
            )
        return group

    def _sample(self, model: RunModel) -> Operation | None:
        rng = self._rng
        step = max(model.last_step, model.replay_step, 0) - int(rng.integers(0, 2))
        if step < 0 or any(sample.step == step for sample in model.samples):
            return None
        known = list(model.prompts)
        request = replay_pb.SampleRolloutsRequest(
            run_id=model.run_id,
            step=step,
            count=int(rng.integers(1, 6)),
            order=self._pick([replay_pb.SAMPLE_ORDER_UNIFORM, replay_pb.SAMPLE_ORDER_NEWEST]),
            min_age_steps=int(self._chance(0.2)),
            exclude_prompt_ids=known[:1] if self._chance(0.2) else [],
            informative_only=bool(self._chance(0.2)),
        )
        # A sample that finds nothing is not recorded, so sent twice it need not be answered alike.
        return Sample([request])

    # --- chance ---------------------------------------------------------------------------------------------------

    def _twice(self, kind: Callable[[list[Any]], Operation], request: Any) -> Operation:
        """Now and then a request is on its way twice, as a client's impatient retry is."""
        return kind([request, request] if self._chance(0.1) else [request])

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, choices: list[Any]) -> Any:
        return choices[int(self._rng.integers(len(choices)))]
