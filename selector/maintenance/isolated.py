"""Verifying in a process of its own, since a damaged LMDB file may end the process that reads it."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from selector.maintenance.report import Report
from selector.maintenance.verify import verify


def verify_isolated(directory: Path) -> Report:
    """What ``verify`` finds; a replay store that ends the process is a problem of that store."""
    report, ending = _in_process(directory, with_replay=True)
    if report is None:
        report, again = _in_process(directory, with_replay=False)
        if report is None:
            raise RuntimeError(f"the verifying process ended with {again}")
        report.check("replay groups").problem(
            f"replay/data.mdb: reading it ended the process with {ending}: it is damaged or cut off"
        )
    return report


def _in_process(directory: Path, with_replay: bool) -> tuple[Report | None, str]:
    """The report, None if the process ended before it was done, and how it ended."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sending, directory, with_replay))
    process.start()
    sending.close()
    try:
        report = receiving.recv()
    except EOFError:
        report = None
    process.join()
    code = process.exitcode or 0
    return report, signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _child(sending: Connection, directory: Path, with_replay: bool) -> None:
    sending.send(verify(directory, with_replay=with_replay))
