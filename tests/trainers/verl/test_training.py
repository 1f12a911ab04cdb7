"""Real trainings: what the service is told and what is trained on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.experimental.agent_loop import AgentLoopOutput

from clients import SelectorError
from tests.trainers.service import Service
from tests.trainers.verl.tiny import FRESH, GROUP_SIZE, PROMPTS, AsyncTrainer, client, config, prompt_ids, trainer
from trainer_adapters.loss import ReplayLoss, group_advantages, grpo_replay_loss
from trainer_adapters.verl.rows import PROMPT_ID

STEPS = range(1, 9)
GROUPS = 2 * FRESH
DEDICATED = (
    "+data.curriculum.run.reference={mode: DEDICATED, size: 5, every_steps: 2}",
    "trainer.val_before_train=true",
    "trainer.test_freq=2",
    "actor_rollout_ref.rollout.val_kwargs={n: 3, do_sample: true, temperature: 1.0}",
)


def reported(service: Service, run_id: str = "run", purpose: str = "TRAIN") -> list[tuple[str, int, tuple[float, ...]]]:
    """Prompt, step and outcomes of what the service knows."""
    with client(service.target, run_id) as looked:
        rows = list(looked.export("outcomes"))
    return sorted(
        (row.prompt_id, row.record.step, tuple(row.record.outcomes)) for row in rows if row.record.purpose == purpose
    )


def generated(
    made: Any, sessions: int = GROUP_SIZE, validate: bool = False
) -> list[tuple[str, int, tuple[float, ...]]]:
    """The same of what was rolled out."""
    outcomes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (prompt_id, version, _, validated), output in sorted(made.engine.generated.items()):
        if validated == validate:
            outcomes[prompt_id, version].append(output.extra_fields["reward_extra_info"]["acc"])
    return sorted((prompt_id, version, tuple(values)) for (prompt_id, version), values in outcomes.items())


def groups_of(batch: dict[str, Any]) -> dict[str, list[int]]:
    """Positions of a batch's rows by uid, padding left out."""
    rows: dict[str, list[int]] = defaultdict(list)
    for position, (key, tag) in enumerate(zip(batch["keys"], batch["tags"], strict=True)):
        if not tag.get("is_padding"):
            rows[key.split("_")[0]].append(position)
    return rows


def papers_loss(batch: dict[str, Any], index: int, **changed: Any) -> tuple[ReplayLoss, torch.Tensor]:
    """Of a mini-batch with its gradient, from tokens, rewards and behaviour log-probs alone: advantages and pi_old are
    computed anew.

    Args:
        changed: arguments of the loss that are to be others.
    """
    data, update = batch["data"], batch["updates"][index]
    part = slice(index * FRESH * GROUP_SIZE, (index + 1) * FRESH * GROUP_SIZE)
    uids = [key.split("_")[0] for key in batch["keys"]]
    rewards = torch.stack([scores.sum() for scores in data["rm_scores"].unbind()])
    mask = data["response_mask"].to_padded_tensor(0)[part]

    def log_probs(policy: torch.Tensor) -> torch.Tensor:
        rows = []
        for ids, response in zip(data["input_ids"].unbind()[part], data["responses"].unbind()[part], strict=True):
            following = torch.log_softmax(policy[ids[:-1]], dim=-1).gather(1, ids[1:, None])[:, 0]
            rows.append(torch.nn.functional.pad(following[-len(response) :], (0, mask.shape[1] - len(response))))
        return torch.stack(rows)

    weights = update.weights.clone().requires_grad_()
    old = log_probs(batch["updates"][0].weights)
    arguments = {
        "old_log_probs": old,
        "behavior_log_probs": data["rollout_log_probs"].to_padded_tensor(0)[part],
        "advantages": group_advantages(rewards, torch.tensor([uids.index(uid) for uid in uids]))[part],
        "mask": mask,
    }
    if changed.pop("uncorrected", False):
        changed["behavior_log_probs"] = old
    result = grpo_replay_loss(log_probs(weights), **{**arguments, **changed})
    (gradient,) = torch.autograd.grad(result.loss, [weights])
    return result, gradient


