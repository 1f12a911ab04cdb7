"""``selector runs``, ``show``, ``explain``, ``export`` and ``delete``: looking at runs, and ending them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import click

from clients.names import short_name
from clients.results import PromptRow, Quality
from selector.cli.output_file import OutputFile
from selector.cli.session import connected, target_options
from selector.cli.table import facts, size, table, write_json

_json_option = click.option("--json", "json_path", type=OutputFile(), help="Also write the figures as JSON.")
_EXPORT_ROWS = 50_000
# With texts and embeddings, some megabytes.
_PROMPT_ROWS = 2000


@click.command()
@target_options
@_json_option
def runs(target: str, state_dir: Path | None, token: str | None, json_path: Path | None) -> None:
    """List all runs."""
    with connected("-", target, state_dir, token) as client:
        found = client.list_runs()
    write_json(json_path, found)
    rows = [
        (
            r.run_id,
            r.state,
            r.pool.active,
            _step(r.last_step),
            r.selections,
            r.outcome_groups,
            r.replay_groups,
            _time(r.created_unix_seconds),
        )
        for r in found
    ]
    header = ("run", "state", "prompts", "last step", "selections", "outcome groups", "replay groups", "created (UTC)")
    click.echo(table(header, rows) if rows else "no runs")


@click.command()
@click.argument("run_id", metavar="RUN")
@target_options
@_json_option
def show(run_id: str, target: str, state_dir: Path | None, token: str | None, json_path: Path | None) -> None:
    """Show one run: configuration, pool, and whether selection is any good."""
    with connected(run_id, target, state_dir, token) as client:
        run, quality = client.get_run(), client.quality()
    write_json(json_path, {"run": run, "quality": quality})
    pool = run.pool
    click.echo(
        facts(
            [
                ("run", run.run_id),
                ("state", run.state),
                ("created (UTC)", _time(run.created_unix_seconds)),
                ("forked from", f"{run.forked_from} at step {run.forked_at_step}" if run.forked_from else None),
                ("last step", _step(run.last_step)),
                ("selections", run.selections),
                ("outcomes", f"{run.outcome_groups} groups, {run.outcome_rollouts} rollouts"),
                ("prompts", f"{pool.active} active, {pool.retired} retired, {pool.ineligible} ineligible"),
                (
                    "selected",
                    f"{pool.selected} at least once, {pool.never_selected} active never, {pool.leased} on lease",
                ),
                ("pool changes", f"{pool.registered_after_start} registered after the start, {pool.replaced} replaced"),
                ("twins", _twins(quality.twin_prompts)),
                ("embeddings", f"{run.embedding_width} wide, {run.encoder}" if run.encoder else None),
                ("replay", f"{run.replay_groups} groups, {size(run.replay_bytes)}"),
                ("reference due", run.reference_due),
            ]
        )
    )
    _echo_quality(quality)
    click.echo("\nconfiguration in effect")
    click.echo(facts(list(_flat(run.config))))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
def delete(run_id: str, yes: bool, target: str, state_dir: Path | None, token: str | None) -> None:
    """Delete a run with all that it holds; its id can be used again."""
    with connected(run_id, target, state_dir, token) as client:
        run = client.get_run()
        if not yes:
            held = f"{run.outcome_groups} outcome groups and {run.replay_groups} replay groups"
            click.confirm(f"Delete run {run_id} with {held}?", abort=True)
        client.delete_run()
    click.echo(f"deleted run {run_id}")


def _twins(count: int) -> str | None:
    if count == 1:
        return "1 prompt is a twin of an earlier one"
    return f"{count} prompts are twins of earlier ones" if count else None


def _echo_quality(quality: Quality) -> None:
    if not quality.window_groups:
        click.echo("\nselection quality: no outcomes have been reported yet")
        return
    click.echo("\nselection quality")
    click.echo(
        facts(
            [
                ("window (groups)", quality.window_groups),
                ("predicted against measured: Pearson", quality.pearson),
                ("  mean absolute error", quality.mean_absolute_error),
                ("  the same, always predicting the mean", quality.mean_absolute_error_of_mean),
                ("  calibration slope", quality.calibration_slope),
                ("  expected calibration error", quality.expected_calibration_error),
                ("informative groups per generated group", quality.informative_per_generated),
                ("difficulty in [0.125, 0.875]", quality.in_band_share),
                ("population success rate", quality.population_success_rate),
                ("coverage", quality.coverage),
                ("longest since selected (steps)", quality.max_steps_since_selected),
                ("degraded selections", quality.degraded_selections),
                ("effective sample size of replay", quality.effective_sample_size),
                ("largest importance weight of replay", quality.max_importance_weight),
                ("share of tokens clipped", quality.clip_fraction),
            ]
        )
    )
    if quality.arms:
        rows = [
            (
                f"{arm.arm} (references)" if arm.reference else arm.arm,
                arm.groups,
                arm.informative_ratio,
                arm.mean_predicted_difficulty,
                arm.mean_difficulty,
                arm.mean_absolute_error,
            )
            for arm in quality.arms
        ]
        click.echo()
        click.echo(table(("arm", "groups", "informative", "predicted", "measured", "error"), rows))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("prompt_id", metavar="PROMPT")
@target_options
@_json_option
def explain(
    run_id: str,
    prompt_id: str,
    target: str,
    state_dir: Path | None,
    token: str | None,
    json_path: Path | None,
) -> None:
    """Explain one prompt: its history, its prediction, and why it was not selected."""
    with connected(run_id, target, state_dir, token) as client:
        found = client.explain(prompt_id)
    write_json(json_path, found)
    click.echo(
        facts(
            [
                ("prompt", found.prompt_id),
                ("text", found.text if len(found.text) <= 200 else found.text[:199] + "…"),
                ("domain", found.domain or None),
                ("status", f"{found.status} {found.status_reason}".strip()),
                ("predicted difficulty", f"{found.predicted_difficulty:.3f} ± {found.standard_error:.3f}"),
                ("rests on", f"{found.basis}, own outcomes weigh {found.own_weight:.2f}"),
                ("twins", ", ".join(found.twin_prompt_ids) or None),
                ("rank of its score", found.score_rank or None),
                ("not selected because", found.not_selected_because or "it was selected"),
            ]
        )
    )
    if found.references:
        click.echo("\nstrongest references")
        rows = [(r.prompt_id, r.weight, r.difficulty) for r in found.references]
        click.echo(table(("prompt", "weight", "difficulty"), rows))
    if found.selections:
        click.echo("\nselections")
        chosen = [
            (s.step, s.purpose, s.round, s.arm, s.probability, s.predicted_difficulty, s.standard_error)
            for s in found.selections
        ]
        click.echo(table(("step", "purpose", "round", "arm", "probability", "predicted", "± error"), chosen))
    if found.outcomes:
        click.echo("\noutcomes")
        reported = [
            (o.step, o.purpose, len(o.outcomes), o.difficulty, o.predicted_difficulty, o.informative)
            for o in found.outcomes
        ]
        click.echo(table(("step", "purpose", "rollouts", "difficulty", "predicted", "informative"), reported))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("selector-export"),
    show_default=True,
    help="Directory that gets outcomes.parquet, selections.parquet, predictions.parquet and prompts.parquet.",
)
@target_options
def export(run_id: str, output: Path, target: str, state_dir: Path | None, token: str | None) -> None:
    """Export a run's outcomes, selections, current predictions and pool as parquet.

    'selector evaluate --replay-log' reads it.
    """
    import pyarrow as pa

    with connected(run_id, target, state_dir, token) as client:
        try:
            output.mkdir(parents=True, exist_ok=True)
            predictions = client.predict_difficulty()
            counts = {
                "outcomes": _write(output / "outcomes.parquet", _OUTCOMES, client.export("outcomes")),
                "selections": _write(output / "selections.parquet", _SELECTIONS, client.export("selections")),
                "prompts": _write_prompts(output / "prompts.parquet", client.export("prompts")),
            }
            import pyarrow.parquet as pq

            table_ = pa.table(
                {
                    "prompt_id": list(predictions.prompt_ids),
                    "predicted_difficulty": predictions.predicted_difficulties,
                    "standard_error": predictions.standard_errors,
                    "basis": list(predictions.bases),
                    "own_weight": predictions.own_weights,
                }
            )
            pq.write_table(table_, output / "predictions.parquet")
        except OSError as error:
            raise click.ClickException(f"cannot write to {output}: {error}") from error
    click.echo(
        f"{output}: {counts['outcomes']} outcome groups, {counts['selections']} selected prompts, "
        f"{len(predictions)} predictions, {counts['prompts']} prompts"
    )


_OUTCOMES = (
    ("step", "int64"),
    ("purpose", "string"),
    ("outcomes", "list"),
    ("difficulty", "double"),
    ("informative", "bool_"),
    ("predicted_difficulty", "double"),
    ("arm", "string"),
)
_SELECTIONS = (
    ("step", "int64"),
    ("purpose", "string"),
    ("round", "int32"),
    ("arm", "string"),
    ("probability", "double"),
    ("predicted_difficulty", "double"),
    ("standard_error", "double"),
)


def _write(path: Path, columns: tuple[tuple[str, str], ...], rows: Iterable[Any]) -> int:
    """Write exported rows in batches, so that a long history needs little memory; the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        name: pa.list_(pa.float64()) if kind == "list" else getattr(pa, "float64" if kind == "double" else kind)()
        for name, kind in columns
    }
    schema = pa.schema([("prompt_id", pa.string()), *types.items()])
    count = 0
    iterator: Iterator[Any] = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(iterator, _EXPORT_ROWS)):
            arrays = [pa.array([row.prompt_id for row in batch], pa.string())]
            arrays += [pa.array([getattr(row.record, name) for row in batch], kind) for name, kind in types.items()]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(batch)
    return count


