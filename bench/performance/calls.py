"""How long a trainer waits for SelectBatch: ``python -m bench.performance.calls [--prompts N] [--json OUT]``.

A service process on a state directory of its own, and a training over gRPC: select B prompts, report all of them, do
something else for ``--pause`` seconds, as long as a trainer generates at least; so the next batch has been chosen
before it is asked for. Everything that the service promises holds: a selection is on disk before it is answered.

* ``bare call``: a gRPC server of the same library in a process of its own, which answers with the same 1,024 ids,
  ready made, and stores nothing, after pauses as long: a machine that was idle takes longer for the first call;
* ``at once``: the call follows as soon as the next batch is ready, which is when no thread of it
  computes any more; the caller keeps looking, so that the machine does not fall asleep. The bare call is made in the
  same way;
* ``idle``, ``predicting``: the same training while the predictor has nothing else to do, and while another run of as
  many prompts has it compute one estimate after another. Blocks of steps take turns.
* callers: so many trainings at once, each asking again for a batch that it has: the same call without a new selection.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np

from bench.performance.figures import Figure, at_least, options, parsed, show
from bench.performance.process import Process, scratch, service
from clients import SelectorClient
from selector.v1 import selector_service_pb2 as pb
from selector.v1 import selector_service_pb2_grpc as pb_grpc

_GROUP_SIZE = 8
_PATIENCE_S = 600.0
_BLOCK = 10
# Longer than threads sleep that hand work to each other.
_STILL_S = 0.03


def made(target: str, run_id: str, prompts: int) -> SelectorClient:
    """A client of a new run with so many prompts."""
    client = SelectorClient(target, run_id, timeout_s=_PATIENCE_S)
    client.create_run({"group_size": _GROUP_SIZE, "replay": {"fresh_fraction": 1.0}})
    client.register_prompts(
        [f"{run_id}-{i}" for i in range(prompts)], [f"What is {i} plus {i % 97}?" for i in range(prompts)]
    )
    return client


class Training:
    """The calls of a trainer, one step after another."""

    def __init__(self, client: SelectorClient, batch: int) -> None:
        self._client = client
        self._batch = batch
        self._step = 0
        self._random = np.random.default_rng(0)

    def step(self) -> float:
        """One step; seconds that it waited for its batch."""
        began = time.perf_counter()
        chosen = self._client.select_batch(self._step, self._batch)
        waited = time.perf_counter() - began
        assert not chosen.degraded and len(chosen.prompt_ids) == self._batch
        outcomes = (self._random.random((self._batch, _GROUP_SIZE)) < 0.5).astype(float)
        self._client.report_outcomes(self._step, dict(zip(chosen.prompt_ids, outcomes, strict=True)))
        self._step += 1
        return waited


def _keep_predicting(target: str, prompts: int, end: Connection) -> None:
    """A process: while it is told to, has the service estimate another run again and again."""
    logging.getLogger("selector.client").setLevel(logging.ERROR)
    client = made(target, "other", prompts)
    working = threading.Event()
    end.send("ready")

    def work() -> None:
        step, random = 0, np.random.default_rng(1)
        while working.wait():
            ids = [f"other-{i}" for i in random.choice(prompts, 64, replace=False)]
            client.report_outcomes(step, {each: (random.random(_GROUP_SIZE) < 0.5).astype(float) for each in ids})
            client.predict_difficulty(ids[:1])
            step += 1

    threading.Thread(target=work, daemon=True).start()
    while (said := end.recv()) != "end":
        (working.set if said == "work" else working.clear)()
        end.send("done")


@contextmanager
def _process(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=work, args=(*arguments, its), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _serve_bare(batch: int, end: Connection) -> None:
    """A process: answers SelectBatch with a message that is ready."""
    answer = pb.SelectBatchResponse(
        prompt_ids=[f"r-{i}" for i in range(batch)],
        predicted_difficulties=[0.5] * batch,
        standard_errors=[0.1] * batch,
        probabilities=[0.5] * batch,
        arms=[pb.ARM_TARGETED] * batch,
        rollouts=[_GROUP_SIZE] * batch,
    )

    class Bare(pb_grpc.SelectorServiceServicer):
        async def SelectBatch(self, request: Any, context: Any) -> pb.SelectBatchResponse:
            return answer

    async def serve() -> None:
        server = grpc.aio.server()
        pb_grpc.add_SelectorServiceServicer_to_server(Bare(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        end.send(port)
        end.send(os.getpid())
        await server.wait_for_termination()

    asyncio.run(serve())


def _until_still(process: Process) -> None:
    """Look, which is some work, until a process and its children have not computed for a while."""
    since = time.perf_counter()
    while time.perf_counter() - since < _STILL_S:
        if process.computing():
            since = time.perf_counter()


def bare(batch: int, calls: int, pause_s: float) -> dict[str, list[float]]:
    """Seconds of each call of the bare server, through the same client: at once, and after the same pauses."""
    found: dict[str, list[float]] = {"at once": [], "idle": []}
    with _process(_serve_bare, batch) as end, SelectorClient(f"127.0.0.1:{end.recv()}", "r") as client:
        process = Process(end.recv())
        for way, pause in (("at once", lambda: _until_still(process)), ("idle", lambda: time.sleep(pause_s))):
            for step in range(calls + 3):
                began = time.perf_counter()
                client.select_batch(step, batch)
                found[way].append(time.perf_counter() - began)
                pause()
    return {way: seconds[3:] for way, seconds in found.items()}


def waits(prompts: int, batch: int, steps: int, pause_s: float) -> dict[str, list[float]]:
    """Seconds of each SelectBatch: at once, idle, and while the predictor computes."""
    found: dict[str, list[float]] = {"at once": [], "idle": [], "predicting": []}
    with ExitStack() as stack:
        served = stack.enter_context(service(stack.enter_context(scratch())))
        other = stack.enter_context(_process(_keep_predicting, served.target, prompts))
        training = Training(made(served.target, "r", prompts), batch)
        assert other.recv() == "ready"
        for _ in range(3):
            training.step()
            time.sleep(pause_s)
        while len(found["predicting"]) < steps:
            for mode, told, pause in (
                ("at once", "rest", lambda: _until_still(served)),
                ("idle", "rest", lambda: time.sleep(pause_s)),
                ("predicting", "work", lambda: time.sleep(2 * pause_s)),
            ):
                other.send(told)
                other.recv()
                # What was under way is over, and the batch was chosen.
                time.sleep(2 * pause_s)
                for _ in range(min(_BLOCK, steps)):
                    pause()
                    found[mode].append(training.step())
    return found


def callers(numbers: list[int], batch: int, calls: int) -> list[Figure]:
    """Calls per second and percentiles with so many callers, each a thread of one of two processes."""
    figures: list[Figure] = []
    with scratch() as directory, service(directory) as served:
        for number in numbers:
            clients = [made(served.target, f"c{number}-{i}", 1000) for i in range(number)]
            for client in clients:
                client.select_batch(0, batch)
            seconds: list[list[float]] = [[] for _ in clients]

            def ask(client: SelectorClient, into: list[float], share: int) -> None:
                for _ in range(share):
                    began = time.perf_counter()
                    client.select_batch(0, batch)
                    into.append(time.perf_counter() - began)

            share = max(calls // number, 5)
            threads = [
                threading.Thread(target=ask, args=(client, into, share))
                for client, into in zip(clients, seconds, strict=True)
            ]
            cpu, began = served.cpu_s(), time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.perf_counter() - began
            cpu = served.cpu_s() - cpu
            all_seconds = np.concatenate(seconds)
            figures.append(
                Figure(
                    f"the same batch of {batch} again, {number} callers",
                    None,
                    len(all_seconds) / took,
                    None,
                    "calls / s",
                    detail={
                        "p50 ms": float(np.quantile(all_seconds, 0.5) * 1e3),
                        "p99 ms": float(np.quantile(all_seconds, 0.99) * 1e3),
                        "server CPU ms / call": cpu / len(all_seconds) * 1e3,
                    },
                )
            )
            for client in clients:
                client.delete_run()
                client.close()
    return figures


def main() -> None:
    """Measure, print and write."""
    parser = options("calls", __doc__)
    parser.add_argument("--prompts", type=at_least(1), nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--batch", type=at_least(1), default=1024)
    parser.add_argument("--steps", type=at_least(1), default=100)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two steps")
    parser.add_argument(
        "--callers", type=at_least(1), nargs="*", default=[1, 4, 16, 64], help="that ask for a batch again"
    )
    arguments = parsed(parser, prompts=[2000], steps=3, pause=0.1, callers=[1, 4])
    sizes, steps, pause = arguments.prompts, arguments.steps, arguments.pause
    if min(sizes) < arguments.batch:
        parser.error(f"--prompts: expected at least --batch, {arguments.batch}; got {min(sizes)}")
    # That a run has no sampling settings is of no interest here.
    logging.getLogger("selector.client").setLevel(logging.ERROR)
    floor = bare(arguments.batch, steps, pause)
    found = []
    for prompts in sizes:
        seconds = waits(prompts, arguments.batch, steps, pause)
        for mode, of_floor in (("at once", "at once"), ("idle", "idle"), ("predicting", "idle")):
            for name, quantile in (("p50", 0.5), ("p99", 0.99)):
                value, of_bare = (float(np.quantile(each, quantile) * 1e3) for each in (seconds[mode], floor[of_floor]))
                found.append(
                    Figure(
                        f"SelectBatch {name}, N = {prompts:,}, {mode}",
                        of_bare,
                        value,
                        of_bare / value,
                        "ms",
                        "bare call",
                        detail={"steps": len(seconds[mode]), "batch": arguments.batch},
                    )
                )
        p99 = {mode: float(np.quantile(each, 0.99) * 1e3) for mode, each in seconds.items()}
        found.append(
            Figure(
                f"SelectBatch p99, N = {prompts:,}, predicting",
                p99["idle"],
                p99["predicting"],
                p99["idle"] / p99["predicting"],
                "ms",
                "idle",
                must=0.5,
            )
        )
    found += callers(arguments.callers, 256, 40 if arguments.quick else 2000)
    show(found, arguments.json)


if __name__ == "__main__":
    main()
