"""Which measured prompts become references."""

import numpy as np
import pytest

from selector.difficulty.reference_set import ReferenceSet
from tests.difficulty.simulation import batch_of


def _prompts(references: ReferenceSet) -> list[int]:
    return references.current().prompt.tolist()


def test_in_batch_keeps_the_newest_uniform_prompts() -> None:
    references = ReferenceSet("IN_BATCH", 3)
    references.observe(batch_of(1, [0, 1, 2], [8, 8, 8], uniform=np.array([True, False, True])))
    assert _prompts(references) == [0, 2]
    references.observe(batch_of(2, [3, 0, 4], [8, 4, 8], uniform=np.array([True, True, True])))
    assert _prompts(references) == [3, 0, 4]
    assert references.current().difficulty.tolist() == [0.0, 0.5, 0.0]


def test_none_takes_whatever_was_rolled_out() -> None:
    references = ReferenceSet("NONE", 2)
    references.observe(batch_of(1, [5, 6, 7], [8, 8, 8], uniform=np.zeros(3, bool)))
    assert _prompts(references) == [6, 7]


def test_dedicated_is_the_whole_newest_pass() -> None:
    references = ReferenceSet("DEDICATED", 2)
    references.observe(batch_of(2, [9], [8]))
    assert _prompts(references) == []
    references.observe(batch_of(2, [0, 1, 2], [8, 8, 8], reference=True))
    references.observe(batch_of(2, [3], [8], reference=True))
    assert _prompts(references) == [0, 1, 2, 3]
    references.observe(batch_of(3, [], [], reference=True))
    assert _prompts(references) == [0, 1, 2, 3]
    references.observe(batch_of(4, [7], [0], reference=True))
    references.observe(batch_of(2, [8], [0], reference=True))
    assert _prompts(references) == [7]


def test_one_visit_adds_up_and_an_older_one_changes_nothing() -> None:
    references = ReferenceSet("NONE", 4)
    references.observe(batch_of(3, [0], [1.0], 4))
    references.observe(batch_of(3, [0], [1.5], 4))
    references.observe(batch_of(1, [0], [4.0], 4))
    current = references.current()
    assert current.difficulty.tolist() == [1 - 2.5 / 8] and current.trials.tolist() == [8]


def test_forgotten_prompts_leave_and_copies_are_independent() -> None:
    references = ReferenceSet("NONE", 4)
    references.observe(batch_of(1, [0, 1], [1.0, 1.0]))
    copy = references.copy()
    references.forget(np.array([1, 17]))
    assert _prompts(references) == [0] and _prompts(copy) == [0, 1]


def test_unknown_mode_and_empty_size_are_refused() -> None:
    with pytest.raises(ValueError, match="IN_BATCH, DEDICATED, NONE"):
        ReferenceSet("OTHER", 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference size"):
        ReferenceSet("NONE", 0)
