"""A training small enough for a CPU: OpenRLHF's own trainer, around a policy that is a table.

Real are the command line's parser, the data set, the trainer's loop, the samples generator, the rollout actor with its
executor, the experience maker, and of the policy's side the replay buffer, the training step and the loss. The policy
itself is a table of logits in the place of a DeepSpeed engine, which OpenRLHF runs on CUDA only.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray
import torch
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.ray.launcher import BaseModelActor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from clients import SelectorClient
from trainer_adapters.loss import grpo_replay_loss
from trainer_adapters.openrlhf import CurriculumConfig, install
from trainer_adapters.openrlhf.launcher import COMMAND_LINE

GROUP_SIZE = 4
BATCH = 6
DIGITS = 4
VOCABULARY = 4 + DIGITS


class CpuStrategy(DeepspeedStrategy):
    """OpenRLHF's strategy without DeepSpeed's engine: one process, plain PyTorch."""

    accumulated_gradient = 1

    def setup_distributed(self, *args: Any, **kwargs: Any) -> None:
        """There is one process."""

    def backward(self, loss: Tensor, model: Any, optimizer: Any, **kwargs: Any) -> None:
        """As PyTorch."""
        loss.backward()

    def optimizer_step(self, optimizer: Any, model: Any, scheduler: Any, **kwargs: Any) -> None:
        """As PyTorch."""
        optimizer.step()
        optimizer.zero_grad()

    def all_reduce(self, data: Any, op: str = "mean") -> Any:
        """There is one process."""
        return data

    def get_grad_norm(self, model: Any) -> float:
        """Not looked at."""
        return 0.0


class Table(torch.nn.Module):
    """Logits of the next token given the first and the last one; called as OpenRLHF's ``Actor``."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(VOCABULARY, VOCABULARY, VOCABULARY))
        self.temperature = temperature

    def forward(
        self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, return_output: bool = False, **kwargs: Any
    ) -> Any:
        first = sequences[:, :1].expand(-1, sequences.size(1) - 1)
        log_probs = (self.logits[first, sequences[:, :-1]] / self.temperature).log_softmax(-1)
        log_probs = log_probs.gather(-1, sequences[:, 1:, None]).squeeze(-1) * action_mask
        return (log_probs, SimpleNamespace()) if return_output else log_probs


