"""What choosing and reusing saves.

    python -m bench.learning tune    finds the optimiser's settings for uniform, on seeds for tuning
    python -m bench.learning run     trains all arms on the seeds for reporting, and reports

Every training goes through the service, which is started for it. What is finished is kept in the output directory and
not trained again: a command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

from bench.learning import mixtures, seeds
from bench.learning.arms import ARM_OF, ARMS
from bench.learning.jobs import Job, JobFailed, run_jobs
from bench.learning.mixtures import SETTINGS
from bench.learning.pictures import AXES, curves_picture, ratios_picture
from bench.learning.records import Record
from bench.learning.report import report
from bench.learning.summary import foretelling, overall, summaries
from bench.learning.tuning import TUNED, best, grid_jobs, load_tuned, save_tuned
from bench.performance.figures import at_least, environment
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.picture_style import LIGHT
from selector.testbed.arms import UNIFORM
from selector.testbed.experiment import ExperimentConfig
from selector.testbed.grpo import GRPOConfig
from selector.testbed.interrupts import terminated_like_interrupted
from selector.testbed.service_process import ServiceNotStarted

_BASES = tuple(dict.fromkeys(base for setting in SETTINGS.values() for base in setting.bases))
_STEPS = 60
# Accuracies are means over three evaluations, of which there is one every three steps and one at the end.
_FEWEST_STEPS = 4
# Arms that roll out more per step than uniform are cut off at so many times its rollouts.
_MOST = 2


def main() -> None:
    """Run the command; exits with 1 when a training fails."""
    arguments = _parser().parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        with terminated_like_interrupted():
            arguments.run(arguments)
    except (JobFailed, ServiceNotStarted) as error:
        sys.exit(f"bench.learning: {error}")
    except KeyboardInterrupt:
        sys.exit("bench.learning: stopped; the same command goes on")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, run, count in (("tune", _tune, 2), ("run", _report, 8)):
        command = commands.add_parser(
            name,
            description=f"A training of {_STEPS} steps takes a core 10 to 25 seconds.",
            epilog=_arms_and_mixtures() if run is _report else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        command.add_argument("--seeds", type=at_least(1), default=count, help=f"how many; {count} unless given")
        command.add_argument("--steps", type=at_least(_FEWEST_STEPS), default=_STEPS, help=f"{_STEPS} unless given")
        command.add_argument(
            "--workers",
            type=at_least(1),
            default=os.cpu_count() or 1,
            help="trainings at once; as many as cores unless given",
        )
        command.add_argument(
            "--output", type=Path, default=Path("learning-output"), help="what is kept; learning-output/ unless given"
        )
        command.add_argument("--json", type=output_file, help="also write the figures there")
        if run is _report:
            command.add_argument(
                "--arms",
                nargs="+",
                choices=list(ARM_OF),
                metavar="ARM",
                default=[arm.name for arm in ARMS],
                help="see below; all unless given, and uniform always",
            )
            command.add_argument(
                "--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), help="mixtures of prompts"
            )
            command.add_argument(
                "--bases", nargs="+", choices=_BASES, default=list(_BASES), help="base policies of each"
            )
            command.add_argument("--on-tuning-seeds", action="store_true", help="for trying something out")
    return parser


def _arms_and_mixtures() -> str:
    arms = "\n".join(
        textwrap.fill(arm.description, 100, initial_indent=f"  {arm.name:<20}", subsequent_indent=" " * 22)
        for arm in ARMS
    )
    return f"arms:\n{arms}\n\n{mixtures.__doc__}"


def _tune(arguments: argparse.Namespace) -> None:
    jobs = grid_jobs(arguments.steps, seeds.tuning(arguments.seeds))
    chosen = best(jobs, run_jobs(jobs, arguments.output, arguments.workers))
    save_tuned(chosen)
    rows = [
        (setting, base, f"{grpo.learning_rate:g}", grpo.minibatches, str(grpo.drop_constant), round(accuracy, 4))
        for setting, base, grpo, accuracy in chosen
    ]
    header = ("mixture", "base", "learning rate", "minibatches a step", "constant groups dropped", "final accuracy")
    sys.stdout.write(f"{table(header, rows)}\n\nwritten to {TUNED}\n")
    write_json(arguments.json, {"command": _command(), "environment": environment(), "chosen": chosen})


def _report(arguments: argparse.Namespace) -> None:
    tuned = load_tuned()
    of = seeds.tuning if arguments.on_tuning_seeds else seeds.reporting
    names = dict.fromkeys([UNIFORM.name, *arguments.arms])
    jobs = [
        Job(ARM_OF[name], setting, base, seed, _experiment(arguments.steps, tuned[setting, base]))
        for seed in of(arguments.seeds)
        for setting in arguments.settings
        for base in arguments.bases
        for name in names
    ]
    records = run_jobs(jobs, arguments.output, arguments.workers)
    found, everywhere = summaries(records), overall(records)
    live = foretelling(found)
    text = report(everywhere, found, live)
    (arguments.output / "report.md").write_text(text, encoding="utf-8")
    for against in AXES:
        (arguments.output / f"accuracy-{against}.png").write_bytes(curves_picture(records, against, LIGHT))
    (arguments.output / "ratios.png").write_bytes(ratios_picture(found, LIGHT))
    sys.stdout.write(f"{text}\nwritten to {arguments.output}\n")
    write_json(
        arguments.json,
        {
            "command": _command(),
            "environment": environment(),
            "overall": everywhere,
            "summaries": found,
            "foretelling": live,
            "runs": [_figures(record) for record in records],
        },
    )


def _experiment(steps: int, grpo: GRPOConfig) -> ExperimentConfig:
    config = ExperimentConfig(steps=steps, grpo=grpo)
    return replace(config, most_rollouts=_MOST * steps * config.step_rollouts)


def _figures(record: Record) -> dict[str, object]:
    run = record.run
    return {
        "setting": record.setting,
        "base": record.base,
        "arm": run.arm,
        "seed": run.seed,
        "steps": run.steps,
        "rollouts": run.rollouts,
        "final_accuracy": run.final_accuracy,
        "informative_share": run.informative_share,
        "coverage": run.coverage,
        "cpu_seconds": run.cpu_seconds,
        "effective_sample_size": run.effective_sample_size,
        "max_importance_weight": run.max_importance_weight,
        "live": dict(record.live),
        "evaluations": [asdict(evaluation) for evaluation in run.evaluations],
    }


def _command() -> str:
    return shlex.join(["python", "-m", "bench.learning", *sys.argv[1:]])


if __name__ == "__main__":
    main()
