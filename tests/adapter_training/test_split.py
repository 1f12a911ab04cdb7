"""Nothing that judges is learned from, and minibatches cover everything once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from selector.adapter_training import RatedQuestions, TrainingDataError, rated_questions, split
from selector.adapter_training.minibatches import BatchSizes
from tests.adapter_training.worlds import embeddings, pass_rates, texts, world


def twins(size: int = 200) -> RatedQuestions:
    """Every text occurs twice."""
    vectors = embeddings(0, size)
    names = [text for text in texts(size // 2) for _ in range(2)]
    return rated_questions("twins", names, vectors, ["a", "b", "c"], pass_rates(0, vectors, 3))


def test_models_and_questions_that_judge_are_not_trained_on() -> None:
    data = twins()
    parts = split([data], ["b"], 0.25, 0)
    assert [part.models for part in (*parts.training, *parts.seen, *parts.new)] == [("a", "c"), ("b",), ("b",)]
    training, new = parts.training[0], parts.new[0]
    assert training.size + new.size == data.size
    assert new.size == 50
    assert not set(training.group) & set(new.group), "equal texts are on one side"
    at = np.flatnonzero(data.embeddings[:, 0] == new.embeddings[0, 0])[0]
    assert new.difficulty[0, 0] == data.difficulty[at, 1]


def test_a_model_is_held_out_of_all_data_sets() -> None:
    first, second = world(0, models=3), world(1, models=2)
    parts = split([first, second], ["model-0", "model-1"], 0.0, 0)
    assert [part.models for part in parts.training] == [("model-2",)]
    assert [part.models for part in parts.seen] == [("model-0", "model-1")] * 2
    assert parts.new == ()


def test_a_number_of_models_is_drawn_by_the_seed() -> None:
    data = [world(0, models=8)]
    draws = [split(data, 3, 0.0, seed).held_out for seed in range(6)]
    assert all(len(drawn) == 3 for drawn in draws)
    assert len(set(draws)) > 1
    assert split(data, 3, 0.0, 2).held_out == draws[2]
    assert len(split(data, None, 0.0, 0).held_out) == 2, "a fifth"


def test_small_data_keeps_all_questions() -> None:
    parts = split([world(0, size=60)], 1, 0.3, 0)
    assert parts.new == ()
    assert parts.training[0].size == 60


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        (["nobody"], "no usable model 'nobody'"),
        ([], "at least one"),
        ([f"model-{i}" for i in range(5)], "none to train on"),
        (0, "between 1 and 4"),
        (5, "between 1 and 4"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(held_out: list[str] | int, says: str) -> None:
    with pytest.raises(TrainingDataError, match=says):
        split([world(0)], held_out, 0.2, 0)


def test_one_model_cannot_be_judged() -> None:
    with pytest.raises(TrainingDataError, match="at least two models"):
        split([world(0, models=1)], None, 0.2, 0)


def test_an_epoch_asks_every_question_once_for_every_model() -> None:
    data = [twins(), world(1, size=90, models=5)]
    sizes = BatchSizes(references=64, queries=50, models=2)
    asked: Counter[tuple[int, int, int]] = Counter()
    batches = list(sizes.epoch(data, np.random.default_rng(0)))
    for batch in batches:
        questions = data[batch.data]
        assert not set(questions.group[batch.references]) & set(questions.group[batch.queries])
        assert len(batch.references) == min(64, questions.size // 2)
        assert len(batch.queries) <= 50
        assert len(batch.models) <= 2
        asked.update((batch.data, q, m) for q in batch.queries.tolist() for m in batch.models.tolist())
    assert set(asked.values()) == {1}
    assert len(asked) == 200 * 3 + 90 * 5
    assert len(batches) == sizes.steps(data)
