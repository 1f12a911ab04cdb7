"""``selector demo``: a real tiny policy trained through the real service."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from selector.cli.output_file import OutputFile


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Directory that gets the report, the picture and the state directory.",
)
@click.option("--seeds", type=click.IntRange(1, 64), default=2, show_default=True, help="Seeds per arm.")
@click.option("--steps", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Training steps per arm.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write the figures as JSON.")
def demo(output: Path, seeds: int, steps: int, json_path: Path | None) -> None:
    """Train a tiny policy through the service, with four ways of selecting, and compare them.

    Takes about five minutes on two cores.
    """
    try:
        from selector.testbed.demo import run_demo
    except ModuleNotFoundError as error:
        click.echo(f"selector: {error}; install with\n    pip install 'curriculum-selector[demo]'", err=True)
        sys.exit(1)
    sys.exit(run_demo(output, seeds=seeds, steps=steps, json_path=json_path))
