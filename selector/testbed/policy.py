"""A character-level transformer policy with exact log-probs.

Prompts attend to themselves in both directions and are computed once per prompt, however many responses share them;
a response attends to its prompt and, causally, to itself. Sampling is at temperature 1 and truncates nothing, so the
log-probs it returns are those of the distribution the tokens were drawn from, and ``answer_log_prob`` is the exact log
of the success probability.

Shapes: P prompts, G responses per prompt, T tokens of a response (its end token included).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from selector.testbed.tasks import ALPHABET, MAX_LENGTH, TASKS, Prompt

# The symbols a response can hold come first, so that the policy is a distribution over exactly these.
END = 0
_LETTER_TOKEN = {letter: 1 + i for i, letter in enumerate(ALPHABET)}
RESPONSE_VOCABULARY = 1 + len(ALPHABET)
_TASK_TOKEN = {task.name: RESPONSE_VOCABULARY + i for i, task in enumerate(TASKS)}
START = RESPONSE_VOCABULARY + len(TASKS)
PAD = START + 1
VOCABULARY = PAD + 1
PROMPT_WIDTH = MAX_LENGTH + 1
RESPONSE_WIDTH = MAX_LENGTH + 1


def prompt_tokens(prompt: Prompt) -> np.ndarray:
    """(1 + length,) int32: the task's token and the letters."""
    return np.array([_TASK_TOKEN[prompt.task], *(_LETTER_TOKEN[c] for c in prompt.source)], dtype=np.int32)


def response_tokens(response: str) -> np.ndarray:
    """(length + 1,) int32: the letters and the end token."""
    return np.array([*(_LETTER_TOKEN[c] for c in response), END], dtype=np.int32)


def pad(rows: Sequence[np.ndarray], width: int) -> Tensor:
    """(rows, width) int64, filled up with PAD."""
    padded = np.full((len(rows), width), PAD, dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


def pad_prompts(prompts: Sequence[Prompt]) -> Tensor:
    """(P, PROMPT_WIDTH) int64."""
    return pad([prompt_tokens(prompt) for prompt in prompts], PROMPT_WIDTH)


def response_mask(responses: Tensor) -> Tensor:
    """Bool, true up to and including the end token; of responses padded with PAD."""
    return responses != PAD


def pad_responses(responses: Sequence[str]) -> Tensor:
    """(rows, RESPONSE_WIDTH) int64."""
    return pad([response_tokens(response) for response in responses], RESPONSE_WIDTH)


@dataclass(frozen=True)
class PolicyConfig:
    """Size of the network; the defaults have 0.1M parameters."""

    width: int = 64
    layers: int = 2
    heads: int = 4


class _Block(nn.Module):
    """One layer. All but attention runs on packed tokens (n, width): padding costs nothing."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def project(self, x: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (rows, heads, tokens, width / heads), of the tokens ``present`` (rows, tokens)."""
        rows, tokens = present.shape
        qkv = self.qkv(self.attention_norm(x))
        spread = qkv.new_zeros(rows, tokens, qkv.shape[-1])
        spread[present] = qkv
        query, key, value = spread.view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def finish(self, x: Tensor, present: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """The layer's output for ``x`` given what its queries may attend to; ``mask`` is true where they may."""
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2)[present])
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


@dataclass(frozen=True)
class Responses:
    """Sampled responses: tokens (P, G, T) int64 padded with PAD, behaviour log-probs (P, G, T), 0 on the padding."""

    tokens: Tensor
    log_probs: Tensor


