"""``selector train-adapter``: the paper's projections and calibration head from pass rates of many models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selector.cli.output_file import OutputFile
from selector.cli.table import facts, table, write_json

if TYPE_CHECKING:
    from selector.adapter_training.reading import Material
    from selector.adapter_training.split import Split
    from selector.adapter_training.training import Epoch, Trained, TrainingOptions

_FILE = click.Path(dir_okay=False, path_type=Path)


def _held_out(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | int | None:
    if value is None:
        return None
    if value.strip().isdecimal():
        try:
            return int(value)
        except ValueError as error:
            # Python reads no integer of thousands of digits.
            raise click.BadParameter("the number has too many digits") from error
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise click.BadParameter("expected names, separated by commas, or a number")
    return names


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number; got {value}")
    return value


@click.command("train-adapter")
@click.option(
    "--data",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of pass rates, as of 'selector evaluate', a column per model; may be repeated.",
)
@click.option("--output", required=True, type=_FILE, help="File to write, such as adapter.safetensors.")
@click.option(
    "--held-out-models",
    "held_out",
    metavar="NAME,…|N",
    callback=_held_out,
    help="Models to judge with and not to train on, or how many to draw.  [default: a fifth of them]",
)
@click.option(
    "--held-out-questions",
    "question_share",
    type=click.FloatRange(0, 1, max_open=True),
    callback=_finite,
    default=0.2,
    show_default=True,
    help="Share of the questions to judge with too; with 0 training stops by the questions trained on.",
)
@click.option("--references", type=click.IntRange(8), default=256, show_default=True, help="Questions attended to.")
@click.option("--width", type=click.IntRange(1, 8192), default=128, show_default=True, help="Of the projections.")
@click.option("--epochs", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="At most.")
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Epochs without a smaller loss on held-out models after which training stops.",
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Questions per step.")
@click.option(
    "--models-per-step",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Models per step; they share its questions and references.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, 1, min_open=True),
    callback=_finite,
    default=1e-3,
    show_default=True,
    help="The largest; it rises at first and falls to the end.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of everything random.")
@click.option(
    "--encoder",
    default="default",
    show_default=True,
    help="As of 'selector serve', which has to run with the same one; not used for ready embeddings.",
)
@click.option("--device", default="cpu", show_default=True, help="Of the encoder and of training, such as cuda.")
@click.option("--threads", type=click.IntRange(0, 1024), default=0, show_default=True, help="Of torch, 0 = its choice.")
@click.option("--text", "text_column", metavar="COLUMN", help="Column of the texts.  [default: found by name]")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of the ids.  [default: found by name]")
@click.option(
    "--embedding", "embedding_column", metavar="COLUMN", help="Column of ready embeddings.  [default: 'embedding']"
)
@click.option(
    "--trials", metavar="COLUMN|N", help="Column of the trials behind the rates, or their number.  [default: 'n']"
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SELECTOR_EVALUATE_CACHE",
    show_envvar=True,
    help="Directory that keeps embeddings.  [default: in the user's cache]",
)
@click.option("--json", "json_path", type=OutputFile(), help="Also write all figures as JSON.")
@click.pass_context
def train_adapter(context: click.Context, /, **options: Any) -> None:
    """Train the adapter of the paper's attention on pass rates of many models.

    Serve it with `selector serve --adapter NAME=FILE` and name it in a run's estimator.adapter.
    """
    from selector.adapter_training.errors import TrainingDataError
    from selector.adapter_training.training import TrainingOptions
    from selector.embedding.errors import EmbeddingError
    from selector.evaluation.errors import DataError, OptionError

    output: Path = options["output"]
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {output.absolute().parent}", param_hint="--output")
    _check_device(options["device"])
    if options["threads"]:
        import torch

        torch.set_num_threads(options["threads"])
    try:
        material = _read(options)
        parts = _split(material, options)
        chosen = TrainingOptions(
            references=options["references"],
            width=options["width"],
            epochs=options["epochs"],
            patience=options["patience"],
            queries_per_step=options["batch_size"],
            models_per_step=options["models_per_step"],
            learning_rate=options["learning_rate"],
            seed=options["seed"],
            device=options["device"],
        )
        click.echo(facts([*_facts(material, parts), *(("note", note) for note in material.notes)]))
        trained = _train(parts, chosen)
        _save(material, parts, chosen, trained, options)
    except OptionError as error:
        raise click.BadParameter(str(error), context, param_hint=error.option) from error
    except (DataError, TrainingDataError, EmbeddingError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _check_device(name: str) -> None:
    """Before hours of embedding, and for ready embeddings, whose training is the first to use it."""
    from selector.torch_devices import unusable

    reason = unusable(name)
    if reason is not None:
        raise click.BadParameter(reason, param_hint="--device")


def _read(options: dict[str, Any]) -> Material:
    from selector.adapter_training.reading import read
    from selector.evaluation.embeddings import EncoderChoice, default_cache
    from selector.evaluation.rates import ColumnNames

    columns = ColumnNames(
        id=options["id_column"],
        text=options["text_column"],
        embedding=options["embedding_column"],
        trials=options["trials"],
    )
    cache = options["cache"] or default_cache()
    encoder = EncoderChoice(options["encoder"], options["device"], options["threads"], cache)
    with _bar("embedding", "text") as bar:

        def embedded(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return read(options["paths"], columns, encoder, embedded, lambda said: click.echo(said, err=True))


def _split(material: Material, options: dict[str, Any]) -> Split:
    from selector.adapter_training.errors import TrainingDataError
    from selector.adapter_training.split import split

    try:
        return split(material.data, options["held_out"], options["question_share"], options["seed"])
    except TrainingDataError as error:
        # Why a model is not there.
        raise TrainingDataError("\n".join([str(error), *(f"note: {note}" for note in material.notes)])) from error


def _train(parts: Split, chosen: TrainingOptions) -> Trained:
    from selector.adapter_training.training import train

    with _bar("training", "step") as bar:

        def stepped(newest: Epoch, done: int, total: int) -> None:
            bar.total = total
            bar.set_postfix_str(f"epoch {newest.number}, held-out loss {newest.deciding:.4f}", refresh=False)
            bar.update(done - bar.n)

        return train(parts, chosen, stepped)


def _save(material: Material, parts: Split, chosen: TrainingOptions, trained: Trained, options: dict[str, Any]) -> None:
    from selector.adapter_training.report import epoch_facts, outcome_rows, training_facts, warning

    known = training_facts(parts, chosen, trained)
    trained.network.adapter(material.encoder, material.encoder_key).save(options["output"], known)
    header, rows = outcome_rows(trained)
    click.echo(f"\n{table(header, rows)}\n\nbest epoch {trained.best.number} of {len(trained.epochs) - 1}")
    click.echo(f"written: {options['output']}")
    said = warning(trained)
    if said is not None:
        click.echo(f"warning: {said}", err=True)
    content = {
        "training": known,
        "encoder": material.encoder,
        "encoder_hash": material.encoder_key,
        "notes": material.notes,
        "warning": said,
        "epochs": [epoch_facts(epoch) for epoch in trained.epochs],
        "untrained": epoch_facts(trained.untrained),
    }
    write_json(options["json_path"], content)


def _facts(material: Material, parts: Split) -> list[tuple[str, object]]:
    training = "; ".join(f"{part.name}: {part.size:,} questions, {len(part.models)} models" for part in parts.training)
    new = sum(part.size for part in parts.new)
    return [
        ("training", training),
        ("held-out models", ", ".join(parts.held_out)),
        ("held-out questions", f"{new:,}" if new else "none"),
        ("embeddings", material.encoder or "ready, from the file"),
    ]


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Any]:
    from tqdm import tqdm

    # disable=None: shown on a terminal only.
    with tqdm(desc=what, unit=unit, disable=None, leave=False) as bar:
        yield bar
