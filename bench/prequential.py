"""How well the estimators predict the reports of real GRPO runs of the tiny policy, each from the reports before it.

    python -m bench.prequential [--output DIR] [--runs 3] [--steps 60] [--json OUT]

Starts the service, trains the base policy once, then R runs of each of the demo's arms ``default`` and ``uniform``
through the service with seeds 0 to R-1, exports every run with ``selector export`` and evaluates the exports as
``selector evaluate --replay-log`` does. Printed is the log loss per trial, lower is better: mean and standard deviation
over the runs of an arm, by stage of a prompt's history (``selector.evaluation.prequential``). Then, of each run, how
well FUSED is calibrated on the prompts that were drawn uniformly. Exports that are in DIR already are evaluated as they
are.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from clients import SelectorClient
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.evaluation.embeddings import EncoderChoice, default_cache
from selector.evaluation.figures import Accuracy
from selector.evaluation.prepare_log import prepare_replay_log
from selector.evaluation.prequential import STAGES, StageFigures, prequential, work
from selector.evaluation.rows import FUSED
from selector.testbed.arms import DEFAULT, UNIFORM, Arm
from selector.testbed.experiment import ExperimentConfig, run_arm
from selector.testbed.policy import Policy
from selector.testbed.pretrain import PretrainConfig, load_or_pretrain
from selector.testbed.service_process import running_service
from selector.testbed.tasks import make_prompt_sets

_ARMS = (DEFAULT, UNIFORM)
_POOL_SEED = 0
_TIMEOUT_S = 120.0


def train(target: str, base: Policy, arm: Arm, seed: int, steps: int, output: Path) -> None:
    """One run through the service at ``target``, and its export."""
    run_id = f"{arm.name}-{seed}"
    sets = make_prompt_sets(_POOL_SEED)
    with (
        SelectorClient(target, run_id, timeout_s=_TIMEOUT_S) as client,
        tqdm(desc=run_id, total=steps, unit="step", disable=None, leave=False) as bar,
    ):
        run_arm(client, base, sets, arm, seed, ExperimentConfig(steps=steps), bar.update)
    command = [sys.executable, "-m", "selector", "export", run_id, "--target", target, "--output", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def evaluated(export: Path) -> list[StageFigures]:
    """All rows at all stages of one export."""
    choice = EncoderChoice("none", "cpu", 1, default_cache())
    prepared = prepare_replay_log(export, choice, None, lambda _done, _total: None, print)
    with tqdm(desc=export.name, total=work(prepared.log), unit="report", disable=None, leave=False) as bar:

        def advance(_step: str) -> None:
            bar.update()

        return prequential(prepared.log, prepared.questions, None, 0, advance)


def losses(runs: Sequence[Sequence[StageFigures]]) -> Iterator[tuple[str, str, np.ndarray]]:
    """(row, stage, log loss of each run that has it)."""
    for row in dict.fromkeys(figures.row for run in runs for figures in run):
        for stage in STAGES:
            found = [
                figures.accuracy.log_loss
                for run in runs
                for figures in run
                if (figures.row, figures.stage) == (row, stage) and figures.accuracy.log_loss is not None
            ]
            if found:
                yield row, stage, np.array(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.prequential", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("bench-output/prequential"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    jobs = [(arm, seed, arguments.output / f"{arm.name}-{seed}") for arm in _ARMS for seed in range(arguments.runs)]
    missing = [job for job in jobs if not (job[2] / "prompts.parquet").exists()]
    torch.set_num_threads(1)
    if missing:
        base = load_or_pretrain(PretrainConfig(), arguments.output, lambda _done, _total: None)
        with running_service(arguments.output / "state", arguments.output / "service.log") as target:
            for arm, seed, output in missing:
                train(target, base, arm, seed, arguments.steps, output)
    results = {arm.name: [evaluated(output) for of, _, output in jobs if of is arm] for arm in _ARMS}
    content = {}
    for name, runs in results.items():
        found = {(row, stage): values for row, stage, values in losses(runs)}
        stages = [stage for stage in STAGES if any(of == stage for _, of in found)]
        body = [
            (row, *(_cell(found.get((row, stage))) for stage in stages))
            for row in dict.fromkeys(row for row, _ in found)
        ]
        print(f"\n{table((f'{name}, {len(runs)} runs', *stages), body)}")
        content[name] = {
            row: {stage: found[row, stage].tolist() for stage in stages if (row, stage) in found} for row, *_ in body
        }
    honest = {f"{name}-{seed}": figures for name, runs in results.items() for seed, figures in _unselected(runs)}
    body = [
        (run, f"{f.questions:,}", f"{f.calibration_error:.3f}", f"{f.calibration_slope:.2f}", f"{f.coverage:.3f}")
        for run, f in honest.items()
    ]
    print(f"\n{table(('fused, drawn uniformly', 'groups', 'calib. error', 'slope', '90 % covers'), body)}")
    write_json(
        arguments.json,
        {
            "command": shlex.join(["python", "-m", "bench.prequential", *sys.argv[1:]]),
            "log_loss": content,
            "drawn_uniformly": honest,
        },
    )
    return 0


def _unselected(runs: Sequence[Sequence[StageFigures]]) -> Iterator[tuple[int, Accuracy]]:
    """FUSED's accuracy on the prompts that were drawn uniformly, by seed."""
    for seed, run in enumerate(runs):
        for figures in run:
            if (figures.row, figures.stage) == (FUSED, "unselected"):
                yield seed, figures.accuracy


def _cell(values: np.ndarray | None) -> str:
    return "-" if values is None else f"{values.mean():.3f} ± {values.std():.3f}"


if __name__ == "__main__":
    sys.exit(main())
