"""All trainings of a plan: several at a time, each in a process of its own against one service, none twice.

What is finished lies in ``results/`` of the output directory, under a name that changes with everything that the
training depends on but the program's code; it is not trained again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from bench.learning.mixtures import SETTINGS
from bench.learning.records import Record, load, record_of, save
from clients import NotFound, SelectorClient, SelectorError
from selector.config import config_to_json, resolve
from selector.testbed.arms import Arm
from selector.testbed.experiment import ExperimentConfig, run_arm
from selector.testbed.pretrain import load_or_pretrain
from selector.testbed.service_process import running_service

_FORMAT = 1
_TIMEOUT_S = 600.0


class JobFailed(RuntimeError):
    """A training could not be finished; the message says which and why."""


@dataclass(frozen=True)
class Job:
    """One arm with one seed on one mixture from one base policy."""

    arm: Arm
    setting: str
    base: str
    seed: int
    experiment: ExperimentConfig

    @property
    def name(self) -> str:
        """Also the run's id."""
        return f"{self.setting}-{self.base}-{self.arm.name}-{self.seed}-{self._digest()}"

    def _digest(self) -> str:
        setting = SETTINGS[self.setting]
        content = {
            "format": _FORMAT,
            "arm": {name: value for name, value in asdict(self.arm).items() if name not in ("description", "config")},
            "config": config_to_json(resolve(self.arm.config)),
            "mixture": sorted(setting.mixture.items()),
            "base": setting.bases[self.base].digest(),
            "experiment": asdict(self.experiment),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def run_jobs(jobs: Sequence[Job], output: Path, workers: int) -> list[Record]:
    """The records of all jobs, in their order.

    Raises:
        JobFailed: see there.
        ServiceNotStarted: the service did not start.
    """
    results = output / "results"
    results.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if _known(job, results) is None]
    if missing:
        _prepare(missing, output)
        with running_service(output / "state", output / "service.log") as target:
            _run(missing, output, target, workers)
    records = [_known(job, results) for job in jobs]
    return [record for record in records if record is not None]


def _known(job: Job, results: Path) -> Record | None:
    path = results / f"{job.name}.json"
    try:
        return load(path)
    except FileNotFoundError:
        return None


def _prepare(jobs: Sequence[Job], output: Path) -> None:
    """The base policies, so that no two workers make the same."""
    torch.set_num_threads(1)
    bases = sorted({(job.setting, job.base) for job in jobs})
    for setting, base in tqdm(bases, desc="base policies", disable=None):
        load_or_pretrain(SETTINGS[setting].bases[base], output / "bases")


def _run(jobs: Sequence[Job], output: Path, target: str, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, context, _start_worker) as pool,
        tqdm(total=len(jobs), desc="trainings", unit="run", disable=None) as bar,
    ):
        pending = {pool.submit(_work, job, output, target) for job in jobs}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    bar.update()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent answers it, and what is begun is finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(job: Job, output: Path, target: str) -> None:
    setting = SETTINGS[job.setting]
    base = load_or_pretrain(setting.bases[job.base], output / "bases")
    try:
        with SelectorClient(target, job.name, timeout_s=_TIMEOUT_S) as client:
            # Of a training that was cut short.
            with suppress(NotFound):
                client.delete_run()
            run = run_arm(client, base, setting.prompts(), job.arm, job.seed, job.experiment)
            record = record_of(job.setting, job.base, run, client.quality())
            client.delete_run()
    except SelectorError as error:
        # Errors of gRPC cannot be sent between processes.
        raise JobFailed(f"{job.name}: {error}") from None
    save(record, output / "results" / f"{job.name}.json")
