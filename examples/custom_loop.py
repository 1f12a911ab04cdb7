"""A custom training loop: GRPO with selected prompts and replayed rollouts, in one file that reads from top to bottom.

    selector serve --listen 127.0.0.1:50051 --encoder none
    python examples/custom_loop.py --target 127.0.0.1:50051

The task: read digits, write their running sum modulo 5, such as 3 4 1 -> 3 2 3. One wrong digit and the outcome is 0,
so the difficulty of a prompt depends on its length and falls as the policy learns: at first only the short prompts
ever succeed, and most of the pool would give groups without a gradient. The policy is a network of a few thousand
parameters, starts from nothing, and learns within a minute on two cores.

Left out, because it would hide how the calls fit together:
- a tokenizer, an end-of-sequence token and prompts beside the digits: a response is as long as its prompt here;
- a generation engine: a real one must return the log-probs of the tokens it drew, under the settings stated below;
- checkpoints: save the step with the weights, and on resuming call ``client.rewind(step)`` before going on;
- several processes: let one of them call the service and broadcast, or give each its ``shard``;
- fallbacks: here a service that is away for two minutes ends the training; the client bridges a restart by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from clients import RolloutGroup, SelectorClient
from trainer_adapters.loss import group_advantages, grpo_replay_loss

BASE = 5
LONGEST = 8
# Bounds the logits: without it so small a network is sure of itself long before it is right, and stops exploring.
CERTAINTY = 4.0
# Stated by the run and by every group: log-probs made in another way are refused instead of silently mixed.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "log_prob_mode": "PROCESSED"}


# A restart of the service takes up to a minute, most of it for loading its encoder.
PATIENCE_S = 120.0

# The task


def make_prompts(count: int, seed: int) -> list[str]:
    """Different strings of 1 to 8 digits below 5, as many of each length as there are, up to the same number."""
    rng = np.random.default_rng(seed)
    prompts: set[str] = set()
    for length in range(1, LONGEST + 1):
        every = min(BASE**length, count // LONGEST)
        of_length: set[str] = set()
        while len(of_length) < every:
            of_length.add("".join(map(str, rng.integers(BASE, size=length))))
        prompts |= of_length
    return sorted(prompts, key=lambda prompt: (len(prompt), prompt))


def digits(prompt: str) -> np.ndarray:
    """(length,) int32 tokens of a prompt."""
    return np.array([int(letter) for letter in prompt], dtype=np.int32)


def outcome(prompt: str, response: np.ndarray) -> float:
    """1 if the response is right, digit by digit."""
    return float(np.array_equal(response, np.cumsum(digits(prompt)) % BASE))


def features(prompt: str) -> np.ndarray:
    """What stands for the text's embedding: digits one by one, and how many there are."""
    one_hot = np.zeros((LONGEST, BASE), dtype=np.float32)
    one_hot[np.arange(len(prompt)), digits(prompt)] = 1
    return np.append(one_hot.ravel(), one_hot.sum())


# The policy


class Policy(nn.Module):
    """At every position it sees where it is, the prompt's digit there, and its own previous output."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.position = nn.Embedding(LONGEST, width)
        self.digit = nn.Embedding(BASE, width)
        self.previous = nn.Embedding(BASE + 1, width)
        self.hidden = nn.Sequential(nn.GELU(), nn.Linear(width, width))
        self.head = nn.Parameter(torch.randn(width, BASE))

    def forward(self, prompts: Tensor, responses: Tensor | None = None, greedy: bool = False) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probs, both (rows, positions): of given responses, or of new ones."""
        previous = torch.full_like(prompts[:, 0], BASE)
        tokens, log_probs = [], []
        for position in range(prompts.shape[1]):
            seen = self.digit(prompts[:, position]) + self.previous(previous) + self.position.weight[position]
            logits = CERTAINTY * normalize(self.hidden(seen), dim=-1) @ normalize(self.head, dim=0)
            log_probs_here = logits.log_softmax(dim=-1)
            if responses is not None:
                previous = responses[:, position]
            else:
                previous = logits.argmax(-1) if greedy else torch.multinomial(log_probs_here.exp(), 1)[:, 0]
            tokens.append(previous)
            log_probs.append(log_probs_here.gather(1, previous[:, None])[:, 0])
        return torch.stack(tokens, 1), torch.stack(log_probs, 1)


def padded(rows: Sequence[np.ndarray]) -> Tensor:
    """(rows, longest) from arrays of different lengths, zeros at the end."""
    return nn.utils.rnn.pad_sequence([torch.from_numpy(row.copy()) for row in rows], batch_first=True)


# Rollouts and batches


@torch.no_grad()
def roll_out(policy: Policy, prompts: Sequence[str], rollouts: Sequence[int], step: int) -> list[RolloutGroup]:
    """One group per prompt, with the log-probs that its tokens were drawn with."""
    rows = [digits(prompt) for prompt, count in zip(prompts, rollouts, strict=True) for _ in range(count)]
    tokens, log_probs = (output.numpy() for output in policy(padded(rows).long()))
    groups, start = [], 0
    for prompt, count in zip(prompts, rollouts, strict=True):
        part = range(start, start + count)
        responses = [tokens[row, : len(prompt)] for row in part]
        outcomes = [outcome(prompt, response) for response in responses]
        groups.append(
            RolloutGroup.from_arrays(
                prompt_id=prompt,
                policy_version=step,
                prompt_token_ids=digits(prompt),
                response_token_ids=responses,
                behavior_log_probs=[log_probs[row, : len(prompt)] for row in part],
                # A reward may be shaped, an outcome may not: only outcomes say how difficult a prompt is.
                rewards=outcomes,
                outcomes=outcomes,
                sampling=SAMPLING,
            )
        )
        start += count
    return groups


