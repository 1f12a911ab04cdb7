"""Which texts may be twins, whatever their embeddings say."""

from __future__ import annotations

import pytest

from selector.neighbours.wording import signature

_SAME = [
    (r"Find the area of \(ABCD\), if \( AB = 5 \).", "What is the area of $A B C D$ if $AB=5$?"),
    (r"Compute $\dfrac{1}{3} \times x^{2}$.", r"Determine the value of \[\frac{1}{3} × x^2\]"),
    (
        "How many prime numbers are below 1,000?",
        "What is the number of primes below 1000?".replace("primes", "prime numbers"),
    ),
    ("Find the maximum of f(x) for x ≥ 0.", r"Find the greatest of $f(x)$ for $x \geqslant 0$."),
]
_OTHER = [
    ("What is 2+3?", "What is 2+4?"),
    ("What is 2+3?", "What is 2-3?"),
    ("What is 23?", "What is 2 3?"),
    ("Find the largest x.", "Find the smallest x."),
    ("Find f(x) at 0.", "Find f(y) at 0."),
    ("Is it a prime?", "Is it not a prime?"),
    ("There are 26 members; how many girls are there?", "There are 26 members; how many boys are there?"),
    ("Sort the letters of ABBA.", "Sort the letters of BAAB."),
    ("| . | B |", "| B | . |"),
    ("_ Q _", "Q _ _"),
    ("Decode 😶🙃", "Decode 🙃😶"),
    ("Spell this word backward: the", "Spell this word backward: will"),
    ("Spell this word backward: his", "Spell this word backward: His"),
    ("Put in order: not did the", "Put in order: did not the"),
    ("Находится ли точка 5 внутри?", "Находится ли точка 5 снаружи?"),
]


@pytest.mark.parametrize(("left", "right"), _SAME)
def test_another_way_to_put_a_question_reads_the_same(left: str, right: str) -> None:
    assert signature(left) == signature(right)


@pytest.mark.parametrize(("left", "right"), _OTHER)
def test_another_question_reads_otherwise(left: str, right: str) -> None:
    assert signature(left) != signature(right)
