"""The classes that verl's configuration names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.utils.dataset.rl_dataset import RLHFDataset, get_dataset_class

from trainer_adapters.checks import AdapterError, accepts, expect, supported_version
from trainer_adapters.prompt_pool import PromptPool, content_ids
from trainer_adapters.verl.rows import PROMPT_ID, check_fields, fresh_groups, outcomes_by_prompt, with_replayed
from trainer_adapters.verl.training import Training

LOGGER = logging.getLogger("selector.adapter")

_TRAININGS: dict[str, Training] = {}


class SnapshotCallback(CheckpointCallback):
    """``trainer.checkpoint_callback_class``.

    A checkpoint of step g needs no copy of the service's state: a training that resumes from it rewinds the run to g.

    Raises:
        AdapterError: with this configuration something else would silently be trained; names the option.
    """

    def __init__(self, config: Any = None) -> None:
        supported_version("verl", "0.9.1", "0.10")
        for buffer in (ReplayBuffer, ReplayBufferAsync):
            accepts(buffer.sample, f"{buffer.__name__}.sample", ["global_steps", "partition_id", "batch_size"])
        super().__init__(config)
        self._training = Training(config)
        made = get_dataset_class(config.data)
        if not issubclass(made, CurriculumDataset):
            raise AdapterError(f"data.custom_cls: expected CurriculumDataset or a subclass, got {made.__name__}")
        _TRAININGS[self._training.config.run_id] = self._training

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """verl has written a checkpoint."""
        self._training.report_staleness()
        unsent = self._training.curriculum.figures()["unsent_writes"]
        if unsent:
            LOGGER.error("%s: the service lacks %d reports or pushes of the steps before it", checkpoint_dir, unsent)


class CurriculumDataset(RLHFDataset):
    """``data.custom_cls``. verl makes the training's first, then that of validation.

    Prompts are named ``data_source/extra_info.index`` or, where no row has an index, by their content.

    Raises:
        AdapterError: ids that are not unique, rows that are not text alone, too few prompts.
        SelectorError: the service cannot be reached, or refuses the run's config or a prompt.
    """

    def __init__(self, data_files: Any, tokenizer: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(data_files, tokenizer, config, *args, **kwargs)
        self._training = _training((config.get("curriculum") or {}).get("run_id"))
        self._trains = self._training.dataset is None
        if self._trains:
            pool = _pool(self)
            self._positions = {prompt_id: position for position, prompt_id in enumerate(pool.prompt_ids)}
            self._training.open(self, pool)

    def __len__(self) -> int:
        """Number of prompts: to train on, to validate with, or of a validation pass that is a reference pass."""
        if not self._trains and self._training.references_per_pass:
            return self._training.references_per_pass
        return int(super().__len__())

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
        """As many rows as positions: those that the service chooses, but for a validation that only validates."""
        training = self._training
        if self._trains:
            return [self.row(prompt_id) for prompt_id in training.next_prompts(len(positions))]
        if training.references_per_pass:
            return [training.dataset.row(prompt_id) for prompt_id in training.next_references(len(positions))]
        return [self[position] for position in positions]

    def row(self, prompt_id: str) -> dict[str, Any]:
        """One prompt as verl's loader hands it on, with its id."""
        return {**self[self._positions[prompt_id]], PROMPT_ID: prompt_id}

    def state_dict(self) -> dict[str, Any]:
        """Where the training is; verl keeps it in the checkpoint's ``data.pt``."""
        return {"run_id": self._training.config.run_id, "step": self._training.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ``AdapterError`` when the checkpoint is of another step than the one resumed."""
        expect("data.pt: step", state.get("step"), self._training.step, "the checkpoint's folder says so")
        own, other = self._training.config.run_id, state.get("run_id")
        if own != other:
            LOGGER.warning(
                "run %s: the checkpoint of step %d is of run %s, whose outcomes and rollouts this one has not",
                own,
                self._training.step,
                other,
            )


class ServiceReplayBuffer(ReplayBuffer):
    """``trainer.v1.sampler.custom_sampler`` of the synchronous trainer; ``sampler_kwargs`` has the ``run_id``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._training = _training(self.sampler_kwargs.get("run_id"))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """As verl's: a batch and its metrics. A batch to train on has the replayed groups behind the fresh ones.

        Raises:
            AdapterError: rows that verl would not train on as they are; names the field.
        """
        training = self._training
        if partition_id != "train":
            # The rows of the step before are in the queue until validation is over.
            training.report_staleness()
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            if training.references_per_pass:
                training.report(outcomes_by_prompt(batch, training.config.outcomes), "reference")
            return batch, metrics
        expect("verl's step", global_steps, training.step + 1, "prompts were selected for it")
        # Before the fresh groups are stored, so that none is in the batch twice.
        replayed = training.replay()
        missing = max(training.groups - len(replayed) - batch_size, 0)
        if missing:
            training.reserve(missing)
            self.refill_fn(missing)
        batch, metrics = super().sample(global_steps, partition_id, batch_size + missing)
        check_fields(batch)
        fresh = fresh_groups(batch, training.config.outcomes, training.sampling)
        training.deliver(fresh)
        joined = with_replayed(batch, replayed, training.dataset.row)
        training.advance(global_steps, joined.keys[len(batch) :])
        return joined, {**metrics, **training.figures(fresh, replayed)}


class ServiceReplayBufferAsync(ServiceReplayBuffer, ReplayBufferAsync):
    """The same of the asynchronous trainers, ``colocate_async`` and ``separate_async``."""


def _training(run_id: str | None) -> Training:
    if run_id not in _TRAININGS:
        raise AdapterError(
            f"run {run_id!r}: expected trainer.checkpoint_callback_class=trainer_adapters.verl.SnapshotCallback, which "
            "verl makes first, and the same run_id in data.curriculum and in trainer.v1.sampler.sampler_kwargs; got "
            f"{sorted(_TRAININGS) or 'no callback'}"
        )
    return _TRAININGS[run_id]


def _pool(dataset: CurriculumDataset) -> PromptPool:
    rows = dataset.dataframe
    for key in (dataset.image_key, dataset.video_key, dataset.audio_key):
        if key in rows.column_names and any(rows[key]):
            raise AdapterError(
                f"data.train_files: expected text alone, got rows with {key!r}, which cannot be replayed"
            )
    for position, messages in enumerate(rows[dataset.prompt_key]):
        if isinstance(messages, str):
            raise AdapterError(f"data.prompt_key: expected messages in row {position}, got text: {messages[:40]!r}")
    texts = tuple("\n\n".join(map(_text, messages)) for messages in rows[dataset.prompt_key])
    sources = tuple(map(str, _column(rows, "data_source", "unknown")))
    infos = _column(rows, "extra_info", None)
    for position, info in enumerate(infos):
        if info is not None and not isinstance(info, Mapping):
            raise AdapterError(f"extra_info: expected a mapping in row {position}, got {type(info).__name__}")
    indices = [(info or {}).get("index") for info in infos]
    if all(index is None for index in indices):
        LOGGER.warning("data.train_files: no row has extra_info.index, so prompts are named by their content")
        return PromptPool(content_ids(texts), texts, sources)
    if None in indices:
        raise AdapterError(
            f"extra_info.index: expected one on each of {len(texts)} rows or on none, got {indices.count(None)} rows "
            "without, for which verl takes 0"
        )
    return PromptPool(
        tuple(f"{source}/{index}" for source, index in zip(sources, indices, strict=True)), texts, sources
    )


def _column(rows: Any, name: str, missing: Any) -> list[Any]:
    return list(rows[name]) if name in rows.column_names else [missing] * len(rows)


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())