@dataclass
class Batch:
    """Whole groups, row by row, padded to (rows, positions)."""

    prompts: Tensor
    responses: Tensor
    behavior: Tensor
    mask: Tensor
    advantages: Tensor
    replayed: Tensor


def pad_and_join(fresh: Sequence[RolloutGroup], replayed: Sequence[RolloutGroup]) -> Batch:
    """Fresh and replayed groups in one batch; advantages are computed anew from the stored rewards."""
    groups = [*fresh, *replayed]
    rows = [(group, index) for group in groups for index in range(len(group))]
    sizes = torch.tensor([len(group) for group in groups])
    group_of_row = torch.arange(len(groups)).repeat_interleave(sizes)
    return Batch(
        prompts=padded([group.prompt_token_ids for group, _ in rows]).long(),
        responses=padded([group.response(index) for group, index in rows]).long(),
        behavior=padded([group.log_probs(index) for group, index in rows]),
        mask=padded([group.mask(index) for group, index in rows]),
        advantages=group_advantages(torch.tensor(np.concatenate([g.rewards for g in groups])), group_of_row).float(),
        replayed=group_of_row >= len(fresh),
    )


@torch.no_grad()
def accuracy(policy: Policy, prompts: Sequence[str]) -> float:
    """Share of prompts whose most likely response is right."""
    tokens = policy(padded([digits(prompt) for prompt in prompts]).long(), greedy=True)[0].numpy()
    return float(np.mean([outcome(p, row[: len(p)]) for p, row in zip(prompts, tokens, strict=True)]))


# The loop


def train(client: SelectorClient, steps: int, batch_size: int, seed: int) -> None:
    """Trains a new policy and prints what happens."""
    torch.manual_seed(seed)
    prompts, held_out = make_prompts(800, seed), make_prompts(400, seed + 1)
    policy = Policy()
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)

    client.wait_ready()
    client.create_run({"group_size": 8, "seed": seed, "sampling": SAMPLING})
    client.register_prompts(prompts, prompts, np.stack([features(prompt) for prompt in prompts]))
    # Begins at step 0, whatever an earlier training left behind under this run id.
    client.rewind(0)

    for step in range(steps):
        selection = client.select_batch(step, batch_size)
        fresh = roll_out(policy, selection.prompt_ids, selection.rollouts.tolist(), step)
        # Never the replayed rows: their outcomes are those of an older policy.
        client.report_outcomes(step, {group.prompt_id: group.outcomes for group in fresh})
        replayed = client.sample_rollouts(step, selection.replay_groups)
        # After sampling, so that a batch does not replay its own fresh groups.
        client.push_rollouts(step, fresh)

        batch = pad_and_join(fresh, replayed)
        with torch.no_grad():
            # Fresh rows too: an inference engine's log-probs are not quite the trainer's.
            old = policy(batch.prompts, batch.responses)[1]
        losses = []
        for rows in torch.randperm(len(old)).chunk(2):
            _, log_probs = policy(batch.prompts[rows], batch.responses[rows])
            loss = grpo_replay_loss(
                log_probs,
                old[rows],
                batch.behavior[rows],
                batch.advantages[rows],
                batch.mask[rows],
                counted_rows=batch.replayed[rows],
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimiser.step()
            losses.append(loss)
        client.report_training(
            step,
            effective_sample_size=min(loss.effective_sample_size for loss in losses) if replayed else None,
            max_importance_weight=max(loss.max_weight for loss in losses) if replayed else None,
            clip_fraction=float(np.mean([loss.clip_fraction for loss in losses])),
            updates=len(losses),
        )

        if step % 10 == 0 or step == steps - 1:
            informative = np.mean([np.ptp(group.outcomes) > 0 for group in fresh])
            print(
                f"step {step:4d}  held-out accuracy {accuracy(policy, held_out):.2f}"
                f"  informative groups {informative:.2f}"
                f"  fresh {len(fresh):2d}  replayed {len(replayed):2d}"
                f"  mean length {np.mean([len(prompt) for prompt in selection.prompt_ids]):.1f}"
                f"  effective sample size {losses[-1].effective_sample_size:.2f}"
            )

    quality = client.quality()
    for arm in quality.arms:
        print(f"{arm.arm}: {arm.informative_ratio:.2f} of the last {arm.groups} groups were informative")
    if quality.pearson is not None:
        print(f"predicted against measured difficulty: Pearson {quality.pearson:.2f}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="GRPO on a toy task with selection and replay.")
    parser.add_argument("--target", default="127.0.0.1:50051", help="host:port of the service")
    parser.add_argument("--run-id", default="custom-loop", help="the run; begun anew if it exists")
    parser.add_argument("--token", help="bearer token, if the service asks for one")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=32, help="groups trained on per step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with SelectorClient(arguments.target, arguments.run_id, token=arguments.token, timeout_s=PATIENCE_S) as client:
        train(client, arguments.steps, arguments.batch_size, arguments.seed)
    print(f"{arguments.steps} steps in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
