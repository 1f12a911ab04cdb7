"""verl's real synchronous trainer, replay buffer and queue on a CPU, with a policy of one matrix.

Stand-ins, because they need GPUs: the worker group (but not the loss: it calls verl's), the checkpoint manager, and of
the agent loop the engine that generates. Everything else is verl's own code, its rows and statuses included.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from datasets import Dataset
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.utils.losses import ppo_loss

from clients import SelectorClient

GROUP_SIZE = 4
FRESH = 3
PROMPTS = 40
VOCABULARY = 12
MAX_RESPONSE = 6
# Large enough for ratios beyond the clip, and weights of several.
LEARNING_RATE = 12.0
_CLONE = Path(__file__).parents[3]
_PAGE = _CLONE / "docs" / "trainers" / "verl.md"
_AgentLoopWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


def prompt_ids(count: int = PROMPTS) -> list[str]:
    """Of the data that ``data_files`` writes."""
    return [f"digits/{index}" for index in range(count)]


def data_files(folder: Path, count: int = PROMPTS, **columns: Any) -> str:
    """A parquet file of prompts; columns that are None are left out."""
    rows = {
        "prompt": [[{"role": "user", "content": " ".join(str(index))}] for index in range(count)],
        "data_source": ["digits"] * count,
        "reward_model": [{"style": "rule", "ground_truth": str(index)} for index in range(count)],
        "extra_info": [{"index": index} for index in range(count)],
        **columns,
    }
    path = folder / "prompts.parquet"
    Dataset.from_dict({name: values for name, values in rows.items() if values is not None}).to_parquet(path)
    return str(path)


def model_folder(folder: Path) -> str:
    """A tokenizer and a config, as verl reads them; there are no weights."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *map(str, range(10))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    path = folder / "model"
    tokenizer.save_pretrained(path)
    Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(path)
    return str(path)


