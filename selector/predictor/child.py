"""The predictor's process: replicas of the runs' estimators, and what is computed from them.

    python -m selector.predictor.child FD ALIVE_FD THREADS DEVICE

It first says whether it can use the device. It ends when the server does, whatever the server ended of: nobody else
holds the other end of ``ALIVE_FD``.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Estimator, OutcomeBatch, PoolFeatures
from selector.difficulty.kernel import CPU, Kernel, make_kernel
from selector.difficulty.registry import estimator_of
from selector.predictor.channel import Channel, Closed
from selector.state import Change

_log = logging.getLogger("selector.predictor")

# Calls must not wait for estimates: the scheduler gives the server's threads a core first.
_NICENESS = 15


@dataclass(frozen=True)
class NewReplica:
    """Everything folded so far."""

    config: RunConfig
    adapter: Adapter | None
    device: str
    state: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One thing to compute.

    Attributes:
        run: number of the run's replica.
        new: made anew from this; None = it is there.
        changes: folded before, in order.
        features: fields of ``PoolFeatures`` that are not those of the job before; everything of a new replica.
        method: of the estimator.
        arguments: behind the features.
        dropped: replicas that are not needed any more.
    """

    run: int
    new: NewReplica | None
    changes: tuple[Change, ...]
    features: dict[str, Any]
    method: str
    arguments: tuple[Any, ...]
    dropped: tuple[int, ...]


@dataclass
class _Replica:
    estimator: Estimator
    features: PoolFeatures | None = None


class Replicas:
    """By number of the run."""

    def __init__(self, kernel: Kernel) -> None:
        """``kernel``: what attention is computed with."""
        self._kernel = kernel
        self._replicas: dict[int, _Replica] = {}

    def do(self, job: Job) -> Any:
        """What the job asks for."""
        for run in job.dropped:
            self._replicas.pop(run, None)
        if job.new is not None:
            estimator = estimator_of(job.new.config, job.new.adapter, job.new.device, self._kernel)
            estimator.load_state_dict(job.new.state)
            self._replicas[job.run] = _Replica(estimator)
        replica = self._replicas[job.run]
        for change in job.changes:
            if isinstance(change, OutcomeBatch):
                replica.estimator.observe(change)
            else:
                replica.estimator.forget(change)
        if replica.features is None:
            replica.features = PoolFeatures(**job.features)
        else:
            replica.features = replace(replica.features, **job.features)
        compute: Callable[..., Any] = getattr(replica.estimator, job.method)
        return compute(replica.features, *job.arguments)


def serve(channel: Channel, device: str, threads: int) -> None:
    """Answer jobs with ``(True, result)`` or ``(False, error)`` until the server is gone.

    Raises:
        RuntimeError: the device failed, and may be of no use to this process from now on. Another one starts anew.
    """
    try:
        replicas = Replicas(make_kernel(device, threads))
    except ValueError as error:
        channel.send((False, error))
        return
    channel.send((True, None))
    while True:
        try:
            job = channel.receive()
            try:
                answer = (True, replicas.do(job))
            except Exception as error:
                _log.exception("%s of run %d failed", job.method, job.run)
                # The exception itself might not come through.
                answer = (False, RuntimeError(f"{type(error).__name__}: {error}"))
                if device != CPU and isinstance(error, RuntimeError):
                    raise
            channel.send(answer)
        except Closed:
            return


def main() -> None:
    """See the module."""
    end, alive, threads = (int(value) for value in sys.argv[1:4])
    # Both come to the whole group of a terminal or a container; the server tells when it is over.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_server, args=(alive,), daemon=True).start()
    # Its log lines go where the server's error output goes.
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with threadpool_limits(threads):
        serve(Channel(socket.socket(fileno=end)), sys.argv[4], threads)


def _end_with_server(alive: int) -> None:
    os.read(alive, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
