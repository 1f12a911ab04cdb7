"""``make resume``: the machine of ``tests.resume.machine`` with new random calls, for as many operations as asked.

One in seventeen examples is run by a service of its own process, which is really killed. What is found wrong is printed
as the calls that show it, and ends the run with exit code 1.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from pathlib import Path

import click

from selector.cli.output_file import OutputFile
from tests.resume.machine import ProcessMachine, ResumeMachine
from tests.resume.rounds import run

_EXAMPLES = 4
_RULES = 100
# Rounds between two with a process of its own.
_PROCESS_EVERY = 4


@click.command()
@click.option("--operations", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--json", "json_path", type=OutputFile())
@click.option("--seed", "first_seed", type=int, help="Of the random calls; a random one by default.")
def main(operations: int, json_path: Path | None, first_seed: int | None) -> None:
    """Compare the service with a model that is never interrupted."""
    # Of storage that is made to fail.
    logging.getLogger("selector").setLevel(logging.CRITICAL)
    first = secrets.randbelow(2**31) if first_seed is None else first_seed
    began = time.monotonic()
    counts: Counter[str] = ResumeMachine.counts
    click.echo(f"Comparing {operations} operations; --seed {first} repeats them.")
    rounds = 0
    told = began
    while counts["operations"] < operations:
        run(ResumeMachine, _EXAMPLES, _RULES, first + rounds)
        if rounds % _PROCESS_EVERY == 0:
            run(ProcessMachine, 1, _RULES, first + rounds)
        rounds += 1
        if time.monotonic() - told > 30.0:
            told = time.monotonic()
            click.echo(f"{counts['operations']:,} operations, {told - began:.0f} s")
    figures = {"operations": counts["operations"], "seed": first, "seconds": round(time.monotonic() - began, 1)}
    width = max(map(len, counts))
    for kind, count in sorted(counts.items()):
        click.echo(f"{kind:<{width}}  {count:>9,}")
    click.echo(f"{counts['operations']:,} operations compared, no difference; {figures['seconds']} s")
    if json_path is not None:
        json_path.write_text(json.dumps({**figures, "counts": dict(sorted(counts.items()))}, indent=2) + "\n")


if __name__ == "__main__":
    main()