def documented() -> str:
    """The configuration that a user pastes from the documentation."""
    return re.findall(r"```yaml\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


def documented_overrides() -> list[str]:
    """What the documentation adds to it on the command line for dedicated references."""
    blocks = re.findall(r"```sh\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return shlex.split(next(block for block in blocks if "DEDICATED" in block).replace("\\\n", " "))


def config(folder: Path, target: str, run_id: str = "run", *overrides: str, data: str | None = None) -> DictConfig:
    """The documented configuration, made small."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "curriculum.yaml").write_text(documented(), encoding="utf-8")
    files = data or data_files(folder)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base=None):
        composed = compose(
            "curriculum",
            [
                f"data.curriculum.target={target}",
                f"data.curriculum.run_id={run_id}",
                "+data.curriculum.timeout_s=60",
                f"data.train_files={files}",
                f"data.val_files={files}",
                f"data.train_batch_size={FRESH}",
                "data.val_max_samples=4",
                "data.seed=7",
                f"actor_rollout_ref.rollout.n={GROUP_SIZE}",
                f"actor_rollout_ref.model.path={model_folder(folder)}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={FRESH}",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                "trainer.total_training_steps=8",
                "trainer.device=cpu",
                "trainer.n_gpus_per_node=1",
                "trainer.logger=[]",
                "trainer.val_before_train=false",
                "trainer.test_freq=-1",
                "trainer.save_freq=-1",
                f"trainer.default_local_dir={folder / 'checkpoints'}",
                *overrides,
            ],
        )
    with open_dict(composed):
        composed.transfer_queue.enable = True
    return composed


class Policy:
    """Log-probs of a token given the one before it, at temperature 1."""

    def __init__(self) -> None:
        self.version = 0
        self.weights = torch.nn.Parameter(
            0.1 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
        )

    def log_probs(self, input_ids: torch.Tensor) -> torch.Tensor:
        """As verl's engine: at each position the log-prob of the token that follows, a nested tensor."""
        rows = []
        for ids in input_ids.unbind():
            following = torch.log_softmax(self.weights[ids[:-1]], dim=-1).gather(1, ids[1:, None])[:, 0]
            rows.append(torch.cat([following, following.new_zeros(1)]))
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@dataclass(frozen=True)
class Update:
    """Of a mini-batch: verl's loss, its gradient, and the weights before."""

    loss: float
    gradient: torch.Tensor
    weights: torch.Tensor


class WorkerGroup:
    """The actor's workers: one rank, plain gradient descent on verl's loss."""

    def __init__(self, config: DictConfig) -> None:
        self._dispatch_info = {"actor": [0]}
        self.policy = Policy()
        self._config = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self._mini_batch = self._config.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        self.batches: list[dict[str, Any]] = []

    def compute_log_prob(self, batch: tq.KVBatchMeta) -> tq.KVBatchMeta:
        """Of the whole sequence, into the queue."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
        with torch.no_grad():
            log_probs = self.policy.log_probs(data["input_ids"])
        data["log_probs"], data["entropy"] = log_probs, -log_probs
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data.select("log_probs", "entropy"))
        return batch

    def update_actor(self, batch: tq.KVBatchMeta) -> dict[str, Any]:
        """A step for each mini-batch; keeps what it was given, and what came of it."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        seen: dict[str, Any] = {"keys": list(batch.keys), "tags": list(batch.tags), "data": data, "updates": []}
        self.batches.append(seen)
        for start in range(0, len(batch), self._mini_batch):
            before = self.policy.weights.detach().clone()
            loss = self.loss(batch.keys[start : start + self._mini_batch])
            (gradient,) = torch.autograd.grad(loss, [self.policy.weights])
            seen["updates"].append(Update(loss.item(), gradient, before))
            with torch.no_grad():
                self.policy.weights -= LEARNING_RATE * gradient
        return {"metrics": {"mfu": [0.0], "grad_norm": [1.0]}}

    def loss(self, keys: list[str]) -> torch.Tensor:
        """verl's, of a mini-batch of one rank."""
        data = tq.kv_batch_get(keys=keys, partition_id="train")
        tokens = int(data["response_mask"].values().sum())
        assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(keys))
        return ppo_loss(self._config, {"log_probs": self.policy.log_probs(data["input_ids"])}, data)[0]

    def save_checkpoint(self, local_path: str, *_: Any, **__: Any) -> None:
        """The weights."""
        Path(local_path).mkdir(parents=True, exist_ok=True)
        torch.save(self.policy.weights.detach(), Path(local_path) / "weights.pt")

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        """The weights."""
        with torch.no_grad():
            self.policy.weights.copy_(torch.load(Path(local_path) / "weights.pt"))


class Engine:
    """What generates; also the checkpoint manager that gives it the weights.

    Attributes:
        asked: by verl's step the prompts that were rolled out, in order; of validation by -1 - step.
        generated: by prompt, policy version, session, and whether it was for validation.
        spoil: changes a rollout's output before verl stores it.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._weights = policy.weights.detach().clone()
        self.version = 0
        self.asked: dict[int, list[str]] = {}
        self.generated: dict[tuple[str, int, int, bool], AgentLoopOutput] = {}
        self.spoil: Callable[[AgentLoopOutput, str, int], AgentLoopOutput | None] = lambda output, prompt_id, session: (
            output
        )

    def update_weights(self, global_steps: int) -> None:
        """From the actor."""
        self.version, self._weights = global_steps, self._policy.weights.detach().clone()

    def sleep_replicas(self) -> None:
        """Nothing to free."""

    abort_replicas = resume_generation_replicas = sleep_replicas

    def generate(self, prompt_id: str, session: int, tokens: list[int], validate: bool) -> AgentLoopOutput:
        """A rollout that depends on policy, prompt and session alone; a larger prompt is likelier right."""
        number = int(prompt_id.rsplit("/", 1)[1])
        rng = np.random.default_rng((number, session, self.version, validate))
        response: list[int] = []
        log_probs: list[float] = []
        for _ in range(int(rng.integers(2, MAX_RESPONSE + 1))):
            row = torch.log_softmax(self._weights[(tokens + response)[-1]], dim=-1)
            token = int(rng.choice(VOCABULARY, p=row.exp().double().numpy() / row.exp().double().sum().item()))
            response.append(token)
            log_probs.append(row[token].item())
        right = float(rng.random() < (number + 1) / (PROMPTS + 1))
        output = AgentLoopOutput(
            prompt_ids=tokens,
            response_ids=response,
            response_mask=[1] * len(response),
            response_logprobs=log_probs,
            reward_score=right,
            num_turns=2,
            metrics={},
            extra_fields={
                "min_global_steps": self.version,
                "max_global_steps": self.version,
                "reward_extra_info": {"acc": right},
            },
        )
        self.generated[prompt_id, self.version, session, validate] = output
        return output


class Worker(_AgentLoopWorker):  # type: ignore[misc, valid-type]
    """verl's agent loop worker without its connection to a server: rows, keys and statuses are verl's."""

    def __init__(self, config: DictConfig, engine: Engine, tokenizer: Any) -> None:
        self.config, self.engine, self.tokenizer = config, engine, tokenizer
        self.processor = None
        self.distillation_enabled = False
        self.background_tasks: set[asyncio.Task[Any]] = set()
        self.turn = asyncio.Lock()

    async def _compute_score(self, outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> None:
        """The engine has."""

    async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **kwargs: Any) -> None:
        kwargs.pop("agent_name"), kwargs.pop("trace")
        prompt_id = f"{kwargs['data_source']}/{kwargs['index']}"
        tokens = self.tokenizer(kwargs["raw_prompt"][0]["content"])["input_ids"]
        validate = trajectory["validate"]
        if kwargs["session_id"] == 0:
            step = -1 - kwargs["global_steps"] if validate else kwargs["global_steps"]
            self.engine.asked.setdefault(step, []).append(prompt_id)
        output = self.engine.generate(prompt_id, kwargs["session_id"], tokens, validate)
        spoilt = self.engine.spoil(output, prompt_id, kwargs["session_id"])
        if spoilt is not None:
            async with self.turn:
                await self._agent_loop_postprocess(spoilt, validate, **kwargs)


class AgentLoopManager:
    """Generates before it returns, one prompt after the other, so that the order of rows does not depend on time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def generate_sequences(self, prompts: Any) -> None:
        """As verl's."""
        asyncio.run(self._generate(prompts))

    async def _generate(self, prompts: Any) -> None:
        self._worker.turn = asyncio.Lock()
        for prompt in prompts.chunk(len(prompts)):
            await self._worker.generate_sequences(prompt)
            await asyncio.gather(*self._worker.background_tasks)


class _StandIns:
    """Where verl would reserve GPUs.

    Attributes:
        before: by verl's step something to do before the step.
        logged: by verl's step what it logged.
    """

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self.before: dict[int, Callable[[], object]] = {}
        self.logged: dict[int, dict[str, Any]] = {}

    def _setup(self) -> None:
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.actor_rollout_wg = WorkerGroup(self.config)
        self.checkpoint_manager = self.engine = Engine(self.actor_rollout_wg.policy)
        self._load_checkpoint()
        self.agent_loop_manager = AgentLoopManager(Worker(self.config, self.engine, self.tokenizer))

    def train(self) -> Any:
        """``fit`` with the stand-in of the agent loop."""
        self.fit(self.agent_loop_manager)
        return self

    def on_step_begin(self) -> None:
        if self.global_steps in self.before:
            self.before[self.global_steps]()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.logged[kwargs["global_steps"]] = dict(metrics)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """What the actor was updated with, step by step."""
        return self.actor_rollout_wg.batches


class Trainer(_StandIns, PPOTrainerSync):
    """The synchronous one."""


class AsyncTrainer(_StandIns, PPOTrainerColocateAsync):
    """The one that keeps rollouts between steps."""


def trainer(config: DictConfig, kind: type[Any] = Trainer) -> Any:
    """Ready to train; what another left in the queue is gone, as with its process."""
    for partition, rows in (tq.kv_list() or {}).items():
        if rows:
            tq.kv_clear(keys=list(rows), partition_id=partition)
    made = kind(config)
    made.init()
    return made


def start_queue() -> None:
    """verl's queue, in memory, on as little as it needs."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    tq.init(OmegaConf.create({"backend": storage}))


def client(target: str, run_id: str = "run") -> SelectorClient:
    """Looks at what the service knows."""
    return SelectorClient(target, run_id, timeout_s=60)


def _die_before(step: int, folder: str, *arguments: str) -> None:
    start_queue()
    made = trainer(config(Path(folder), *arguments))
    made.before[step] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    made.train()


if __name__ == "__main__":
    _die_before(int(sys.argv[1]), *sys.argv[2:])
