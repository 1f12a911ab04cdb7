"""Rounds of the machines of ``tests.resume.machine``."""

from __future__ import annotations

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.resume.machine import ResumeMachine


def run(machine: type[ResumeMachine], examples: int, rules: int, number: int) -> None:
    """One round; the same examples for the same ``number``."""
    # Hypothesis knows a machine by its name, so each round needs a class of its own to have its own seed.
    seeded = seed(number)(type(machine.__name__, (machine,), {}))
    run_state_machine_as_test(
        seeded,
        settings=settings(
            max_examples=examples,
            stateful_step_count=rules,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
