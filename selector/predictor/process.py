"""The server's side of the predictor's process."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from itertools import count
from typing import Any

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Estimate, PoolFeatures
from selector.difficulty.kernel import CPU, DeviceUnavailable
from selector.predictor.channel import Channel
from selector.predictor.child import Job, NewReplica
from selector.predictor.predictor import PredictorLost, References, ReplicaGone, RunPredictor
from selector.state import RunState

_log = logging.getLogger("selector.predictor")

# Replicas of the runs that have gone longest without an estimate give their memory back.
_MOST_REPLICAS = 64
# Between two starts of a child that dies again and again.
_PAUSE_S = 1.0
_END_S = 5.0
_FIELDS = tuple(each.name for each in fields(PoolFeatures))


class ProcessPredictor:
    """One child process for all runs, started when something is to be computed and there is none.

    Attributes:
        starts: how often one was started.
    """

    def __init__(self, threads: int = 1, device: str = CPU) -> None:
        """
        Args:
            threads: of linear algebra on the CPU.
            device: what attention is computed on, see ``selector.difficulty.kernel``.
        """
        self.starts = 0
        self._threads = threads
        self._device = device
        self._child: _Child | None = None
        self._numbers = count()
        # Everything below is done in it, so that jobs reach the child in the order in which runs asked for them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="selector-predictor")
        # By number of the run: which of its replicas the child has.
        self._replicas: OrderedDict[int, int] = OrderedDict()
        self._dropped: set[int] = set()

    def of_run(self, config: RunConfig, adapter: Adapter | None, device: str) -> RunPredictor:
        """See ``Predictor``."""
        return _ProcessRun(self, next(self._numbers), config, adapter, device)

    def check(self) -> None:
        """Start the child, and wait until it can compute.

        Raises:
            DeviceUnavailable: it cannot use the device.
            PredictorLost: it cannot be started, or ended.
        """
        self._thread.submit(self._check).result()

    @property
    def pid(self) -> int | None:
        """Of the child, None while there is none."""
        child = self._child
        return None if child is None else child.process.pid

    def close(self) -> None:
        """End the child; what it computes is lost."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for _ in range(2):
            # A second time: one may have been started since.
            if (child := self._child) is not None:
                child.end()
            self._thread.shutdown(wait=True)

    def submit(self, run: int, replica: int, job: Mapping[str, Any]) -> Future[Any]:
        """Have a job done.

        Args:
            run: its number.
            replica: number of the run's replica that the job makes, or builds on.
            job: what else a ``Job`` has.
        """
        return self._thread.submit(self._do, run, replica, job)

    def drop(self, run: int) -> None:
        """A run's replica is not needed any more."""
        with suppress(RuntimeError):
            # After ``close`` there is none.
            self._thread.submit(self._drop, run)

    def _check(self) -> None:
        child = self._living()
        try:
            child.wait_ready()
        except DeviceUnavailable:
            self._child = None
            child.end()
            raise
        except Exception as error:
            raise self._lost(child, error) from error

    def _do(self, run: int, replica: int, job: Mapping[str, Any]) -> Any:
        child = self._living()
        if job["new"] is not None:
            self._replicas[run] = replica
        elif self._replicas.get(run) != replica:
            raise ReplicaGone("others needed the room, or the process is another")
        self._replicas.move_to_end(run)
        while len(self._replicas) > _MOST_REPLICAS:
            self._dropped.add(self._replicas.popitem(last=False)[0])
        try:
            child.wait_ready()
            child.channel.send(Job(run=run, dropped=tuple(self._dropped - {run}), **job))
            self._dropped.clear()
            well, answer = child.channel.receive()
        except Exception as error:
            # Also where this process lacks memory or descriptors: what the channel brings next cannot be told any more.
            raise self._lost(child, error) from error
        if not well:
            # What the replica has come to is not known.
            self._drop(run)
            raise answer
        return answer

    def _lost(self, child: _Child, error: Exception) -> PredictorLost:
        self._child = None
        child.end()
        lived = time.monotonic() - child.began
        status = child.process.returncode
        _log.error("the predictor's process ended after %.1f s, with status %s: %r", lived, status, error)
        time.sleep(max(_PAUSE_S - lived, 0.0))
        return PredictorLost(str(error))

    def _living(self) -> _Child:
        if self._child is None:
            self._replicas.clear()
            self._dropped.clear()
            self.starts += 1
            try:
                self._child = _Child(self._threads, self._device)
            except OSError as error:
                _log.error("the predictor's process cannot be started: %s", error)
                time.sleep(_PAUSE_S)
                raise PredictorLost(str(error)) from error
        return self._child

    def _drop(self, run: int) -> None:
        if self._replicas.pop(run, None) is not None:
            self._dropped.add(run)


