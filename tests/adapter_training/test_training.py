"""Training finds what is there to be found, stops where nothing is, and repeats itself."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from selector.adapter_training import Epoch, Trained, TrainingDataError, TrainingOptions, split, train
from selector.adapter_training.judging import Judge
from selector.adapter_training.network import AdapterNetwork
from tests.adapter_training.worlds import WIDTH, world

SMALL = TrainingOptions(references=64, width=32, epochs=12, learning_rate=1e-2)


def trained(options: TrainingOptions) -> Trained:
    return train(split([world(0)], 1, 0.3, 0), options, lambda *_: None)


def weights(network: AdapterNetwork) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()])


@pytest.fixture(scope="module")
def found() -> Trained:
    return trained(SMALL)


def test_the_direction_that_decides_is_found(found: Trained) -> None:
    """A model never trained on, questions never trained on."""
    assert found.untrained.new.pearson < 0.5
    assert found.best.new.pearson > 0.7
    assert found.best.new.loss < found.best.new.constant_loss - 0.15
    assert found.best.seen.pearson > 0.7


def test_the_same_seed_gives_the_same_weights_whatever_torch_has_drawn() -> None:
    short = replace(SMALL, epochs=2)
    first = trained(short)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = trained(short)
    assert torch.equal(torch.random.get_rng_state(), before), "torch's generator is left as it was"
    np.testing.assert_array_equal(weights(again.network), weights(first.network))
    assert again.epochs[1:] == first.epochs[1:]
    other = trained(replace(short, seed=1))
    assert not np.array_equal(weights(other.network), weights(first.network))


def test_training_stops_when_held_out_models_gain_nothing_and_keeps_the_best_weights() -> None:
    options = TrainingOptions(references=64, width=16, epochs=30, patience=3, learning_rate=1e-2)
    parts = split([world(0, size=300, told=0.0)], 1, 0.3, 0)
    result = train(parts, options, lambda *_: None)
    assert result.epochs[-1].number == result.best.number + 3 < 30
    assert result.best.deciding == min(epoch.deciding for epoch in result.epochs)
    judge = Judge(parts.new, options.references, options.seed, torch.device("cpu"))
    assert judge(result.network).loss == result.best.new.loss
    assert result.epochs[-1].training_loss < result.epochs[1].training_loss, "it would have gone on learning by heart"


def test_without_held_out_questions_seen_ones_decide() -> None:
    options = replace(SMALL, epochs=1)
    result = train(split([world(0)], 1, 0.0, 0), options, lambda *_: None)
    assert math.isnan(result.best.new.loss)
    assert result.best.deciding == result.best.seen.loss


def test_progress_is_told_step_by_step() -> None:
    options = TrainingOptions(references=64, width=4, epochs=2, patience=2, queries_per_step=128, models_per_step=2)
    calls: list[tuple[Epoch, int, int]] = []
    train(split([world(0, size=400)], 1, 0.0, 0), options, lambda *call: calls.append(call))
    # 400 questions in 4 parts of at most 128, 4 models in 2 parts, 2 epochs.
    assert [done for _, done, _ in calls[:-1]] == list(range(1, 17))
    assert all(total == 16 for _, _, total in calls)


def test_a_loss_that_explodes_is_an_error() -> None:
    options = replace(SMALL, learning_rate=1e30)
    with pytest.raises(TrainingDataError, match="smaller learning rate"):
        train(split([world(0)], 1, 0.3, 0), options, lambda *_: None)


def test_the_network_predicts_what_the_adapter_does_and_leaves_out_what_was_not_measured() -> None:
    torch.manual_seed(0)
    network = AdapterNetwork(WIDTH, 10).eval()
    random = np.random.default_rng(0)
    queries = random.normal(size=(7, WIDTH)).astype(np.float32)
    references = random.normal(size=(20, WIDTH)).astype(np.float32)
    measured = random.random((20, 3)).astype(np.float32)
    measured[3:, 1] = np.nan
    with torch.no_grad():
        logits = network(*(torch.from_numpy(part) for part in (queries, references, measured))).numpy()

    adapter = network.adapter("name", "key")
    assert (adapter.encoder, adapter.encoder_hash, adapter.head is not None) == ("name", "key", True)
    assert adapter.head is not None
    for column in range(3):
        known = np.isfinite(measured[:, column])
        d = measured[known, column].astype(np.float64)
        scores = adapter.query(queries) @ adapter.reference(references[known]).T / np.sqrt(10)
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attended = attention @ d / attention.sum(axis=1)
        expected = adapter.head(attended, d.mean(), d.std())
        np.testing.assert_allclose(1 / (1 + np.exp(-logits[:, column])), expected, atol=1e-5)


def test_an_adapter_is_a_copy() -> None:
    network = AdapterNetwork(WIDTH, 4)
    adapter = network.adapter("", "")
    before = copy.deepcopy(adapter.query.norm_in.weight)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(adapter.query.norm_in.weight, before)
