"""Rounds of load, kill, restart and check, over one state directory.

Three clients with runs of their own and a crowd on a run of its own make the load. After every kill the server is
started again, everything is compared with the models, and what was in doubt is settled. In the end all that the clients
ever did is done again on a server that is left alone, which must give the very same answers.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from selector.v1 import selector_service_pb2 as pb
from tests.crash.crowd import Crowd
from tests.crash.kills import Kill, choose, detach, strace, traceable
from tests.crash.operations import REWIND_WINDOW
from tests.crash.owner import Owner
from tests.crash.service import Mismatch, Process, Service
from tests.crash.trainer import Trainer, profiles
from tests.crash.uninterrupted import compare

_OWNERS = "abc"
_RUNS_EACH = 3
_CROWD = 4
# A kill that does not come in this time, since its system call is not made, is done by hand.
_PATIENCE_S = 3.0
# Every so many kills everything is asked for again, not only what is newest.
_THOROUGH_EVERY = 10
_OPTIONS = (f"--rewind-window-steps={REWIND_WINDOW}", "--snapshot-groups=25", "--grace-s=5", "--workers=6")
_RELEASED = Path(__file__).resolve().parents[1] / "migrations/released"


@dataclass
class Figures:
    """What a campaign did."""

    kills: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    seconds: float = 0.0


class Campaign:
    """See the module docstring; ``directory`` is empty or new."""

    def __init__(self, directory: Path, seed: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state_dir = directory / "state"
        self.figures = Figures()
        self._rng = np.random.default_rng(seed)
        self._traced = traceable()
        self._journal = directory / "journal.log"
        self._writing = threading.Lock()
        self._owners = [self._owner(name) for name in _OWNERS]
        self._crowd = Crowd("crowd", _CROWD, self._spawn())
        self._round = 0
        self.kill: Kill | None = None

    def run(self, kills: int) -> None:
        """Kill the server so many times.

        Raises:
            Mismatch: something was lost, doubled or changed.
        """
        began = time.monotonic()
        try:
            while self.figures.kills.total() < kills:
                self._round += 1
                self.kill = kill = choose(self._rng, self._traced)
                self._record(f"--- round {self._round}: {kill}")
                {"START": self._killed_in_start, "MIGRATION": self._killed_in_migration}.get(
                    kill.when, self._killed_in_load
                )(kill)
            self.kill = None
            self._check_and_go_on(thorough=True)
            self.figures.counted["answers compared with an uninterrupted service"] = compare(
                self.directory / "uninterrupted", [owner.journal for owner in self._owners], _OPTIONS
            )
        finally:
            self.figures.seconds = time.monotonic() - began
            for owner in self._owners:
                owner.close()
        for counted in (*(owner.counted for owner in self._owners), self._crowd.counted):
            self.figures.counted.update(counted)

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _killed_in_load(self, kill: Kill) -> None:
        process, service = self._started(kill.encoder or any(owner.needs_encoder for owner in self._owners))
        try:
            self._check(service)
            self._load_until_killed(process, service, kill)
        finally:
            service.close()
            process.kill()
            process.close()

    def _killed_in_start(self, kill: Kill) -> None:
        under = strace(kill, self.state_dir) if kill.call else []
        process = Process(self.state_dir, (*_OPTIONS, "--encoder=none"), under)
        if kill.call:
            # Under strace the process is a child of its own, which ends with strace.
            if process.address():
                self._terminate_child(process)
                self._came_through()
                return
        else:
            time.sleep(kill.delay_s)
        process.kill()
        process.close()
        self._count(kill.kind)

    def _killed_in_migration(self, kill: Kill) -> None:
        """A state directory that is new, or of an old schema: killed while it is brought up to date, then started."""
        directory = self.directory / "migrated"
        shutil.rmtree(directory, ignore_errors=True)
        released = sorted(_RELEASED.glob("*/state.tar.xz"))
        if released and self._rng.random() < 0.7:
            with tarfile.open(released[int(self._rng.integers(len(released)))]) as archive:
                archive.extractall(directory.with_name("unpacked"), filter="data")
            unpacked = directory.with_name("unpacked")
            inner = [path.parent for path in unpacked.rglob("state.db")]
            inner[0].rename(directory)
            shutil.rmtree(unpacked, ignore_errors=True)
        options = (*_OPTIONS, "--encoder=none")
        before = self._seen_in(directory, options) if released and directory.exists() else None
        process = Process(directory, options, strace(kill, directory))
        if process.address():
            self._terminate_child(process)
            self._came_through()
        else:
            process.close()
            self._count(kill.kind)
        after = self._seen_in(directory, options)
        if before is not None and after != before:
            raise Mismatch(f"runs after an interrupted migration: expected {before}, found {after}")

    def _seen_in(self, directory: Path, options: Sequence[str]) -> list[str]:
        """What a service over a copy of a state directory says of its runs."""
        copied = directory.with_name("copied")
        shutil.copytree(directory, copied)
        process = Process(copied, options)
        address = process.address()
        if not address:
            raise Mismatch(f"the server does not start over {directory}:\n{process.last_words()}")
        service = Service(address)
        runs = service.call("ListRuns", pb.ListRunsRequest()).runs
        seen = [str(run) for run in runs]
        service.close()
        process.terminate()
        process.close()
        shutil.rmtree(copied)
        return seen

    def _load_until_killed(self, process: Process, service: Service, kill: Kill) -> None:
        stop = threading.Event()
        answers = _Countdown(kill.answers, process.kill)
        with ThreadPoolExecutor(len(self._owners) + 1) as threads:
            work = [threads.submit(owner.work, service, kill.encoder, stop, answers.one) for owner in self._owners]
            work.append(threads.submit(self._crowd.work, service, stop, answers.one))
            kind = self._end(process, kill)
            stop.set()
            for done in work:
                done.result()
        if kind:
            self._count(kind)
        else:
            self._came_through()

    def _end(self, process: Process, kill: Kill) -> str:
        """End the server in the way that was chosen; the kind of kill that it became, empty = it stopped by itself."""
        if kill.when == "DRAIN":
            return self._end_in_drain(process, kill)
        if kill.call:
            time.sleep(kill.delay_s)
            with _attached(kill, self.state_dir, process.pid):
                if process.ended(_PATIENCE_S):
                    return kill.kind
        elif kill.answers:
            if process.ended(_PATIENCE_S):
                return kill.kind
        else:
            time.sleep(kill.delay_s)
        process.kill()
        return "at a random time"

    def _end_in_drain(self, process: Process, kill: Kill) -> str:
        time.sleep(0.4)
        if not kill.call:
            process.terminate()
            time.sleep(kill.delay_s)
            process.kill()
            return kill.kind if process.close() == -9 else ""
        with _attached(kill, self.state_dir, process.pid):
            process.terminate()
            process.ended(_PATIENCE_S * 3)
        process.kill()
        return kill.kind if process.close() == -9 else ""

    # --- the server -----------------------------------------------------------------------------------------------

    def _started(self, encoder: bool) -> tuple[Process, Service]:
        options = (*_OPTIONS, "--encoder=default" if encoder else "--encoder=none", "--encoder-threads=1")
        process = Process(self.state_dir, options)
        address = process.address()
        if not address:
            process.close()
            raise Mismatch(f"the server does not start:\n{process.last_words()}")
        self.figures.restarts += 1
        return process, Service(address)

    def _check(self, service: Service, thorough: bool | None = None) -> None:
        if thorough is None:
            thorough = self._round % _THOROUGH_EVERY == 0
        with ThreadPoolExecutor(len(self._owners) + 1) as threads:
            work = [threads.submit(owner.check, service, thorough) for owner in self._owners]
            work.append(threads.submit(self._crowd.check, service))
            for done in work:
                done.result()

    def _check_and_go_on(self, thorough: bool) -> None:
        process, service = self._started(encoder=True)
        try:
            self._check(service, thorough)
        finally:
            service.close()
            process.terminate()
            if process.close() != 0:
                raise Mismatch(f"the server did not stop cleanly:\n{process.last_words()}")

    def _terminate_child(self, process: Process) -> None:
        """Stop a server that runs under strace."""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            subprocess.run(["kill", "-TERM", child], check=False)
        process.close()

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _owner(self, name: str) -> Owner:
        run_ids = [f"{name}-{i}" for i in range(_RUNS_EACH)]
        return Owner(f"{name}-", Trainer(run_ids, profiles(), self._spawn()), self._spawn(), self._record)

    def _spawn(self) -> np.random.Generator:
        return np.random.default_rng(self._rng.integers(0, 2**63))

    def _count(self, kind: str) -> None:
        self.figures.kills[kind] += 1

    def _came_through(self) -> None:
        """The system call was not made that often, so this round does not count."""
        self.figures.counted["rounds without a kill"] += 1

    def _record(self, line: str) -> None:
        with self._writing, open(self._journal, "a", encoding="utf-8") as journal:
            journal.write(f"{line}\n")

    @property
    def round(self) -> int:
        return self._round


class _Countdown:
    """Calls a function when it has been told so many times; 0 = never."""

    def __init__(self, count: int, then: Any) -> None:
        self._left = count
        self._then = then
        self._changing = threading.Lock()

    def one(self) -> None:
        with self._changing:
            self._left -= 1
            if self._left == 0:
                self._then()


class _attached:
    """strace, attached to a process for as long as the context lasts."""

    def __init__(self, kill: Kill, state_dir: Path, pid: int) -> None:
        self._command = [*strace(kill, state_dir), "-p", str(pid)]

    def __enter__(self) -> None:
        self._strace = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        detach(self._strace)
