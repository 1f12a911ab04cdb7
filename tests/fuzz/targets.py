"""The targets, each with its share of the inputs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fuzz.faults import Findings

# Formats by name: ``tests.fuzz.formats.READERS``, which a test compares with this.
FORMATS = {
    "events": 9,
    "replay-records": 7,
    "payloads": 2,
    "embeddings": 4,
    "database": 1,
    "adapters": 4,
    "configs": 4,
    "answers": 2,
    "option-files": 3,
    "token-files": 3,
    "manifests": 2,
    "states": 4,
}
SHARES = {"messages": 22, "wire": 18, "http2": 5, "client": 8, **FORMATS}


def run_target(name: str, inputs: int, seed: int, scratch: Path, figures: Path) -> None:
    """Try inputs on a target and write what was found as JSON, also while it goes on."""
    findings = Findings(name)
    if name == "messages":
        from tests.fuzz.rpc_target import try_messages

        try_messages(findings, inputs, seed, scratch)
    elif name == "http2":
        from tests.fuzz.http2_target import try_bytes

        try_bytes(findings, inputs, seed, scratch)
    elif name == "client":
        from tests.fuzz.client_target import try_answers

        try_answers(findings, inputs, seed, scratch)
    else:
        from tests.fuzz.guided import GuidedTarget, fuzz

        def make() -> GuidedTarget:
            # Imported here, where atheris instruments what is imported.
            if name == "wire":
                from tests.fuzz.wire_target import WireTarget

                return WireTarget(findings, scratch)
            from tests.fuzz.formats import FormatTarget

            return FormatTarget(name, scratch)

        fuzz(findings, make, inputs, seed, scratch, figures)
    figures.write_text(json.dumps(findings.to_json()))