class Policy(nn.Module):
    """Maps padded prompts (P, PROMPT_WIDTH) and responses (P, G, T) to log-probs."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.symbols = nn.Embedding(VOCABULARY, config.width)
        self.from_start = nn.Embedding(PROMPT_WIDTH, config.width)
        self.from_end = nn.Embedding(PROMPT_WIDTH, config.width)
        self.response_from_start = nn.Embedding(RESPONSE_WIDTH, config.width)
        self.response_from_end = nn.Embedding(RESPONSE_WIDTH, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, RESPONSE_VOCABULARY, bias=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Draws all weights from ``generator``."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deeper = name.endswith(("out.weight", "down.weight"))
                std = (0.5 if deeper else 1.0) / math.sqrt(self.config.width)
                nn.init.normal_(parameter, std=std, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _layers(self) -> list[_Block]:
        return [block for block in self.blocks if isinstance(block, _Block)]

    def _encode(self, prompts: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values of the prompts by layer, and which of their tokens are present (P, PROMPT_WIDTH)."""
        present = prompts != PAD
        index = torch.arange(prompts.shape[1]).expand(prompts.shape)[present]
        last = (present.sum(dim=1, keepdim=True) - 1).expand(prompts.shape)[present]
        x = self.symbols(prompts[present]) + self.from_start(index) + self.from_end(last - index)
        cache = []
        layers = self._layers()
        for block in layers:
            query, key, value = block.project(x, present)
            cache.append((key, value))
            if block is not layers[-1]:
                x = block.finish(x, present, query, key, value, present[:, None, None, :])
        return cache, present

    def _embed_response(self, symbols: Tensor, index: Tensor, length: Tensor) -> Tensor:
        """Positions are counted from both ends, as in the prompt: the source's ``length`` is known."""
        left = (length - index).clamp(min=0)
        return self.symbols(symbols) + self.response_from_start(index) + self.response_from_end(left)

    def log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """(P, G, T) log-prob of every response token, 0 on the padding."""
        count, group, tokens = responses.shape
        cache, prompt_present = self._encode(prompts)
        flat = responses.reshape(count * group, tokens)
        present = response_mask(flat)
        inputs = torch.cat([torch.full_like(flat[:, :1], START), flat[:, :-1]], dim=1)
        index = torch.arange(tokens).expand(flat.shape)[present]
        length = (prompt_present.sum(dim=1) - 1).repeat_interleave(group)[:, None].expand(flat.shape)[present]
        x = self._embed_response(inputs[present], index, length)
        causal = torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(count * group, 1, -1, -1)
        visible = prompt_present.repeat_interleave(group, dim=0)[:, None, None, :].expand(-1, -1, tokens, -1)
        mask = torch.cat([visible, causal], dim=3)
        for block, (prompt_key, prompt_value) in zip(self._layers(), cache, strict=True):
            query, key, value = block.project(x, present)
            key = torch.cat([prompt_key.repeat_interleave(group, dim=0), key], dim=2)
            value = torch.cat([prompt_value.repeat_interleave(group, dim=0), value], dim=2)
            x = block.finish(x, present, query, key, value, mask)
        scores = torch.log_softmax(self.head(self.norm(x)), dim=-1)
        chosen = scores.gather(1, flat[present][:, None])[:, 0]
        return scores.new_zeros(flat.shape).masked_scatter(present, chosen).view(count, group, tokens)

    @torch.no_grad()
    def sample(self, prompts: Tensor, group: int, generator: torch.Generator) -> Responses:
        """``group`` responses per prompt at temperature 1; one that does not end is cut at RESPONSE_WIDTH tokens."""
        count = prompts.shape[0]
        rows = count * group
        encoded, prompt_present = self._encode(prompts)
        start = prompts.shape[1]
        cache = [(_room_for_responses(key, group), _room_for_responses(value, group)) for key, value in encoded]
        visible = torch.ones(rows, 1, 1, start + RESPONSE_WIDTH, dtype=torch.bool)
        visible[:, 0, 0, :start] = prompt_present.repeat_interleave(group, dim=0)
        length = (prompt_present.sum(dim=1) - 1).repeat_interleave(group)
        tokens = torch.full((rows, RESPONSE_WIDTH), PAD, dtype=torch.int64)
        log_probs = torch.zeros(rows, RESPONSE_WIDTH)
        # Rows being computed, and which of them have not ended; the others are dropped a quarter at a time.
        row = torch.arange(rows)
        open_rows = torch.ones(rows, dtype=torch.bool)
        last = torch.full((rows,), START, dtype=torch.int64)
        for t in range(RESPONSE_WIDTH):
            x = self._embed_response(last, torch.full_like(last, t), length)
            until = start + t + 1
            one = torch.ones(len(row), 1, dtype=torch.bool)
            for block, (keys, values) in zip(self._layers(), cache, strict=True):
                query, keys[:, :, until - 1 : until], values[:, :, until - 1 : until] = block.project(x, one)
                x = block.finish(x, one, query, keys[:, :, :until], values[:, :, :until], visible[..., :until])
            scores = torch.log_softmax(self.head(self.norm(x)), dim=-1)
            drawn = torch.multinomial(scores.exp(), 1, generator=generator)
            last = drawn[:, 0]
            tokens[row[open_rows], t] = last[open_rows]
            log_probs[row[open_rows], t] = scores.gather(1, drawn)[open_rows, 0]
            open_rows = open_rows & (last != END)
            if not open_rows.any():
                break
            if open_rows.sum() <= 0.75 * len(row):
                row, last, length, visible = (column[open_rows] for column in (row, last, length, visible))
                cache = [(keys[open_rows], values[open_rows]) for keys, values in cache]
                open_rows = torch.ones(len(row), dtype=torch.bool)
        shape = (count, group, RESPONSE_WIDTH)
        return Responses(tokens.view(shape), log_probs.view(shape))


def _room_for_responses(prompt: Tensor, group: int) -> Tensor:
    """Keys or values of prompts (P, heads, tokens, ·) for each of ``group`` responses, with room for theirs."""
    rows = prompt.repeat_interleave(group, dim=0)
    count, heads, _, size = rows.shape
    return torch.cat([rows, rows.new_empty(count, heads, RESPONSE_WIDTH, size)], dim=2)


@torch.no_grad()
def answer_log_prob(policy: Policy, prompts: Sequence[Prompt]) -> np.ndarray:
    """(P,) float64: log of the exact probability that a sampled response is the prompt's only right answer."""
    answers = pad_responses([prompt.answer for prompt in prompts])[:, None, :]
    log_probs = policy.log_probs(pad_prompts(prompts), answers)
    return log_probs.sum(dim=2)[:, 0].double().numpy()


def success_probability(policy: Policy, prompts: Sequence[Prompt]) -> np.ndarray:
    """(P,) float64 in [0, 1], without sampling noise; difficulty is 1 minus it."""
    return np.exp(answer_log_prob(policy, prompts))
