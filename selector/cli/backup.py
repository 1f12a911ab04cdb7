"""``selector backup`` and ``selector restore``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selector.cli.output_file import OutputFile
from selector.cli.table import facts, size, table, write_json

if TYPE_CHECKING:
    from selector.maintenance.manifest import Manifest

_json_option = click.option("--json", "json_path", type=OutputFile(), help="Also write the figures as JSON.")


@click.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--state-dir",
    envvar="SELECTOR_STATE_DIR",
    show_envvar=True,
    default="selector-state",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The state directory; a server may go on serving from it.",
)
@_json_option
def backup(target: Path, state_dir: Path, json_path: Path | None) -> None:
    """Copy a state directory to DIR, as of one moment, while a server may be writing to it.

    DIR is new or empty, and appears only when the copy is complete. Restore it with `selector restore`.
    """
    from selector.maintenance.backup import back_up
    from selector.maintenance.publish import is_free

    if not is_free(target):
        raise click.UsageError(f"{target} is there already: give a new or empty directory")
    with _working() as progress:
        manifest = back_up(state_dir, target, time.time, progress)
    _report(manifest, target, json_path)


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@_json_option
def restore(source: Path, target: Path, json_path: Path | None) -> None:
    """Make a state directory DIR of a backup, checking every byte.

    DIR is new or empty; serve it with `selector serve --state-dir DIR`.
    """
    from selector.maintenance.publish import is_free
    from selector.maintenance.restore import restore as restored

    if not is_free(target):
        raise click.UsageError(f"{target} is there already: give a new or empty directory")
    with _working() as progress:
        manifest = restored(source, target, progress)
    _report(manifest, target, json_path)


@contextmanager
def _working() -> Iterator[Any]:
    """A bar on a terminal; errors end the command with one line and exit code 1."""
    from tqdm import tqdm

    from selector.errors import ServiceError

    bar = tqdm(unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False)

    def progress(what: str, done: int, total: int) -> None:
        bar.set_description(what, refresh=False)
        bar.total, bar.n = total, done
        bar.refresh()

    try:
        yield progress
    except ServiceError as error:
        raise click.ClickException(error.message) from error
    finally:
        bar.close()


def _report(manifest: Manifest, target: Path, json_path: Path | None) -> None:
    write_json(json_path, manifest)
    if manifest.runs:
        rows = [(r.run_id, None if r.last_step < 0 else r.last_step, r.prompts, r.events) for r in manifest.runs]
        click.echo(table(("run", "last step", "prompts", "events"), rows) + "\n")
    taken = datetime.fromtimestamp(manifest.taken_unix_seconds, timezone.utc)
    click.echo(
        facts(
            [
                ("directory", target),
                ("as of (UTC)", taken.strftime("%Y-%m-%d %H:%M:%S")),
                ("size", size(sum(file.bytes for file in manifest.files))),
                ("files", len(manifest.files)),
                ("schema", manifest.schema),
            ]
        )
    )
