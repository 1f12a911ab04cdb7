"""A figure and how it is printed and written."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from selector.cli.output_file import output_file
from selector.cli.table import table, write_json

SAME = "share that is the same"
"""Unit of figures that say how often two ways gave the same."""

LEGEND = """\
times better      how many times better ours is than the baseline, the median over the rounds of a run: 2 is half the
                  time or twice the rate, 0.5 twice the time
smallest-largest  of the ratios of these rounds
must              the "times better" that was set as a goal, - where none was: 0.5 is "at most twice the time"; for a
                  figure without a baseline, the value of ours itself"""
"""What the columns of the table mean."""

_PACKAGES = ("numpy", "torch", "faiss-cpu", "grpcio", "protobuf")


@dataclass(frozen=True)
class Figure:
    """One figure: a baseline and ours, measured in one run.

    Attributes:
        name: what was done.
        baseline: median of what it is compared with; None = a figure without a peer.
        ours: median of ours.
        ratio: how many times better ours is, a median over the pairs of a run; None without a peer. 2 = half the time,
            or twice the rate.
        spread: (smallest, largest) of the pairs' ratios.
        unit: of ``baseline`` and ``ours``.
        against: what the baseline is.
        must: the ratio, or without a peer the value, to be reached; None = none was set.
        detail: whatever else helps to read it: percentiles, CPU seconds, sizes.
    """

    name: str
    baseline: float | None
    ours: float
    ratio: float | None
    unit: str
    against: str = ""
    spread: tuple[float, float] | None = None
    must: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load average": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "packages": packages,
    }


def at_least(least: int) -> Callable[[str], int]:
    """A ``type`` of argparse: whole numbers from ``least`` on."""

    def number(given: str) -> int:
        try:
            value = int(given)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected a whole number >= {least}; got {given}")
        return value

    return number


def options(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with what all commands have; see ``parsed``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.performance.{module}",
        description=description,
        epilog=LEGEND,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=output_file, help="write the figures here")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="other defaults, a few seconds, to see that it runs: the figures mean nothing",
    )
    return parser


def parsed(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """The arguments, with ``--quick`` on other defaults: what is given counts all the same."""
    arguments = parser.parse_args()
    if arguments.quick:
        parser.set_defaults(**quick)
        arguments = parser.parse_args()
    return arguments


def show(figures: Sequence[Figure], json: Path | None) -> None:
    """Prints a table of the figures, and writes them with the command and the machine."""
    header = ("figure", "against", "unit", "baseline", "ours", "times better", "smallest-largest", "must")
    rows = [
        (
            each.name,
            each.against,
            each.unit,
            _number(each.baseline),
            _number(each.ours),
            _number(each.ratio),
            "-" if each.spread is None else f"{_number(each.spread[0])}-{_number(each.spread[1])}",
            _number(each.must),
        )
        for each in figures
    ]
    sys.stdout.write(f"{table(header, rows)}\n\n{LEGEND}\n")
    main = sys.modules["__main__"].__spec__
    module = main.name if main is not None else sys.argv[0]
    command = shlex.join(["python", "-m", module.removesuffix(".__main__"), *sys.argv[1:]])
    found = environment()
    write_json(json, [{**vars(each), "command": command, "environment": found} for each in figures])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
