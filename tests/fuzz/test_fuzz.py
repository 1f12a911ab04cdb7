"""Short rounds of the fuzz targets; ``make fuzz`` runs long ones."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.client_target import USES, try_answers
from tests.fuzz.faults import Findings
from tests.fuzz.formats import READERS, FormatTarget
from tests.fuzz.http2_target import try_bytes
from tests.fuzz.mutation import mutated
from tests.fuzz.rpc_target import try_messages
from tests.fuzz.targets import FORMATS
from tests.fuzz.world import sound_requests
from tests.service.bad_input import METHODS

Try = Callable[[Findings, int, int, Path], None]


def test_no_rpc_and_no_format_is_left_out() -> None:
    assert sorted(sound_requests("plain", 0)) == sorted(METHODS)
    assert sorted(USES) == sorted(METHODS)
    assert sorted(FORMATS) == sorted(READERS)


@pytest.mark.parametrize("name", ["events", "replay-records", "configs", "answers", "states"])
def test_readers_raise_what_they_announce_for_bytes_that_are_changed(name: str, tmp_path: Path) -> None:
    target = FormatTarget(name, tmp_path)
    source = random.Random(0)
    seeds = target.seeds()
    assert target(seeds[0]) == "READ"
    assert {target(mutated(source, seeds)) for _ in range(150)} - {"READ"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "inputs"),
    [
        pytest.param(try_messages, 350, id="messages"),
        pytest.param(try_bytes, 200, id="http2"),
        pytest.param(try_answers, 300, id="client"),
    ],
)
def test_a_short_round_finds_no_fault(attempt: Try, inputs: int, tmp_path: Path) -> None:
    findings = Findings("short")
    attempt(findings, inputs, 1, tmp_path)
    assert findings.faults == {}
    assert findings.inputs == inputs


@pytest.mark.slow
def test_the_command_counts_inputs_and_finds_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--inputs=900", "--only=replay-records"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "\n900 inputs in " in done.stdout
