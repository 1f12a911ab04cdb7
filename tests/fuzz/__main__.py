"""``python -m tests.fuzz``: tries inputs on every target, each in a process of its own, and reports."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from selector.cli.output_file import output_file
from tests.fuzz.targets import SHARES, run_target

# Whether a flush reaches a disk is not what is tried here.
_IN_MEMORY = Path("/dev/shm")


def main() -> int:
    """The command; 0 when no fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs in total, split over the targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=output_file, help="file for the figures and the faults")
    parser.add_argument("--only", choices=sorted(SHARES), action="append", help="these targets only; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--target", choices=sorted(SHARES), help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.target:
        run_target(options.target, options.inputs, options.seed, options.scratch, options.json)
        return 0
    return _report(options)


def _report(options: argparse.Namespace) -> int:
    names = options.only or list(SHARES)
    whole = sum(SHARES[name] for name in names)
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        shares = {name: -(-options.inputs * SHARES[name] // whole) for name in names}
        found = list(pool.map(lambda name: _in_process(name, shares[name], options.seed), names))
    seconds = time.monotonic() - began
    width = max(map(len, names))
    print(f"{'target':{width}}  {'inputs':>8}  {'seconds':>8}  {'faults':>6}  most frequent answers")
    for row in found:
        often = sorted(row["answered"].items(), key=lambda entry: -entry[1])[:4]
        told = ", ".join(f"{outcome} {count:,}" for outcome, count in often)
        print(f"{row['target']:{width}}  {row['inputs']:8,}  {row['seconds']:8.1f}  {len(row['faults']):6}  {told}")
    inputs, faults = sum(row["inputs"] for row in found), sum(len(row["faults"]) for row in found)
    print(f"{inputs:,} inputs in {seconds:.0f} s, {faults} kinds of fault (seed {options.seed})")
    for row in found:
        for fault in row["faults"].values():
            print(f"\n--- {row['target']}: {fault['kind']} ({fault['times']} times)")
            print(fault["description"], "\ninput:", fault["example"][:2000], sep="\n")
    if options.json:
        figures = {"inputs": inputs, "seconds": seconds, "seed": options.seed, "targets": found}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if faults or inputs < options.inputs else 0


def _in_process(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """Findings of a target; the end of its process, whatever ended it, is one of them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="selector-fuzz-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None
    ) as directory:
        scratch = Path(directory)
        figures, log = scratch / "findings.json", scratch / "log"
        command = [sys.executable, "-m", "tests.fuzz", f"--target={name}", f"--inputs={inputs}", f"--seed={seed}"]
        with open(log, "wb") as output:
            code = subprocess.call(
                [*command, f"--scratch={scratch}", f"--json={figures}"], stdout=output, stderr=subprocess.STDOUT
            )
        row: dict[str, Any] = (
            json.loads(figures.read_text())
            if figures.exists()
            else {"target": name, "inputs": 0, "faults": {}, "answered": {}}
        )
        if code or row["inputs"] < inputs:
            last = scratch / "input"
            row["faults"]["ended"] = {
                "kind": f"the process ended with {code} after {row['inputs']} of {inputs} inputs",
                "description": "\n".join(_told(log)[-60:]),
                "example": last.read_bytes().hex() if last.exists() else "",
                "times": 1,
            }
    return {**row, "seconds": time.monotonic() - began}


def _told(log: Path) -> list[str]:
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if not line.startswith(("INFO:", "#"))]


if __name__ == "__main__":
    sys.exit(main())
