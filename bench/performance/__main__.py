"""The whole suite, one measurement after the other: ``python -m bench.performance [--only NAME] [--json OUT]``.

Each is a process of its own, so that none inherits another's memory, and prints its table. What it found is in the file
as soon as it is over. The last line tells where the pictures are. Exit code 1 if any measurement failed; the others are
made all the same. ``long_run``, an hour by itself, is for ``--only``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.performance.figures import LEGEND
from bench.performance.pictures import growth, ratios
from selector.cli.output_file import output_file

SUITE = ("predict", "select", "calls", "replay", "registration")
ALONE = ("long_run",)
_PICTURES_IN = Path("bench-output")
# Pictures that mean nothing must not take the place of others.
_QUICK_IN = _PICTURES_IN / "quick"
# Name of a picture: what it is drawn from, and how.
_PICTURES = {
    "performance": (("predict", "select", "calls"), ratios),
    "replay": (("replay",), ratios),
    "memory": (("long_run",), growth),
}


def measured(name: str, quick: bool) -> list[dict[str, Any]] | None:
    """The figures of one measurement, None where it failed; its output goes where this process's does."""
    with tempfile.TemporaryDirectory(prefix="selector-bench-") as folder:
        found = Path(folder) / "figures.json"
        options = ["--json", str(found), *(["--quick"] if quick else [])]
        done = subprocess.run([sys.executable, "-m", f"bench.performance.{name}", *options], check=False)
        if done.returncode or not found.exists():
            return None
        figures: list[dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))
        return figures


def pictured(figures: dict[str, list[dict[str, Any]]], folder: Path) -> list[Path]:
    """Draws every picture of which there is anything."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture, (names, drawn) in _PICTURES.items():
        shown = [figure for name in names for figure in figures.get(name, ())]
        if shown:
            paths.append(folder / f"{picture}.png")
            paths[-1].write_bytes(drawn(shown))
    return paths


def main(given: Sequence[str] | None = None) -> int:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=LEGEND,
    )
    parser.add_argument("--only", choices=(*SUITE, *ALONE), metavar="NAME", help=", ".join((*SUITE, *ALONE)))
    parser.add_argument("--json", type=output_file, help="write all figures here")
    parser.add_argument("--pictures", type=Path, help=f"folder; default: {_PICTURES_IN}, with --quick {_QUICK_IN}")
    parser.add_argument("--quick", action="store_true", help="to see that it runs: the figures mean nothing")
    given = sys.argv[1:] if given is None else given
    arguments = parser.parse_args(given)
    folder = arguments.pictures or (_QUICK_IN if arguments.quick else _PICTURES_IN)
    command = shlex.join(["python", "-m", "bench.performance", *given])
    figures: dict[str, list[dict[str, Any]]] = {}
    failed = []
    for name in (arguments.only,) if arguments.only else SUITE:
        print(f"\n== {name}", flush=True)
        found = measured(name, arguments.quick)
        if found is None:
            failed.append(name)
            continue
        # What was typed, rather than what this process made of it.
        figures[name] = [{**figure, "command": command} for figure in found]
        if arguments.json:
            everything = [figure for each in figures.values() for figure in each]
            arguments.json.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
    paths = pictured(figures, folder)
    if failed:
        print(f"\nFAILED: {', '.join(failed)}", file=sys.stderr)
    print(f"\npictures: {', '.join(map(str, paths)) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