class _Child:
    """A process that lives."""

    def __init__(self, threads: int, device: str) -> None:
        self._ready = False
        self.began = time.monotonic()
        ours, its = socket.socketpair()
        ends, self._alive = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "selector.predictor.child", *map(str, (its.fileno(), ends, threads, device))],
                pass_fds=(its.fileno(), ends),
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal is for the server, which then ends it.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._alive)
            ours.close()
            raise
        finally:
            its.close()
            os.close(ends)
        self.channel = Channel(ours)

    def wait_ready(self) -> None:
        """Return once it can compute.

        Raises:
            DeviceUnavailable: it cannot use the device.
            Closed: it ended.
        """
        if self._ready:
            return
        self._ready, error = self.channel.receive()
        if not self._ready:
            raise error

    def end(self) -> None:
        """Kill it, if it has not ended, and wait for that."""
        self.process.kill()
        self.process.wait(_END_S)
        self.channel.close()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


class _ProcessRun:
    """What the child has of a run, as far as jobs that were submitted make it so."""

    def __init__(
        self, predictor: ProcessPredictor, number: int, config: RunConfig, adapter: Adapter | None, device: str
    ) -> None:
        self._predictor = predictor
        self._number = number
        self._config = config
        self._adapter = adapter
        self._device = device
        self._replica = 0
        # The state that the replica follows; None = there is no replica.
        self._state: RunState | None = None
        self._features: PoolFeatures | None = None
        self._failed = False

    def submit(self, state: RunState, features: PoolFeatures, step: int) -> Future[Estimate]:
        return self._submit(state, features, "estimate", (step,))

    def references(
        self, state: RunState, features: PoolFeatures, step: int, prompt: int, limit: int
    ) -> Future[References]:
        if self._config.estimator.name != "ATTENTION":
            none: Future[References] = Future()
            none.set_result([])
            return none
        return self._submit(state, features, "references", (step, prompt, limit))

    def forget(self) -> None:
        self._predictor.drop(self._number)
        if self._state is not None:
            self._state.changes = None
        self._state = self._features = None

    def _submit(self, state: RunState, features: PoolFeatures, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        if state is not self._state or self._failed:
            self.forget()
            self._failed = False
            self._replica += 1
            self._state = state
            # A copy, which stays as it is until it has been sent.
            new = NewReplica(self._config, self._adapter, self._device, state.estimator.copy().state_dict())
        else:
            new = None
        changes = tuple(state.changes or ())
        state.changes = []
        job = {
            "new": new,
            "changes": changes,
            "features": _changed(self._features, features),
            "method": method,
            "arguments": arguments,
        }
        self._features = features
        future = self._predictor.submit(self._number, self._replica, job)
        future.add_done_callback(self._look)
        return future

    def _look(self, done: Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._failed = True


def _changed(old: PoolFeatures | None, new: PoolFeatures) -> dict[str, Any]:
    """The fields that differ; arrays of features are never altered, so one that differs is another."""
    return {name: getattr(new, name) for name in _FIELDS if old is None or not _same(old, new, name)}


def _same(old: PoolFeatures, new: PoolFeatures, name: str) -> bool:
    if name == "version":
        return old.version == new.version
    if name == "signals":
        return old.signals.keys() == new.signals.keys() and all(old.signals[k] is v for k, v in new.signals.items())
    return getattr(old, name) is getattr(new, name)
