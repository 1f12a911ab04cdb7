"""The tasks have one right answer, the prompt sets do not overlap, and the demonstrator errs as often as it says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from selector.testbed.tasks import (
    ALPHABET,
    LEVELS,
    MAX_LENGTH,
    TASK_BY_NAME,
    TASKS,
    Prompt,
    copy_probability,
    demonstrate,
    make_prompt_sets,
    mixed_prompt_sets,
    random_source,
)

RNG = np.random.default_rng(7)
SOURCES = [random_source(level, RNG) for level in LEVELS for _ in range(20)]


@pytest.mark.parametrize("source", ["ab", "aabbcc", "hgfe", "abcabcabcabc"])
def test_answers_are_those_a_person_would_give(source: str) -> None:
    answers = {task.name: Prompt(task.name, source).answer for task in TASKS}
    expected = {
        "ab": ("ba", "ba", "ba", "bc", "ab", "ab"),
        "aabbcc": ("ccbbaa", "aabbcc", "abbcca", "bbccdd", "aabbcc", "abc"),
        "hgfe": ("efgh", "ghef", "gfeh", "ahgf", "efgh", "hgfe"),
        "abcabcabcabc": ("cbacbacbacba", "baaccbbaaccb", "bcabcabcabca", "bcdbcdbcdbcd", "aaaabbbbcccc", "abc"),
    }[source]
    assert answers == dict(zip(("reverse", "swap", "rotate", "successor", "sort", "unique"), expected, strict=True))


@pytest.mark.parametrize(
    ("task", "period"), [("reverse", 2), ("swap", 2), ("successor", len(ALPHABET)), ("sort", None), ("unique", None)]
)
def test_applying_a_task_again_and_again(task: str, period: int | None) -> None:
    """Permutations come back to the source; sort and unique change nothing more after the first time."""
    solve = TASK_BY_NAME[task].solve
    for source in SOURCES:
        if period is None:
            assert solve(solve(source)) == solve(source)
        else:
            answer = source
            for _ in range(period):
                answer = solve(answer)
            assert answer == source


def test_rotate_comes_back_after_as_many_steps_as_there_are_letters() -> None:
    for source in SOURCES:
        answer = source
        for _ in source:
            answer = TASK_BY_NAME["rotate"].solve(answer)
        assert answer == source


def test_prompt_sets_are_disjoint_balanced_and_a_function_of_the_seed() -> None:
    sets = make_prompt_sets(3)
    every = sets.training + sets.held_out
    assert (len(sets.training), len(sets.held_out)) == (1024, 480)
    assert len({prompt.prompt_id for prompt in every}) == len({prompt.text for prompt in every}) == 1504
    assert all(2 <= len(prompt.source) == 2 * prompt.level <= MAX_LENGTH for prompt in every)
    for part in (sets.training, sets.held_out):
        cells = Counter((prompt.task, prompt.level) for prompt in part)
        assert len(cells) == len(TASKS) * len(LEVELS)
        assert max(cells.values()) - min(cells.values()) <= 1
    assert make_prompt_sets(3) == sets
    assert make_prompt_sets(4) != sets


def test_more_prompts_than_there_are_short_sources_are_refused() -> None:
    with pytest.raises(ValueError, match=r"training \+ held_out: expected at most"):
        make_prompt_sets(0, training=3000)


def test_the_demonstrator_copies_as_often_as_it_says() -> None:
    """A copied symbol shows where source and answer differ there; level 6 has the most noise."""
    rng = np.random.default_rng(11)
    for task in TASKS:
        for level in (2, 6):
            wrong = positions = 0
            while positions < 3000:
                prompt = Prompt(task.name, random_source(level, rng))
                shown, answer = demonstrate(prompt, rng), prompt.answer
                assert len(shown) == len(answer)
                for i, symbol in enumerate(answer):
                    assert shown[i] in (symbol, prompt.source[i])
                    if symbol != prompt.source[i]:
                        positions += 1
                        wrong += shown[i] != symbol
            p = copy_probability(task.name, level)
            assert abs(wrong / positions - p) < 4.5 * np.sqrt(p * (1 - p) / positions)


def test_harder_levels_are_demonstrated_worse() -> None:
    for task in TASKS:
        noise = [copy_probability(task.name, level) for level in LEVELS]
        assert noise == sorted(noise)
        assert 0.0 <= noise[0] < 0.05 < 0.3 < noise[-1] < 1.0


def test_mixtures_have_the_shares_asked_for() -> None:
    sets = mixed_prompt_sets({("sort", 1): 0.25, ("swap", 6): 0.75}, seed=3, training=101, held_out=50)
    every = sets.training + sets.held_out
    assert len(set(every)) == 151
    assert Counter((prompt.task, prompt.level) for prompt in every) == {("sort", 1): 38, ("swap", 6): 113}
    assert {prompt.level for prompt in sets.held_out} == {1, 6}
    assert mixed_prompt_sets({("sort", 1): 0.25, ("swap", 6): 0.75}, 3, 101, 50) == sets
    with pytest.raises(ValueError, match="mixture: there are fewer than 151 sources of level 1 for sort"):
        mixed_prompt_sets({("sort", 1): 1.0}, seed=3, training=101, held_out=50)


def test_noise_scales_the_demonstrators_mistakes() -> None:
    assert copy_probability("sort", 4, 0.5) == pytest.approx(copy_probability("sort", 4) / 2)
    assert copy_probability("sort", 4, 0.0) == 0.0
    rng = np.random.default_rng(1)
    prompt = Prompt("reverse", "abcdefghabcd")
    assert all(demonstrate(prompt, rng, noise=0.0) == prompt.answer for _ in range(20))
