"""``selector import-prior``: pass rates of other models, from a file, as priors of prompts that are registered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selector.cli.output_file import OutputFile
from selector.cli.session import connected, target_options
from selector.cli.table import facts, write_json
from selector.ranges import LARGEST_STEP

if TYPE_CHECKING:
    from selector.evaluation.prior_rows import Imported


@click.command("import-prior")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of pass rates, as of 'selector evaluate': parquet, CSV, TSV or JSON Lines, a column per model.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="Column of pass rates; may be repeated, for the mean over all their trials.  [default: all]",
)
@click.option(
    "--by",
    type=click.Choice(["id", "text"]),
    help="What rows and prompts are matched by.  [default: the id, or the text when no id is the run's]",
)
@click.option(
    "--step",
    type=click.IntRange(0, LARGEST_STEP),
    help="Step of the trainer: a rewind to it or before takes the import back.  [default: none does]",
)
@click.option("--id", "id_column", metavar="COLUMN", help="Column of the ids.  [default: found by name]")
@click.option("--text", "text_column", metavar="COLUMN", help="Column of the texts.  [default: found by name]")
@click.option(
    "--trials", metavar="COLUMN|N", help="Column of the trials behind the rates, or their number.  [default: 'n']"
)
@target_options
@click.option("--json", "json_path", type=OutputFile(), help="Also write the figures as JSON.")
@click.pass_context
def import_prior(context: click.Context, /, **options: Any) -> None:
    """Give the prompts of RUN other models' pass rates as priors.

    Predictions use them from the next estimate on, recalibrated on the run's own outcomes. Rows that match no prompt
    are counted and left out. A prompt has one prior: importing again replaces it. Prompts whose rows have no rate keep
    the prior they had.
    """
    from selector.evaluation.errors import DataError, OptionError
    from selector.evaluation.prior_rows import import_rows, prior_rows
    from selector.evaluation.rates import ColumnNames, read_rates

    columns = ColumnNames(
        id=options["id_column"],
        text=options["text_column"],
        trials=options["trials"],
        models=options["models"],
        needed=frozenset(options["models"]) or None,
    )
    try:
        table = read_rates(options["data"], columns)
        rows = prior_rows(table, options["models"], options["by"])
        with connected(options["run_id"], options["target"], options["state_dir"], options["token"]) as client:
            imported = import_rows(client, rows, options["by"], options["step"])
    except OptionError as error:
        raise click.BadParameter(str(error), context, param_hint=error.option) from error
    except (DataError, OSError) as error:
        raise click.ClickException(str(error)) from error
    notes = list(table.notes)
    if not options["models"] and len(rows.models) > 1:
        notes.append(f"mean of {len(rows.models)} columns; choose with --model")
    content = {"run": options["run_id"], "data": str(options["data"]), "step": options["step"]}
    write_json(options["json_path"], {**content, "models": rows.models, **vars(imported), "notes": notes})
    click.echo(facts([*_facts(imported, rows.models), *(("note", note) for note in notes)]))
    if not imported.prompts:
        raise click.ClickException(
            f"nothing was imported: no row of {options['data']} matches a prompt of run {options['run_id']!r}"
        )


def _facts(imported: Imported, models: tuple[str, ...]) -> list[tuple[str, object]]:
    unmatched = str(imported.unmatched)
    if imported.unmatched_rows:
        shown = ", ".join(imported.unmatched_rows)
        unmatched += f" ({shown}{', …' if imported.unmatched > len(imported.unmatched_rows) else ''})"
    return [
        ("models", ", ".join(models)),
        ("matched by", imported.matched_by),
        ("prompts with this prior", imported.prompts),
        ("rows that match no prompt", unmatched),
        (
            "rows without a rate",
            f"{imported.without_rate} (their prompts keep the prior they had)" if imported.without_rate else 0,
        ),
    ]