@pytest.fixture(scope="module")
def whole(shared: Service, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training of eight steps that nothing interrupted."""
    return trainer(config(tmp_path_factory.mktemp("whole"), shared.target, "whole", "trainer.save_freq=8")).train()


@pytest.fixture(scope="module")
def dedicated(shared: Service, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same with reference passes."""
    return trainer(config(tmp_path_factory.mktemp("dedicated"), shared.target, "dedicated", *DEDICATED)).train()


def test_outcomes_of_fresh_rollouts_are_reported_and_groups_replayed(shared: Service, whole: Any) -> None:
    made = whole
    # Once, at the step of the policy that made them, and nothing of what was replayed.
    assert reported(shared, "whole") == generated(made)
    assert len(made.batches) == len(STEPS)
    # The first batch has nothing to replay: verl is asked for more prompts.
    assert [len(made.engine.asked[step]) for step in STEPS] == [GROUPS] + [FRESH] * 7
    for step, batch in zip(STEPS, made.batches, strict=True):
        data, groups = batch["data"], groups_of(batch)
        assert len(groups) == GROUPS and {len(rows) for rows in groups.values()} == {GROUP_SIZE}
        assert len(set(made.engine.asked[step])) == len(made.engine.asked[step])
        fresh = [uid for uid in groups if not uid.startswith("replay")]
        named = list(data[PROMPT_ID])
        assert sorted(named[groups[uid][0]] for uid in fresh) == sorted(made.engine.asked[step])
        for uid, rows in groups.items():
            tag = batch["tags"][rows[0]]
            assert (tag["min_global_steps"] < step - 1) == (uid not in fresh)
            for row in rows:
                session = int(batch["keys"][row].split("_")[1])
                output = made.engine.generated[named[row], tag["min_global_steps"], session, False]
                assert data["prompts"][row].tolist() == output.prompt_ids
                assert data["responses"][row].tolist() == output.response_ids
                assert data["input_ids"][row].tolist() == output.prompt_ids + output.response_ids
                assert data["rollout_log_probs"][row].tolist() == torch.tensor(output.response_logprobs).tolist()
                assert data["rm_scores"][row].sum() == output.reward_score
                assert data["uid"][row] == uid and data["index"][row] == int(named[row].split("/")[1])


def test_figures_of_fresh_rollouts_are_logged_apart(whole: Any) -> None:
    mixed = 0
    for step, batch in zip(STEPS, whole.batches, strict=True):
        logged, scores = whole.logged[step], {}
        for uid, rows in groups_of(batch).items():
            scores[uid] = [batch["data"]["rm_scores"][row].sum().item() for row in rows]
        fresh = [score for uid, each in scores.items() if not uid.startswith("replay") for score in each]
        every = [score for each in scores.values() for score in each]
        assert logged["curriculum/fresh_reward"] == pytest.approx(sum(fresh) / len(fresh), abs=1e-6)
        # verl's own are of all rows.
        assert logged["critic/rewards/mean"] == pytest.approx(sum(every) / len(every), abs=1e-6)
        mixed += logged["critic/rewards/mean"] != pytest.approx(logged["curriculum/fresh_reward"], abs=1e-3)
        assert logged["curriculum/fresh_groups"] + logged["curriculum/replayed_groups"] == GROUPS
        assert logged["curriculum/available"] == 1 and logged["curriculum/failed_calls"] == 0
        assert ("curriculum/replay_age_steps" in logged) == (step > 1)
    assert mixed


@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "padded"])
def test_loss_is_the_papers(shared: Service, run_id: str, tmp_path: Path, ragged: bool) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))

    def spoil(output: AgentLoopOutput, prompt_id: str, session: int) -> AgentLoopOutput | None:
        if ragged and session == 0 and int(prompt_id.split("/")[1]) % 2:
            return None
        # As of a tool in between, whose tokens the policy did not choose.
        output.response_mask = [int(not ragged or place != 1) for place in range(len(output.response_ids))]
        return output

    made.engine.spoil = spoil
    made.train()
    results, without, behind = [], [], []
    for batch in made.batches:
        assert len(batch["updates"]) == 2
        for index, update in enumerate(batch["updates"]):
            result, gradient = papers_loss(batch, index)
            assert update.loss == pytest.approx(result.loss.item(), abs=1e-6)
            assert torch.allclose(update.gradient, gradient, rtol=0, atol=1e-6)
            results.append(result)
            without.append(abs(update.loss - papers_loss(batch, index, uncorrected=True)[0].loss.item()))
            behind.append(abs(update.loss - papers_loss(batch, index, centre="behavior")[0].loss.item()))
    # It was about something: tokens were clipped, rows were stale, and other formulas give other losses.
    assert max(result.clip_fraction for result in results) > 0.01
    assert max(result.max_weight for result in results) > 1.2
    assert max(without) > 1e-3 and max(behind) > 1e-3
    padding = sum(tag.get("is_padding", False) for batch in made.batches for tag in batch["tags"])
    assert bool(padding) == ragged
    mixed = [{key.startswith("replay") for key in batch["keys"]} for batch in made.batches]
    assert mixed == [{False}] + [{False, True}] * 7


@pytest.mark.parametrize("share, groups", [(0.3, 10), (0.75, 4), (1.0, 3)])
def test_a_batch_holds_as_many_groups_as_the_fresh_are_the_share_of(
    shared: Service, run_id: str, tmp_path: Path, share: float, groups: int
) -> None:
    overrides = [f"data.curriculum.run.replay.fresh_fraction={share}", "trainer.total_training_steps=4"]
    made = trainer(config(tmp_path, shared.target, run_id, *overrides)).train()
    assert [len(groups_of(batch)) for batch in made.batches] == [groups] * 4
    assert len(made.engine.asked[1]) == groups and len(made.engine.asked[4]) == FRESH


