"""What would only show as bad results is an error that says what to change."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from openrlhf.datasets import PromptDataset

from clients import AlreadyExists, InvalidArgument, Unavailable
from tests.trainers.openrlhf.tiny import BATCH, GROUP_SIZE, CpuStrategy, client, config, data, flags, parsed, trainer
from tests.trainers.service import Service
from trainer_adapters.checks import AdapterError
from trainer_adapters.openrlhf import CurriculumSamplesGenerator, install
from trainer_adapters.openrlhf.launcher import configured
from trainer_adapters.openrlhf.rows import check_log_probs

# Nothing listens there: what is refused is refused before the service is asked.
NOWHERE = "127.0.0.1:1"


def generator(args: Any, count: int = 24, images: Any = None, **changes: Any) -> CurriculumSamplesGenerator:
    """A generator that gets no further than its checks."""
    strategy = CpuStrategy(args=args)
    rows = [{"prompt": f"{index}=", "label": str(index), "images": None} for index in range(count)]
    rows[0]["images"] = images
    return CurriculumSamplesGenerator(
        strategy,
        SimpleNamespace(dataset=PromptDataset(rows, None, strategy)),
        None,
        None,
        [],
        curriculum=config(NOWHERE, **{"timeout_s": 1.0, **changes}),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo__advantage__estimator": "reinforce"}, "algo.advantage.estimator: expected 'dr_grpo' or 'group_norm'"),
        ({"algo__advantage__is_correction_level": None}, "is_correction_level: expected 'token', got 'off'"),
        (
            {"algo__advantage__is_correction_level": "seq", "algo__advantage__is_correction_mode": None},
            "is_correction_level: expected 'token', got 'seq'",
        ),
        ({"algo__advantage__is_correction_mode": None}, "is_correction_mode: expected 'clip', got 'mask'"),
        ({"algo__advantage__is_correction_gating": "tv"}, "is_correction_gating: expected 'ratio', got 'tv'"),
        (
            {"algo__advantage__is_correction_threshold": None},
            r"is_correction_threshold: expected \(0.0, 1000000.0\), got \(0.5, 5.0\)",
        ),
        ({"algo__advantage__is_correction_threshold": (0, 2)}, r"is_correction_threshold: .* got \(0.0, 2.0\)"),
        ({"actor__policy_loss_type": "gspo"}, "actor.policy_loss_type: expected 'ppo', got 'gspo'"),
        ({"actor__dual_clip": 3}, "actor.dual_clip: expected None, got 3.0"),
        ({"algo__dynamic_filtering_enable": True}, "algo.dynamic_filtering_enable: expected False, got True"),
        (
            {"rollout__vllm_generate_batch_size": 2 * BATCH, "train__async_enable": True},
            f"rollout.vllm_generate_batch_size: expected {BATCH}, got {2 * BATCH}",
        ),
        ({"reward__remote_url": None}, "reward.remote_url: expected a reward function"),
        ({"data__max_images_per_prompt": 1}, "data.image_key: images: expected 0, got 1"),
    ],
)
def test_a_flag_that_would_make_it_another_training_is_refused(
    cluster: None, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        generator(parsed(flags(tmp_path, **changes)))


def test_what_the_run_says_otherwise_is_refused(cluster: None, tmp_path: Path) -> None:
    args = parsed(flags(tmp_path, rollout__temperature=0.7))
    with pytest.raises(AdapterError, match=r"sampling.temperature: the run says 1.0, the trainer 0.7"):
        generator(args, run={"sampling": {"temperature": 1.0}})
    with pytest.raises(AdapterError, match=f"group_size: the run says 8, the trainer {GROUP_SIZE}"):
        generator(args, run={"group_size": 8})
    with pytest.raises(AdapterError, match=f"expected at least the {BATCH} prompts of a batch, got {BATCH - 1}"):
        generator(args, count=BATCH - 1)
    with pytest.raises(AdapterError, match="images: expected 0, got 1"):
        generator(args, images=["a.png"])


def test_flags_that_are_right_come_to_the_service(cluster: None, tmp_path: Path) -> None:
    # So that the refusals above are not of something else.
    with pytest.raises(Unavailable):
        generator(parsed(flags(tmp_path)))


def test_a_run_that_was_made_otherwise_is_refused_before_the_first_batch(
    service: Service, tmp_path: Path, engine: Any
) -> None:
    trainer(tmp_path, config(service.target), engine)
    for changes in ({"rollout__temperature": 0.7}, {"rollout__n_samples_per_prompt": GROUP_SIZE + 1}):
        with pytest.raises(AlreadyExists):
            trainer(tmp_path, config(service.target), engine, **changes)
    with pytest.raises(InvalidArgument, match="fresh_fraction"):
        trainer(tmp_path, config(service.target, "other", run={"replay": {"fresh_fraction": 2.0}}), engine)


def test_a_call_with_other_settings_is_refused(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    for name, value in {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "n_samples_per_prompt": 2}.items():
        with pytest.raises(AdapterError, match=rf"generate_samples\({name}\): expected .*, got {value}"):
            made.samples_generator.generate_samples(**{**made.generate_kwargs, name: value})


@pytest.mark.parametrize(
    ("fault", "message"),
    [("none", r"got None: replay would train without"), ("NaN", "got nan"), ("zero", "got 0 for all of them")],
)
def test_log_probs_that_are_missing_or_broken_end_the_training(
    service: Service, tmp_path: Path, engine: Any, fault: str, message: str
) -> None:
    made = trainer(tmp_path, config(service.target), engine)
    ray.get(engine.update_weight.remote(0, fault, made.policy.model.logits.detach().numpy()))
    with pytest.raises(AdapterError, match=f"expected vLLM's log-prob of every token it drew.*{message}"):
        made.fit()
    assert made.policy.statuses == []
    with client(service.target) as looked:
        assert looked.get_run().replay_groups == 0


@pytest.mark.parametrize("fault", [None, "half"])
def test_log_probs_of_another_policy_are_told(
    service: Service, tmp_path: Path, engine: Any, caplog: pytest.LogCaptureFixture, fault: str | None
) -> None:
    made = trainer(tmp_path, config(service.target), engine, train__num_episodes=1)
    ray.get(engine.update_weight.remote(0, fault, made.policy.model.logits.detach().numpy()))
    made.fit()
    told = [each.getMessage() for each in caplog.records if "differ from the policy's" in each.getMessage()]
    assert len(told) == (fault is not None)


def test_a_group_of_an_engine_that_keeps_no_log_probs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def rows(log_prob: float) -> list[Any]:
        drawn = torch.ones((1, 20), dtype=torch.long)
        return [SimpleNamespace(rollout_log_probs=torch.full((1, 20), log_prob), action_mask=drawn) for _ in range(2)]

    check_log_probs({"sound": rows(-0.5), "silent": rows(0.0)})
    assert "rollouts of 'silent': log-probs of all 40 tokens are 0" in caplog.text
    assert "'sound'" not in caplog.text


def test_a_reward_function_that_fails_ends_the_training(service: Service, tmp_path: Path, engine: Any) -> None:
    rows = [(f"{digit}=", "unscorable" if digit == 3 else str(digit)) for digit in range(4)]
    made = trainer(
        tmp_path,
        config(service.target),
        engine,
        rollout__batch_size=4,
        train__batch_size=4 * GROUP_SIZE,
        data__prompt_dataset=data(tmp_path, rows),
    )
    with pytest.raises(AdapterError, match="expected a reward, got none: the reward function failed"):
        made.fit()


def test_a_run_of_other_prompts_is_refused(service: Service, tmp_path: Path, engine: Any) -> None:
    rows = [[(f"{digit}{last}=", str(digit)) for digit in range(4) for last in (a, b)] for a, b in ((0, 1), (2, 3))]
    trainer(tmp_path / "a", config(service.target), engine, data__prompt_dataset=data(tmp_path, rows[0], "a")).fit()
    made = trainer(tmp_path / "b", config(service.target), engine, data__prompt_dataset=data(tmp_path, rows[1], "b"))
    with pytest.raises(AdapterError, match=r"prompts that this training has not, .*: use another run_id"):
        made.fit()


def test_an_outcome_that_the_reward_does_not_give_is_named(service: Service, tmp_path: Path, engine: Any) -> None:
    made = trainer(tmp_path, config(service.target, outcome="accuracy"), engine)
    with pytest.raises(AdapterError, match=r"curriculum.outcome: expected one of \['length', .*, got \['accuracy'\]"):
        made.fit()


@pytest.mark.parametrize("release", ["0.11.1", "0.12.0", "1.0"])
def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda package: release)
    with pytest.raises(AdapterError, match=f"openrlhf: expected openrlhf >= 0.11.2, < 0.12, got {release}"):
        install(config(NOWHERE))


def test_a_hook_that_has_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "trainer_adapters.openrlhf.launcher.SamplesGenerator._dispatch_prompts_to_vllm", lambda self, requests: None
    )
    with pytest.raises(AdapterError, match="_dispatch_prompts_to_vllm: expected the parameters"):
        install(config(NOWHERE))


def test_the_settings_come_from_the_environment(tmp_path: Path) -> None:
    settings = {"target": "host:1", "run_id": "r", "run": {"replay": {"max_age_steps": 9}}, "timeout_s": 5}
    (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    for value in (json.dumps(settings), str(tmp_path / "settings.json")):
        found = configured({"SELECTOR_CURRICULUM": value})
        assert (found.target, found.run_id, found.run, found.timeout_s) == ("host:1", "r", settings["run"], 5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "SELECTOR_CURRICULUM: expected .* got none"),
        ("{", "SELECTOR_CURRICULUM: expected a JSON object or the path of a file with one"),
        ("/nowhere", "SELECTOR_CURRICULUM: expected a JSON object or the path of a file with one"),
        ('{"target": "host:1"}', "curriculum.run_id: is missing"),
        ('{"target": "host:1", "run_id": "r", "replays": false}', "curriculum.replays: no such setting"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(value: str | None, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        configured({} if value is None else {"SELECTOR_CURRICULUM": value})
