"""A figure and how it is printed and written."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from selector.cli.output_file import output_file
from selector.cli.table import table, write_json

SAME = "share that is the same"
"""Unit of figures that say how often two ways gave the same."""

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


def options(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with what all commands have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.performance.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=output_file, help="write the figures here")
    return parser


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
    sys.stdout.write(table(header, rows) + "\n")
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
