"""Success probabilities are exact, and the behaviour log-probs are those of the distribution sampled from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from selector.testbed.policy import (
    PAD,
    Policy,
    answer_log_prob,
    pad_prompts,
    pad_responses,
    response_mask,
    success_probability,
)
from selector.testbed.pretrain import PretrainConfig, load_or_pretrain
from selector.testbed.tasks import make_prompt_sets

SETS = make_prompt_sets(0)


def test_the_exact_success_probability_is_the_frequency_of_right_samples(base: Policy) -> None:
    prompts = [prompt for prompt in SETS.held_out if prompt.level <= 2][:40]
    exact = success_probability(base, prompts)
    assert exact.min() < 0.1
    assert exact.max() > 0.5
    samples = 300
    sampled = base.sample(pad_prompts(prompts), samples, torch.Generator().manual_seed(5))
    answers = pad_responses([prompt.answer for prompt in prompts])
    right = (sampled.tokens == answers[:, None, :]).all(dim=2).sum(dim=1).numpy()
    # Sum of squared z-scores over 40 prompts: mean 40, standard deviation below 12.
    variance = np.maximum(samples * exact * (1 - exact), 0.25)
    assert np.sum((right - samples * exact) ** 2 / variance) < 40 + 4 * 12
    assert abs(right.sum() - samples * exact.sum()) < 4 * np.sqrt(variance.sum())


def test_behaviour_log_probs_are_those_of_the_policy(base: Policy) -> None:
    prompts = pad_prompts(SETS.training[:24])
    sampled = base.sample(prompts, 8, torch.Generator().manual_seed(6))
    with torch.no_grad():
        again = base.log_probs(prompts, sampled.tokens)
    torch.testing.assert_close(sampled.log_probs, again, atol=2e-5, rtol=0)
    mask = response_mask(sampled.tokens)
    assert bool((sampled.log_probs[mask] < 0).all())
    assert bool((sampled.log_probs[~mask] == 0).all())


def test_a_response_is_padded_after_its_end_token_only(base: Policy) -> None:
    sampled = base.sample(pad_prompts(SETS.training[:24]), 8, torch.Generator().manual_seed(7))
    for row in sampled.tokens.flatten(0, 1).tolist():
        end = row.index(0) if 0 in row else len(row) - 1
        assert PAD not in row[: end + 1]
        assert all(token == PAD for token in row[end + 1 :])


def test_what_else_is_in_the_batch_changes_nothing(base: Policy) -> None:
    prompts = SETS.held_out[:36]
    alone = np.concatenate([answer_log_prob(base, [prompt]) for prompt in prompts])
    np.testing.assert_allclose(answer_log_prob(base, prompts), alone, atol=1e-4)


def test_the_base_policy_is_cached_by_its_settings(tmp_path: Path) -> None:
    config = PretrainConfig(updates=2, batch=4)
    made = load_or_pretrain(config, tmp_path)
    calls: list[tuple[int, int]] = []
    loaded = load_or_pretrain(config, tmp_path, lambda done, total: calls.append((done, total)))
    assert calls == [(2, 2)]
    for name, value in made.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    load_or_pretrain(PretrainConfig(updates=2, batch=4, seed=1), tmp_path)
    assert len(list(tmp_path.glob("base-*.pt"))) == 2
