"""In the place of vLLM, which does not install without CUDA: the names that OpenRLHF's rollout actor uses.

The engine's model is a table: the logits of the next token given the first token of the sequence and the last one.
OpenRLHF's ``update_weight`` brings it, see ``tests.trainers.openrlhf.tiny.Policy``. What is drawn follows from the
prompt, the weights' version and how often the prompt was asked for under that version. A fault spoils the log-probs:
``"none"`` of them, ``"zero"``, ``"half"`` of each or ``"NaN"``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "0.29.0"
VOCABULARY = 8
END = 1
_TAGS = ("weights", "kv_cache")


@dataclass
class SamplingParams:
    """The settings that OpenRLHF gives."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = None
    min_tokens: int = 1
    skip_special_tokens: bool = False
    logprobs: int | None = None


@dataclass
class AsyncEngineArgs:
    """Takes anything."""

    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.settings = kwargs


class AsyncLLMEngine:
    """Draws from the table."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.weights = np.zeros((VOCABULARY, VOCABULARY, VOCABULARY))
        self.version = 0
        self.processed = settings.get("logprobs_mode") == "processed_logprobs"
        self.fault: str | None = None
        self.awake = set(_TAGS)
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)
        self._asked: Counter[tuple[int, ...]] = Counter()

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        """As vLLM."""
        return cls(copy.deepcopy(args.settings))

    async def is_sleeping(self) -> bool:
        """As vLLM."""
        return not self.awake

    async def sleep(self, level: int = 1) -> None:
        """As vLLM."""
        self.awake.clear()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """As vLLM: parts of it may be woken alone."""
        self.awake |= set(tags or _TAGS)

    async def reset_prefix_cache(self) -> None:
        """There is none."""

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        """``update_weight`` brings (version, fault, table, _)."""
        if method == "update_weight":
            self.version, self.fault, table, _ = args
            self.weights = np.array(table, dtype=np.float64)
            self._asked.clear()

    async def generate(self, prompt: dict[str, Any], params: SamplingParams, request_id: str) -> AsyncIterator[Any]:
        """One continuation, with vLLM's log-probs after temperature, or before where they are not asked for so."""
        assert self.awake == set(_TAGS)
        ids = list(prompt["prompt_token_ids"])
        self._asked[tuple(ids)] += 1
        rng = np.random.default_rng([*ids, self.version, self._asked[tuple(ids)]])
        drawn: list[int] = []
        log_probs = []
        while len(drawn) < params.max_tokens and (not drawn or drawn[-1] != END):
            logits = self.weights[ids[0], (ids + drawn)[-1]]
            processed = _log_softmax(logits / params.temperature)
            drawn.append(int(rng.choice(VOCABULARY, p=np.exp(processed) / np.exp(processed).sum())))
            told = processed if self.processed else _log_softmax(logits)
            value = told[drawn[-1]] * {"NaN": np.nan, "zero": 0.0, "half": 0.5}.get(self.fault or "", 1.0)
            log_probs.append({drawn[-1]: SimpleNamespace(logprob=float(value))})
        yield SimpleNamespace(
            outputs=[
                SimpleNamespace(
                    token_ids=drawn,
                    text="",
                    finish_reason="stop" if drawn[-1] == END else "length",
                    logprobs=log_probs if params.logprobs is not None and self.fault != "none" else None,
                )
            ]
        )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
