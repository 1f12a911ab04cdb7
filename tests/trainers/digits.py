"""Prompts of the tiny trainings: digits to be repeated."""

from __future__ import annotations

DIGITS = 4


def prompts(count: int = 24) -> list[str]:
    """Different strings of digits, lengths 1 to 3 in turn, with the sign at the end that asks for them."""
    made: list[str] = []
    number = 0
    while len(made) < count:
        length = 1 + number % 3
        digits = "".join(str((number // 3 // DIGITS**place) % DIGITS) for place in range(length))
        if f"{digits}=" not in made:
            made.append(f"{digits}=")
        number += 1
    return made
