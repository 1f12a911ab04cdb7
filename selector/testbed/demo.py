"""``selector demo``: the four arms, trained through the real service, and what came of it.

Everything goes into one directory: ``report.html``, the pictures ``learning.png`` and ``difficulty.png``, the service's
log, its state directory, and the base policy, which a second demo uses again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm

import selector
from clients import SelectorClient, SelectorError
from selector.picture_style import LIGHT
from selector.testbed import table
from selector.testbed.arms import ARMS, PAPER, Arm
from selector.testbed.experiment import ExperimentConfig, prepare_run, run_arm
from selector.testbed.interrupts import terminated_like_interrupted
from selector.testbed.pictures import difficulty_picture, learning_picture
from selector.testbed.pretrain import PretrainConfig, load_or_pretrain
from selector.testbed.record import ArmRun
from selector.testbed.report import render, verdict
from selector.testbed.service_process import ServiceNotStarted, running_service
from selector.testbed.tasks import make_prompt_sets

POOL_SEED = 0
_CALL_TIMEOUT_S = 120.0
_PACKAGES = ("torch", "numpy", "grpcio", "protobuf", "sentence-transformers", "matplotlib")


class DemoFailed(RuntimeError):
    """The demo cannot go on; the message is for the user."""


@dataclass(frozen=True)
class Job:
    """One arm with one seed."""

    arm: Arm
    seed: int

    @property
    def run_id(self) -> str:
        return f"demo-{self.arm.name}-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """All that the workers need to know; sent to their processes."""

    target: str
    cache_dir: Path
    base: PretrainConfig
    experiment: ExperimentConfig


def run_demo(
    output_dir: Path,
    seeds: int = 2,
    steps: int = 60,
    json_path: Path | None = None,
    workers: int = 2,
    echo: Callable[[str], None] = click.echo,
    show_progress: bool = True,
) -> int:
    """Runs the demo; the exit code: 0, or 1 after a message on standard error.

    Args:
        output_dir: made if missing; a state directory of an earlier demo in it is left alone.
        seeds: of every arm, counted from 0.
        steps: of training.
        json_path: also write the figures there.
        workers: arms trained at the same time.
        echo: takes each line for standard output.
        show_progress: bars on standard error.
    """
    try:
        with terminated_like_interrupted():
            _run(output_dir, seeds, steps, json_path, workers, echo, show_progress)
    except KeyboardInterrupt:
        click.echo("selector demo: interrupted; the service is stopped", err=True)
        return 1
    except (DemoFailed, ServiceNotStarted, SelectorError, OSError) as error:
        click.echo(f"selector demo: {error}", err=True)
        return 1
    return 0


def _run(
    output_dir: Path,
    seeds: int,
    steps: int,
    json_path: Path | None,
    workers: int,
    echo: Callable[[str], None],
    show_progress: bool,
) -> None:
    started = time.monotonic()
    output_dir.mkdir(parents=True, exist_ok=True)
    state_dir = _new_directory(output_dir, "state")
    config = ExperimentConfig(steps=steps)
    jobs = [Job(arm, seed) for seed in range(seeds) for arm in ARMS]
    with running_service(state_dir, output_dir / "service.log") as target:
        echo(f"service: {target}, state in {state_dir}")
        plan = Plan(target, output_dir, PretrainConfig(), config)
        _prepare(plan, jobs[0], show_progress)
        runs = _train(plan, jobs, workers, show_progress)
    took = time.monotonic() - started
    facts = _facts(config, seeds, workers, took)
    commands = [
        f"selector demo --output {output_dir} --seeds {seeds} --steps {steps}",
        f"selector runs --state-dir {state_dir}",
        f"selector show {jobs[0].run_id} --state-dir {state_dir}",
    ]
    (output_dir / "learning.png").write_bytes(learning_picture(runs, LIGHT))
    (output_dir / "difficulty.png").write_bytes(difficulty_picture(runs, LIGHT))
    (output_dir / "report.html").write_text(render(runs, facts, commands), encoding="utf-8")
    if json_path is not None:
        content = {"what": facts, "commands": commands, "verdict": verdict(runs), **table.figures(runs)}
        json_path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    echo(f"\n{table.text_table(runs)}\n\n{verdict(runs)}\n")
    echo(f"report: {output_dir / 'report.html'}")
    echo(f"pictures: {output_dir / 'learning.png'}, {output_dir / 'difficulty.png'}")
    if json_path is not None:
        echo(f"figures: {json_path}")
    echo(f"took {took:.0f} s; look at the runs with: {commands[1]}")


def _prepare(plan: Plan, first: Job, show_progress: bool) -> None:
    """The base policy and, at the same time, the embeddings of the pool, which the service keeps for all runs."""
    pool = make_prompt_sets(POOL_SEED).training
    with (
        ThreadPoolExecutor(1) as thread,
        SelectorClient(plan.target, first.run_id, timeout_s=_CALL_TIMEOUT_S) as client,
        tqdm(total=plan.base.updates, desc="base policy", unit="update", disable=not show_progress) as bar,
    ):
        registered = thread.submit(prepare_run, client, first.arm, first.seed, pool, plan.experiment)

        def progress(done: int, _total: int) -> None:
            bar.update(done - bar.n)

        torch.set_num_threads(1)
        load_or_pretrain(plan.base, plan.cache_dir, progress)
        registered.result()


def _train(plan: Plan, jobs: Sequence[Job], workers: int, show_progress: bool) -> list[ArmRun]:
    """All jobs, as many at a time as there are workers, each in a process of its own; in the order of the jobs."""
    context = multiprocessing.get_context("spawn")
    total = len(jobs) * plan.experiment.steps
    with (
        context.Manager() as manager,
        tqdm(total=total, desc="training", unit="step", disable=not show_progress) as bar,
    ):
        steps, stop = manager.Queue(), manager.Event()
        with ProcessPoolExecutor(workers, context, _start_worker) as pool:
            # References make the paper's arm the longest: begun first, it leaves no worker idle at the end.
            longest_first = sorted(jobs, key=lambda job: job.arm is not PAPER)
            started = {job: pool.submit(_work, plan, job, steps, stop) for job in longest_first}
            try:
                pending: set[Future[ArmRun]] = set(started.values())
                while pending:
                    done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                    bar.update(steps.qsize() - bar.n)
                    for future in done:
                        future.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [started[job].result() for job in jobs]


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; only the parent answers it, by telling the workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(plan: Plan, job: Job, steps: Any, stop: Any) -> ArmRun:
    """One job, in a worker; puts an item into ``steps`` after each step and gives up when ``stop`` is set."""

    def progress() -> None:
        steps.put(job.run_id)
        if stop.is_set():
            raise DemoFailed("stopped")

    base = load_or_pretrain(plan.base, plan.cache_dir)
    try:
        with SelectorClient(plan.target, job.run_id, timeout_s=_CALL_TIMEOUT_S) as client:
            return run_arm(client, base, make_prompt_sets(POOL_SEED), job.arm, job.seed, plan.experiment, progress)
    except SelectorError as error:
        # Errors of gRPC cannot be sent between processes.
        raise DemoFailed(f"{job.run_id}: {error}") from None


def _facts(config: ExperimentConfig, seeds: int, workers: int, took: float) -> dict[str, str]:
    sets = make_prompt_sets(POOL_SEED)
    return {
        "When": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "Took": f"{took:.0f} s, {workers} arms at a time, {os.cpu_count()} cores",
        "Tasks": "reverse, swap pairs, rotate, successor letter, sort, unique; levels 1 to 6 (2 to 12 letters)",
        "Prompts": f"{len(sets.training)} to train on, {len(sets.held_out)} held out, all different",
        "Policy": "character-level transformer, 0.1M parameters, pretrained on a noisy demonstrator",
        "Training": f"GRPO, {config.steps} steps of {config.batch_groups} groups x {config.group_size} rollouts",
        "Seeds": ", ".join(str(seed) for seed in range(seeds)),
        "Versions": ", ".join(
            [
                f"curriculum-selector {selector.__version__}",
                f"Python {platform.python_version()}",
                *(f"{package} {version(package)}" for package in _PACKAGES),
            ]
        ),
        "Platform": f"{platform.system()} {platform.machine()}",
    }


def _new_directory(parent: Path, name: str) -> Path:
    """The first of name, name-2, name-3, … that does not exist: runs of an earlier demo must not go on here."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
