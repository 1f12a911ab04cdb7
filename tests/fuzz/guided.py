"""Coverage-guided inputs for one target: atheris where it is installed, else random changes of the seeds."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

from tests.fuzz.faults import Findings

_LONGEST_INPUT = 8192
_PER_FIGURES = 500


class GuidedTarget(Protocol):
    """Something to be tried with bytes."""

    def seeds(self) -> list[bytes]:
        """Sound inputs."""

    def __call__(self, data: bytes) -> str:
        """How the input ended; raises when it ended as it must not."""


def fuzz(
    findings: Findings, make: Callable[[], GuidedTarget], inputs: int, seed: int, scratch: Path, figures: Path
) -> NoReturn:
    """Try so many inputs, write what was found, and end the process: libFuzzer does not return."""
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is None:
        findings.ended("(without atheris: no coverage)")
        target = make()
    else:
        with atheris.instrument_imports(include=["selector", "clients"]):
            target = make()
    attempt = _Attempts(findings, target, inputs, scratch, figures)
    seeds = target.seeds()
    if atheris is None:
        from tests.fuzz.mutation import mutated

        source = random.Random(seed)
        while True:
            attempt(mutated(source, seeds))
    corpus = scratch / "corpus"
    corpus.mkdir()
    for content in seeds:
        (corpus / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
    # Seed 0 means a random one.
    options = [f"-seed={seed + 1}", f"-max_len={_LONGEST_INPUT}", "-rss_limit_mb=4096", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={scratch}/", str(corpus)], attempt)
    atheris.Fuzz()
    raise AssertionError("libFuzzer returned")


class _Attempts:
    def __init__(
        self, findings: Findings, target: Callable[[bytes], str], inputs: int, scratch: Path, figures: Path
    ) -> None:
        self._findings = findings
        self._target = target
        self._inputs = inputs
        self._last = scratch / "input"
        self._figures = figures

    def __call__(self, data: bytes) -> None:
        findings = self._findings
        findings.begin(self._last, data)
        try:
            findings.ended(self._target(data))
        except Exception as error:
            findings.record(error, data)
        findings.done()
        if findings.inputs % _PER_FIGURES == 0 or findings.inputs >= self._inputs:
            self._figures.write_text(json.dumps(findings.to_json()))
        if findings.inputs >= self._inputs:
            sys.stdout.flush()
            os._exit(0)
