"""The command group; each command imports what it needs when it runs, so that ``--help`` is instant."""

from __future__ import annotations

import click

from selector import __version__
from selector.cli.backup import backup, restore
from selector.cli.demo import demo
from selector.cli.evaluate import evaluate
from selector.cli.import_prior import import_prior
from selector.cli.inspection import delete, explain, export, runs, show
from selector.cli.serve import health, serve
from selector.cli.train_adapter import train_adapter
from selector.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="selector")
def cli() -> None:
    """Curriculum Selector: chooses what a language model practises on during RL fine-tuning."""


for command in (
    serve,
    health,
    runs,
    show,
    explain,
    export,
    delete,
    import_prior,
    backup,
    restore,
    verify,
    demo,
    evaluate,
    train_adapter,
):
    cli.add_command(command)
