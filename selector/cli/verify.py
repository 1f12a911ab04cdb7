"""``selector verify``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from selector.cli.output_file import OutputFile
from selector.cli.table import table, write_json


@click.command()
@click.argument(
    "source", metavar="[BACKUP]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--state-dir",
    envvar="SELECTOR_STATE_DIR",
    show_envvar=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Verify a state directory, instead of a backup; a server may go on serving from it.",
)
@click.option("--json", "json_path", type=OutputFile(), help="Also write the findings as JSON.")
def verify(source: Path | None, state_dir: Path | None, json_path: Path | None) -> None:
    """Check a backup or a state directory: checksums, and that its parts fit together.

    Exits with 1 when something is wrong. Nothing is repaired.
    """
    from selector.maintenance.isolated import verify_isolated

    given = click.get_current_context().get_parameter_source("state_dir")
    if source is not None and state_dir is not None and given is ParameterSource.COMMANDLINE:
        raise click.UsageError("give a BACKUP or --state-dir, not both")
    directory = source or state_dir
    if directory is None:
        raise click.UsageError("give a BACKUP or --state-dir")
    report = verify_isolated(directory)
    write_json(json_path, {"sound": report.sound, **vars(report)})
    rows = [(check.name, check.examined, check.problem_count, len(check.notes)) for check in report.checks]
    click.echo(table(("check", "examined", "problems", "notes"), rows))
    for check in report.checks:
        for description in check.notes:
            click.echo(f"\nnote: {description}", nl=False)
    for check in report.checks:
        for description in check.problems:
            click.echo(f"\nPROBLEM in {check.name}: {description}", nl=False)
        if check.problem_count > len(check.problems):
            click.echo(f"\nPROBLEM in {check.name}: and {check.problem_count - len(check.problems)} more", nl=False)
    click.echo(f"\n{directory}: {report.kind} {'is sound' if report.sound else 'is NOT sound'}")
    sys.exit(0 if report.sound else 1)