def _write_prompts(path: Path, rows: Iterable[PromptRow]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("prompt_id", pa.string()),
            ("text", pa.string()),
            ("domain", pa.string()),
            ("token_count", pa.int32()),
            ("prior_rate", pa.float64()),
            ("prior_trials", pa.int32()),
            ("embedding", pa.list_(pa.float32())),
            ("status", pa.string()),
        ]
    )
    count = 0
    iterator = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(iterator, _PROMPT_ROWS)):
            columns = {
                **{
                    name: [getattr(row, name) for row in batch] for name in schema.names if not name.startswith("prior")
                },
                "prior_rate": [None if row.prior is None else row.prior[0] for row in batch],
                "prior_trials": [None if row.prior is None else row.prior[1] for row in batch],
            }
            writer.write_batch(pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema))
            count += len(batch)
    return count


def _flat(message: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Path and value of every field that is set, as one would write them in a configuration."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            yield from _flat(value, f"{prefix}{field.name}.")
        elif field.enum_type is not None:
            yield f"{prefix}{field.name}", short_name(field.enum_type, value)
        elif field.name == "outcome_range":
            yield f"{prefix}{field.name}", ", ".join(f"{bound:g}" for bound in value)
        else:
            yield f"{prefix}{field.name}", f"{value:g}" if isinstance(value, float) else value


def _step(step: int) -> int | None:
    return None if step < 0 else step


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
