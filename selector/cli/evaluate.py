"""``selector evaluate``: how well difficulty is predicted on a file of pass rates or on a run's exported history."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from selector import __version__
from selector.cli.output_file import OutputFile
from selector.cli.table import facts, table, write_json

if TYPE_CHECKING:
    from selector.evaluation.embeddings import EncoderChoice

# Options without a meaning for a history.
_RATES_ONLY = (
    "model",
    "prior_model",
    "text_column",
    "id_column",
    "domain_column",
    "embedding_column",
    "trials",
    "references",
    "draws",
    "group_size",
    "batch_size",
)
_KINDS = ("png", "svg", "pdf")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of pass rates: parquet, CSV or JSON Lines.",
)
@click.option(
    "--replay-log",
    type=click.Path(exists=True, path_type=Path),
    help="Instead of --data: what 'selector export' wrote, the directory or its outcomes.parquet.",
)
@click.option("--model", help="Column of pass rates to predict.  [default: the first]")
@click.option(
    "--prior-model",
    help="Column of another model's pass rates, known beforehand; 'others' is the mean of all other models.",
)
@click.option("--text", "text_column", metavar="COLUMN", help="Column of the texts.  [default: found by name]")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of the ids.  [default: found by name]")
@click.option("--domain", "domain_column", metavar="COLUMN", help="Column of the domains.  [default: found by name]")
@click.option(
    "--embedding", "embedding_column", metavar="COLUMN", help="Column of ready embeddings.  [default: 'embedding']"
)
@click.option(
    "--trials", metavar="COLUMN|N", help="Column of the trials behind the rates, or their number.  [default: 'n']"
)
@click.option(
    "--references", type=click.IntRange(1), default=256, show_default=True, help="Questions whose outcomes are seen."
)
@click.option("--draws", type=click.IntRange(1, 1000), default=5, show_default=True, help="Random draws of references.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of everything random.")
@click.option("--group-size", type=click.IntRange(1, 4096), default=8, show_default=True, help="Rollouts per question.")
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True, help="Prompts picked at a time.")
@click.option(
    "--encoder",
    default="default",
    show_default=True,
    help="As of 'selector serve': 'default', 'none', a name or a path.",
)
@click.option("--device", default="cpu", show_default=True, help="Device of the encoder.")
@click.option(
    "--encoder-threads",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Threads of the encoder, 0 = torch's choice.",
)
@click.option(
    "--adapter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trained adapter for the paper's attention.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SELECTOR_EVALUATE_CACHE",
    show_envvar=True,
    help="Directory that keeps embeddings.  [default: in the user's cache]",
)
@click.option("--json", "json_path", type=OutputFile(), help="Also write all figures of all draws as JSON.")
@click.option("--picture", type=_FILE, help="Also draw a picture: .png, .svg or .pdf.")
@click.pass_context
def evaluate(context: click.Context, /, **options: Any) -> None:
    """How well is difficulty predicted on YOUR data?

    Draws random references from a file of pass rates, shows their outcomes to the service's estimators and to simple
    controls, and judges what they predict of all other questions. With --replay-log, predicts every report of a
    recorded run from those before it.
    """
    if (options["data"] is None) == (options["replay_log"] is None):
        raise click.UsageError("give --data or --replay-log, one of them")
    from selector.embedding.errors import EmbeddingError
    from selector.evaluation.errors import DataError, OptionError

    command = _command(context)
    try:
        if options["data"] is not None:
            _on_rates(context, options, command)
        else:
            _on_replay_log(context, options, command)
    except OptionError as error:
        raise click.BadParameter(str(error), context, param_hint=error.option) from error
    except (DataError, EmbeddingError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _on_rates(context: click.Context, options: dict[str, Any], command: str) -> None:
    from selector.evaluation.experiment import evaluate, figures, work
    from selector.evaluation.prepare import Request, prepare
    from selector.evaluation.rates import ColumnNames
    from selector.evaluation.report import EXPLANATION, tables, verdict

    picture = _picture_kind(options["picture"])
    columns = ColumnNames(
        id=options["id_column"],
        text=options["text_column"],
        domain=options["domain_column"],
        embedding=options["embedding_column"],
        trials=options["trials"],
        models=tuple(name for name in (options["model"],) if name is not None),
    )
    request = Request(
        data=options["data"],
        columns=columns,
        model=options["model"],
        prior_model=options["prior_model"],
        references=options["references"],
        insisted=context.get_parameter_source("references") is not ParameterSource.DEFAULT,
        draws=options["draws"],
        seed=options["seed"],
        group_size=options["group_size"],
        batch=options["batch_size"],
        encoder=_encoder(options),
        adapter=options["adapter"],
    )
    with _bar("embedding", "text") as embedding:
        prepared = prepare(request, embedding.reach, _say)
    click.echo(facts([*prepared.facts.items(), *(("note", note) for note in prepared.notes)]))
    plan, questions, adapter = prepared.plan, prepared.questions, prepared.adapter
    with _bar("evaluating", "row") as rows:
        rows.expect(work(plan, questions, adapter))
        found = evaluate(plan, questions, prepared.model, adapter, rows.next)
    for header, body in tables(found):
        click.echo(f"\n{table(header, body)}")
    said = verdict(found)
    click.echo(f"\n{EXPLANATION}\n\n{said}")
    if picture is not None:
        from selector.evaluation.pictures import evaluation_picture

        title = f"{request.data.name}, {prepared.model.name}: {plan.references} references, {plan.draws} draws"
        _write_picture(options["picture"], evaluation_picture(found, title, picture))
    content = {
        "command": command,
        "version": __version__,
        "facts": prepared.facts,
        "notes": prepared.notes,
        "plan": plan,
        "verdict": said,
        "rows": found.summaries,
        "records": [
            {"row": record.row, "draw": record.draw, "seconds": record.seconds, **figures(record)}
            for record in found.records
        ],
    }
    write_json(options["json_path"], content)


def _on_replay_log(context: click.Context, options: dict[str, Any], command: str) -> None:
    from selector.evaluation.prepare_log import prepare_replay_log
    from selector.evaluation.prequential import prequential, work
    from selector.evaluation.replay_report import EXPLANATION, tables, verdict

    for name in _RATES_ONLY:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise click.UsageError(f"{option} is for --data")
    picture = _picture_kind(options["picture"])
    with _bar("embedding", "text") as embedding:
        prepared = prepare_replay_log(
            options["replay_log"], _encoder(options), options["adapter"], embedding.reach, _say
        )
    click.echo(facts([*prepared.facts.items(), *(("note", note) for note in prepared.notes)]))
    with _bar("evaluating", "report") as steps:
        steps.expect(work(prepared.log))
        figures = prequential(prepared.log, prepared.questions, prepared.adapter, options["seed"], steps.next)
    for header, body in tables(figures):
        click.echo(f"\n{table(header, body)}")
    said = verdict(figures)
    click.echo(f"\n{EXPLANATION}\n\n{said}")
    if picture is not None:
        from selector.evaluation.pictures import replay_picture

        title = f"{options['replay_log'].name}: log loss per trial of reports predicted beforehand"
        _write_picture(options["picture"], replay_picture(figures, title, picture))
    content = {
        "command": command,
        "version": __version__,
        "facts": prepared.facts,
        "notes": prepared.notes,
        "verdict": said,
        "records": figures,
    }
    write_json(options["json_path"], content)


class _Bar:
    """A progress bar on a terminal, and nothing elsewhere."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def expect(self, total: int) -> None:
        self._bar.reset(total)

    def next(self, what: str) -> None:
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.update()

    def reach(self, done: int, total: int) -> None:
        if self._bar.total != total:
            self._bar.reset(total)
        self._bar.update(done - self._bar.n)


@contextmanager
def _bar(what: str, unit: str) -> Iterator[_Bar]:
    from tqdm import tqdm

    # disable=None: shown on a terminal only.
    with tqdm(desc=what, unit=unit, disable=None, leave=False) as bar:
        yield _Bar(bar)


def _say(message: str) -> None:
    click.echo(message, err=True)


def _encoder(options: dict[str, Any]) -> EncoderChoice:
    from selector.evaluation.embeddings import EncoderChoice, default_cache

    cache = options["cache"] or default_cache()
    return EncoderChoice(options["encoder"], options["device"], options["encoder_threads"], cache)


def _picture_kind(path: Path | None) -> str | None:
    """The format that a picture's name asks for; said before the work, as is a missing matplotlib."""
    if path is None:
        return None
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _KINDS:
        raise click.BadParameter(
            f"expected a name ending in .png, .svg or .pdf; got {path.name!r}", param_hint="--picture"
        )
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install with\n    pip install 'curriculum-selector[demo]'") from error
    return kind


def _write_picture(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error}") from error


def _command(context: click.Context) -> str:
    """The command as it was given."""
    parts = ["selector", "evaluate"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE and value is not None:
            parts += [parameter.opts[0], str(value)]
    return shlex.join(parts)