def test_what_fails_is_not_waited_for(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id))
    lost: set[str] = set()

    def spoil(output: AgentLoopOutput, prompt_id: str, session: int) -> AgentLoopOutput | None:
        lost.update(made.engine.asked[3][:1] if 3 in made.engine.asked else ())
        return None if made.engine.version == 2 and prompt_id in lost else output

    made.engine.spoil = spoil
    made.train()
    assert len(lost) == 1
    assert lost.isdisjoint(prompt_id for prompt_id, step, _ in reported(shared, run_id) if step == 2)
    with client(shared.target, run_id) as looked:
        assert looked.get_run().pool.leased == 0


def test_the_raw_score_is_the_outcome_where_the_reward_is_shaped(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(config(tmp_path, shared.target, run_id, "+data.curriculum.outcome=acc"))

    def spoil(output: AgentLoopOutput, prompt_id: str, session: int) -> AgentLoopOutput:
        output.reward_score = output.reward_score - 0.125 * len(output.response_ids)
        return output

    made.engine.spoil = spoil
    made.train()
    assert reported(shared, run_id) == generated(made)
    # What is replayed has the shaped reward.
    for batch in made.batches[1:]:
        for key, scores in zip(batch["keys"], batch["data"]["rm_scores"].unbind(), strict=True):
            assert key and scores.sum().item() % 1 in {0.125 * (-len(scores) % 8)}
    assert made.logged[8]["curriculum/fresh_reward"] < made.logged[8]["curriculum/fresh_outcome"]


class Stopped(Exception):
    """The training was stopped on purpose."""


def stop() -> None:
    """Ends a training between two steps."""
    raise Stopped


def goes_on_exactly(shared: Service, whole: Any, again: Any, run_ids: tuple[str, str]) -> None:
    """A training that goes on from its fourth step, against one that was not interrupted."""
    assert again.engine.asked.keys() == {step for step in whole.engine.asked if step > 4 or step <= -5}
    for step, asked in again.engine.asked.items():
        assert asked == whole.engine.asked[step]
    losses = [[update.loss for update in batch["updates"]] for batch in whole.batches]
    assert [[update.loss for update in batch["updates"]] for batch in again.batches] == losses[4:]
    assert torch.equal(again.actor_rollout_wg.policy.weights, whole.actor_rollout_wg.policy.weights)
    for purpose in ("TRAIN", "REFERENCE"):
        assert reported(shared, run_ids[0], purpose) == reported(shared, run_ids[1], purpose)


def test_a_training_that_ended_goes_on_exactly(shared: Service, whole: Any, tmp_path: Path) -> None:
    options = [tmp_path, shared.target, "ended", "trainer.save_freq=2"]
    ended = trainer(config(*options))
    ended.before[6] = stop
    with pytest.raises(Stopped):
        ended.train()
    assert len(ended.batches) == 5
    goes_on_exactly(shared, whole, trainer(config(*options)).train(), ("ended", "whole"))


def test_a_training_that_was_killed_goes_on_exactly(shared: Service, dedicated: Any, tmp_path: Path) -> None:
    options = [tmp_path, shared.target, "killed", "trainer.save_freq=2", *DEDICATED]
    command = [sys.executable, str(Path(__file__).with_name("tiny.py")), "6", *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert killed.returncode == -9, killed.stderr[-3000:]
    goes_on_exactly(shared, dedicated, trainer(config(*options)).train(), ("killed", "dedicated"))


def test_validation_passes_are_reference_passes(shared: Service, dedicated: Any) -> None:
    passes = {-1 - step: asked for step, asked in dedicated.engine.asked.items() if step < 0}
    assert sorted(passes) == [0, 2, 4, 6, 8]
    assert all(len(set(asked)) == 5 for asked in passes.values())
    assert len(set(map(tuple, passes.values()))) == 5
    assert reported(shared, "dedicated", "REFERENCE") == generated(dedicated, validate=True)
    assert reported(shared, "dedicated") == generated(dedicated)
    with client(shared.target, "dedicated") as looked:
        drawn = Counter(row.record.step for row in looked.export("selections") if row.record.purpose == "REFERENCE")
    assert drawn == {step: 5 for step in passes}


def test_other_validation_is_left_alone(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(
        config(
            tmp_path,
            shared.target,
            run_id,
            "trainer.test_freq=4",
            "trainer.val_before_train=true",
            "data.shuffle=false",
        )
    ).train()
    assert {step: asked for step, asked in made.engine.asked.items() if step < 0} == {
        -1 - step: prompt_ids(4) for step in (0, 4, 8)
    }
    assert reported(shared, run_id, purpose="REFERENCE") == []
    assert reported(shared, run_id) == generated(made)


def test_staleness_is_reported_after_a_checkpoint(shared: Service, whole: Any) -> None:
    batch = whole.batches[-1]
    rows = [row for row, key in enumerate(batch["keys"]) if key.startswith("replay")]
    old, behavior = (batch["data"][name] for name in ("old_log_probs", "rollout_log_probs"))
    weight = torch.cat([old[row] - behavior[row] for row in rows]).exp()
    with client(shared.target, "whole") as looked:
        quality = looked.quality()
    assert quality.effective_sample_size == pytest.approx((weight.sum() ** 2 / (weight**2).sum() / len(weight)).item())
    assert quality.max_importance_weight == pytest.approx(weight.max().item())


def test_a_restart_of_the_service_changes_nothing(
    service: Service, shared: Service, whole: Any, tmp_path: Path
) -> None:
    made = trainer(config(tmp_path, service.target))

    def restart() -> None:
        service.kill()
        service.start()

    made.before[4] = restart
    made.train()
    assert made.engine.asked == whole.engine.asked
    assert torch.equal(made.actor_rollout_wg.policy.weights, whole.actor_rollout_wg.policy.weights)
    assert reported(service) == reported(shared, "whole")


def test_a_service_that_dies_is_survived_and_told_later(service: Service, tmp_path: Path) -> None:
    patience = ["data.curriculum.timeout_s=2", "+data.curriculum.probe_s=3"]
    made = trainer(config(tmp_path, service.target, "run", *patience, *DEDICATED))
    made.before[3], made.before[6] = service.kill, service.start
    # A new connection may take longer than a step.
    made.before[7] = lambda: made.replay_buffer._training.curriculum._client.wait_ready(timeout_s=30)
    made.train()
    available = [made.logged[step]["curriculum/available"] for step in STEPS]
    assert available[:2] == [1, 1] and available[2:5] == [0, 0, 0] and available[7] == 1
    assert [made.logged[step]["curriculum/replayed_groups"] for step in (3, 4, 5)] == [0, 0, 0]
    # A batch is full all the same, of prompts drawn here, and so is a reference pass.
    assert [len(made.engine.asked[step]) for step in (3, 4, 5)] == [GROUPS] * 3
    assert {len(groups_of(batch)) for batch in made.batches} == {GROUPS}
    assert [len(set(made.engine.asked[-1 - step])) for step in (0, 2, 4, 6, 8)] == [5] * 5
    assert made.logged[8]["curriculum/uniform_selections"] >= 3
    assert made.logged[8]["curriculum/unsent_writes"] == made.logged[8]["curriculum/dropped_writes"] == 0
    assert made.logged[8]["curriculum/replayed_groups"] == FRESH
    # Once each, in spite of all attempts.
    assert reported(service) == generated(made)
    assert reported(service, purpose="REFERENCE") == generated(made, validate=True)


def test_a_training_that_asks_for_it_ends_with_the_service(service: Service, tmp_path: Path) -> None:
    made = trainer(
        config(tmp_path, service.target, "run", "data.curriculum.timeout_s=1", "+data.curriculum.on_failure=closed")
    )
    made.before[3] = service.kill
    with pytest.raises(SelectorError):
        made.train()
    assert len(made.batches) == 2


def test_a_trainer_that_generates_ahead(shared: Service, run_id: str, tmp_path: Path) -> None:
    made = trainer(
        config(
            tmp_path,
            shared.target,
            run_id,
            "trainer.v1.trainer_mode=colocate_async",
            "trainer.v1.sampler.custom_sampler.name=ServiceReplayBufferAsync",
        ),
        AsyncTrainer,
    ).train()
    for batch in made.batches:
        groups = groups_of(batch)
        assert len(groups) == GROUPS and {len(rows) for rows in groups.values()} == {GROUP_SIZE}
    assert sum(key.startswith("replay") for batch in made.batches for key in batch["keys"]) >= 5 * FRESH * GROUP_SIZE
    trained = [
        (prompt, tag["min_global_steps"], int(key.split("_")[1]))
        for batch in made.batches
        for key, tag, prompt in zip(batch["keys"], batch["tags"], batch["data"][PROMPT_ID], strict=True)
        if not key.startswith("replay")
    ]
    # Each rollout that was trained on fresh was reported once, in the step it was trained in.
    assert len(trained) == len(set(trained))
    scores = Counter(made.engine.generated[(*row, False)].reward_score for row in trained)
    assert Counter(score for *_, outcomes in reported(shared, run_id) for score in outcomes) == scores
    assert PROMPTS >= len({prompt for prompt, *_ in trained}) > GROUPS
