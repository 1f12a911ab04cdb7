"""A trainer for tests: outcomes and rollout groups that follow from ids, steps and a salt, and what a step answered."""

from __future__ import annotations

import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from clients import Predictions, RolloutGroup, Selection, SelectorClient
from selector.v1 import selector_service_pb2 as pb


def prompts(count: int, prefix: str = "p") -> list[str]:
    """Ids of ``count`` prompts."""
    return [f"{prefix}{i:03d}" for i in range(count)]


def noise(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key only."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, key)).encode()))


def outcomes_of(ids: Iterable[str], step: int, salt: str = "", size: int = 4) -> dict[str, list[float]]:
    """Outcomes 0 or 1 of ``size`` rollouts per prompt; each prompt has a success rate of its own."""
    answer = {}
    for prompt_id in ids:
        rate = noise("rate", prompt_id).uniform(0.1, 0.9)
        answer[prompt_id] = (noise(salt, step, prompt_id).random(size) < rate).astype(float).tolist()
    return answer


def group_of(
    prompt_id: str, version: int, outcomes: Sequence[float] = (1.0, 0.0), salt: str = "", **changes: Any
) -> RolloutGroup:
    """A group whose tokens and log-probs follow from its identity; rollout i has i + 1 tokens."""
    random = noise("group", salt, prompt_id, version)
    lengths = range(1, len(outcomes) + 1)
    fields: dict[str, Any] = {
        "prompt_id": prompt_id,
        "policy_version": version,
        "prompt_token_ids": random.integers(0, 1000, 3),
        "response_token_ids": [random.integers(0, 1000, n) for n in lengths],
        "behavior_log_probs": [-random.random(n, dtype=np.float32) for n in lengths],
        "rewards": list(outcomes),
        "outcomes": list(outcomes),
    }
    return RolloutGroup.from_arrays(**{**fields, **changes})


def contents(selection: Selection) -> tuple[object, ...]:
    """Everything a selection says, comparable bit for bit."""
    return (
        selection.prompt_ids,
        selection.arms,
        selection.predicted_difficulties.tobytes(),
        selection.standard_errors.tobytes(),
        selection.probabilities.tobytes(),
        selection.rollouts.tolist(),
        selection.replay_groups,
        (selection.shortfall, selection.shortfall_reason),
        selection.reference_due,
        selection.estimate_step,
    )


def prediction_contents(predictions: Predictions) -> tuple[object, ...]:
    """Everything predictions say, comparable bit for bit."""
    return (
        predictions.prompt_ids,
        predictions.predicted_difficulties.tobytes(),
        predictions.standard_errors.tobytes(),
        predictions.own_weights.tobytes(),
        predictions.bases,
        predictions.estimate_step,
    )


def group_contents(group: RolloutGroup) -> tuple[object, ...]:
    """Everything a group says, comparable bit for bit."""
    return (
        group.to_proto().SerializeToString(deterministic=True),
        group.age_steps,
        group.times_sampled,
        group.probability,
    )


@dataclass(frozen=True)
class Trainer:
    """Takes steps of one run.

    Attributes:
        batch_size: groups a step trains on.
        salt: of the outcomes; trainers with the same salt see the same world.
        references: prompts of a reference pass, made whenever one is due; 0 = none.
        replays: whether rollouts are pushed and replayed.
        signals: whether signals of the policy are reported, every third step.
    """

    client: SelectorClient
    batch_size: int
    salt: str = ""
    references: int = 0
    replays: bool = False
    signals: bool = False

    def steps(self, start: int, stop: int) -> list[tuple[object, ...]]:
        """Take steps ``start`` to ``stop - 1``; what each of them was answered."""
        return [self.step(step) for step in range(start, stop)]

    def step(self, step: int) -> tuple[object, ...]:
        """Reference pass if due, selection, report, push and sample."""
        client = self.client
        answers: list[object] = []
        if self.references and client.get_run().reference_due:
            drawn = client.select_batch(step, self.references, purpose="reference")
            client.report_outcomes(step, outcomes_of(drawn.prompt_ids, step, self.salt), purpose="reference")
            answers.append(contents(drawn))
        chosen = client.select_batch(step, self.batch_size)
        answers.append(contents(chosen))
        outcomes = outcomes_of(chosen.prompt_ids, step, self.salt)
        client.report_outcomes(step, outcomes)
        if self.replays:
            groups = [group_of(prompt_id, step, outcomes[prompt_id], self.salt) for prompt_id in chosen.prompt_ids]
            client.push_rollouts(step, groups)
            sample = client.sample_rollouts(step, max(chosen.replay_groups, 2))
            answers += [(sample.shortfall, sample.eligible_groups), *map(group_contents, sample)]
        if self.signals and step % 3 == 0:
            values = {p: float(noise("signal", self.salt, step, p).normal()) for p in chosen.prompt_ids}
            client.report_training(step, effective_sample_size=0.5, signals={"entropy": values})
        return tuple(answers)


def selection_bytes(address: str, request: pb.SelectBatchRequest) -> bytes:
    """The answer to a SelectBatch as it came over the wire."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[pb.SelectBatchRequest, bytes] = channel.unary_unary(
            f"/{pb.DESCRIPTOR.services_by_name['SelectorService'].full_name}/SelectBatch",
            request_serializer=pb.SelectBatchRequest.SerializeToString,
        )
        answer: bytes = call(request, timeout=30)
    return answer


def scraped(metrics_address: str, run_id: str) -> dict[tuple[str, str], float]:
    """Samples of a run: (name, its only further label's value or "") -> value."""
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("run", None) == run_id:
                found[sample.name, "/".join(labels.values())] = sample.value
    return found