class Policy(BaseModelActor):
    """What OpenRLHF's trainers ask of the policy's actor, on a CPU; remembers its batches and its losses."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any) -> None:
        """The last argument is the rollout actors."""
        strategy.__class__ = CpuStrategy
        self._setup_distributed(strategy)
        self.args = strategy.args
        self.engines = args[-1]
        self.version = 0
        self.model = Table(self.args.rollout.temperature)
        self.batches: list[Any] = []
        self.losses: list[dict[str, float]] = []
        self.statuses: list[dict[str, float]] = []
        self.checkpoint: dict[str, Any] = {}
        self.latest = Path(self.args.ckpt.path) / "_actor" / "latest.pt"
        if self.args.ckpt.load_enable and self.latest.exists():
            saved = torch.load(self.latest)
            self.model.load_state_dict(saved["model"])
            self.version, self.checkpoint = saved["version"], saved["client_states"]
        optimizer = torch.optim.SGD(self.model.parameters(), lr=10.0)
        with _without_cuda(0):
            self.trainer = ppo_actor.ActorPPOTrainer(
                strategy,
                self.model,
                None,
                optimizer,
                SimpleNamespace(get_last_lr=lambda: [0.0]),
                micro_train_batch_size=self.args.train.micro_batch_size,
            )
        self.trainer.actor_loss_fn.register_forward_hook(self._compare, with_kwargs=True)

    def _compare(self, loss: Any, positional: Any, named: Any, output: Any) -> None:
        """OpenRLHF's loss and its gradient beside those of the formula."""
        current, old, advantages = positional
        mask, behavior = named["action_mask"], named["rollout_log_probs"]
        low, high = self.args.actor.eps_clip_low_high
        paper = grpo_replay_loss(
            current, old, behavior, advantages, mask, clip_low=low, clip_high=high, centre="old", reduction="token_mean"
        )
        (own_gradient,) = torch.autograd.grad(output[0], current, retain_graph=True)
        (gradient,) = torch.autograd.grad(paper.loss, current, retain_graph=True)
        weights = ((old - behavior) * mask).exp()
        self.losses.append(
            {
                "openrlhf": output[0].item(),
                "paper": paper.loss.item(),
                "gradient": (own_gradient - gradient).abs().max().item(),
                "max_weight": weights.max().item(),
                "min_weight": weights.min().item(),
                "max_advantage": advantages.abs().max().item(),
            }
        )

    # What the trainer calls

    def forward(self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """Log-probs of pi_old."""
        with torch.no_grad():
            return self.model(sequences, action_mask, attention_mask)

    def append(self, experience: Any) -> None:
        """As OpenRLHF."""
        self.trainer.replay_buffer.append(experience)

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """One step of OpenRLHF's own training; the order of the rows is the same every time."""
        self.batches.append(list(self.trainer.replay_buffer.items))
        torch.manual_seed(self.version)
        with _without_cuda("cpu"):
            status = self.trainer.ppo_train(kl_ctl)
        self.trainer.replay_buffer.clear()
        self.version += 1
        self.statuses.append(status)
        return status

    def broadcast_to_vllm(self) -> None:
        """The table goes to the rollout actors."""
        table = self.model.logits.detach().numpy()
        ray.get([engine.update_weight.remote(self.version, None, table) for engine in self.engines])

    def save_checkpoint(self, tag: str, client_states: Any = None, **kwargs: Any) -> None:
        """As ``latest`` and under its tag."""
        self.latest.parent.mkdir(parents=True, exist_ok=True)
        saved = {"model": self.model.state_dict(), "version": self.version, "client_states": client_states}
        for path in (self.latest, self.latest.with_name(f"{tag}.pt")):
            torch.save(saved, path)

    def get_checkpoint_states(self) -> dict[str, Any]:
        """As OpenRLHF."""
        return self.checkpoint

    def empty_cache(self) -> None:
        """There is none."""

    def save_model(self) -> None:
        """What a test looks at, where the policy is in another process."""
        Path(self.args.ckpt.output_dir).mkdir(parents=True, exist_ok=True)
        (Path(self.args.ckpt.output_dir) / "statuses.json").write_text(json.dumps(self.statuses), encoding="utf-8")


class LocalGroup:
    """OpenRLHF's ``RayActorGroup`` of one actor that is in this process."""

    def __init__(self, actor: Policy) -> None:
        self.actor = actor

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """As ``RayActorGroup``."""
        return [ray.put(getattr(self.actor, method_name)(*args, **kwargs))]

    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> list[Any]:
        """As ``RayActorGroup``."""
        count = len(next(iter(kwargs.values())))
        return [ray.put(self.actor.execute_batch(method_name, kwargs, 0, count))]


@contextmanager
def _without_cuda(device: Any) -> Iterator[None]:
    with (
        mock.patch.object(torch.cuda, "current_device", lambda: device),
        mock.patch.object(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None),
    ):
        yield


def prompts(count: int = 24) -> list[str]:
    """As ``tests.trainers.digits``, which Ray's workers cannot import: OpenRLHF's wheel brings a package ``tests``."""
    made: list[str] = []
    number = 0
    while len(made) < count:
        text = "".join(str((number // 3 // DIGITS**place) % DIGITS) for place in range(1 + number % 3)) + "="
        if text not in made:
            made.append(text)
        number += 1
    return made


def data(folder: Path, rows: list[tuple[str, str]] | None = None, name: str = "prompts") -> Path:
    """A data set of (prompt, label); by default the label is the prompt's first digit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    listed = rows if rows is not None else [(text, text[0]) for text in prompts()]
    lines = [json.dumps({"prompt": prompt, "label": label}) for prompt, label in listed]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def flags(folder: Path, **changes: Any) -> list[str]:
    """A command line; ``changes`` have ``__`` for a dot, None leaves a flag out, True is a flag without a value."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save_pretrained(folder / "model")
    settings: dict[str, Any] = {
        "actor.model_name_or_path": folder / "model",
        "actor.num_gpus_per_node": 1,
        "reward.remote_url": Path(__file__).with_name("reward.py"),
        "data.prompt_dataset": changes.pop("data__prompt_dataset", None) or data(folder),
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": 16,
        "rollout.max_new_tokens": 3,
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": GROUP_SIZE,
        "rollout.micro_batch_size": 5,
        "train.batch_size": BATCH * GROUP_SIZE,
        "train.micro_batch_size": BATCH * GROUP_SIZE,
        "train.num_episodes": 2,
        "train.seed": 5,
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "algo.advantage.estimator": "group_norm",
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
        "algo.advantage.is_correction_threshold": (0, 1e6),
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "output",
    }
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    line: list[str] = []
    for name, value in settings.items():
        if value is not None:
            values = () if value is True else value if isinstance(value, tuple) else (value,)
            line += [f"--{name}", *map(str, values)]
    return line


def parsed(line: list[str]) -> Any:
    """What OpenRLHF's command line makes of it."""

    class Parsed(BaseException):
        pass

    def stop(args: Any) -> Any:
        raise Parsed(args)

    with (
        mock.patch("openrlhf.utils.get_strategy", stop),
        mock.patch.object(ray, "is_initialized", lambda: True),
        mock.patch.object(sys, "argv", ["train_ppo_ray", *line]),
    ):
        try:
            runpy.run_module(COMMAND_LINE, run_name="__main__")
        except Parsed as found:
            return found.args[0]
    raise AssertionError("the command line did not come to its strategy")


def config(target: str, run_id: str = "openrlhf", **changes: Any) -> CurriculumConfig:
    """Of a run that trains on its own evidence alone, and replays what it can."""
    return CurriculumConfig(target=target, run_id=run_id, **{"timeout_s": 60.0, **changes})


def trainer(
    folder: Path,
    curriculum: CurriculumConfig,
    engine: Any,
    actions: dict[int, Callable[[], None]] | None = None,
    **changes: Any,
) -> Any:
    """OpenRLHF's real ``PPOTrainer`` in this process, with the adapter.

    Args:
        actions: what is done before the batch of a step is asked for.

    Returns:
        The trainer; ``policy`` is its policy, ``batches`` the rows that it drew and ``logged`` what it logged.
    """
    args = parsed(flags(folder, **changes))
    # What is installed is for this training alone.
    with (
        mock.patch.object(ppo_trainer, "SamplesGenerator", ppo_trainer.SamplesGenerator),
        mock.patch.object(ppo_trainer, "RemoteExperienceMaker", ppo_trainer.RemoteExperienceMaker),
    ):
        install(curriculum)
        strategy = CpuStrategy(args=args, micro_train_batch_size=args.train.micro_batch_size)
        with mock.patch.dict(os.environ):
            policy = Policy(1, 0, "127.0.0.1", 1)
        policy.init_model_from_pretrained(strategy, [engine])
        ray.get(engine.update_weight.remote(0, None, policy.model.logits.detach().numpy()))
        made = _recorded()(
            args.actor.model_name_or_path,
            strategy,
            LocalGroup(policy),
            None,
            None,
            None,
            [engine],
            do_sample=True,
            max_len=args.data.max_len,
            max_new_tokens=args.rollout.max_new_tokens,
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
        )
    made.policy, made.batches = policy, []
    draw, left = made.samples_generator.generate_samples, dict(actions or {})

    def generate_samples(**kwargs: Any) -> Any:
        # Once: where an episode ends, the next step is asked for twice.
        left.pop(made.samples_generator._step, lambda: None)()
        answer = draw(**kwargs)
        if answer[0]:
            made.batches.append(answer[0])
        return answer

    made.samples_generator.generate_samples = generate_samples
    return made


def fresh(rows: list[Any]) -> list[Any]:
    """The rows of a batch that are not replayed."""
    return [row for row in rows if row.info["curriculum/replayed"] == 0]


def _recorded() -> Any:
    class Recorded(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class):
        logged: list[dict[str, Any]]

        def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
            self.__dict__.setdefault("logged", []).append(logs_dict)
            super().save_logs_and_checkpoints(global_step, logs_dict, client_states)

    return Recorded


def client(target: str, run_id: str = "openrlhf") -> SelectorClient:
    """A second look at the run."""
    return SelectorClient(target, run_id, timeout_s=60)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Characters: four digits, the sign that asks for them, and three that a tokenizer needs."""
    tokens = ["<pad>", "<eos>", "<unk>", "=", *map(str, range(DIGITS))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
