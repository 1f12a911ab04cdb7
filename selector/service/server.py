"""The server: opens the state directory, loads the encoder, serves, and drains.

The port is open from the first moment, but health says NOT_SERVING and calls are UNAVAILABLE until everything is
loaded. On stop, health says NOT_SERVING, calls in flight get their grace time, and the stores are closed last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry
from threadpoolctl import threadpool_limits

from selector.difficulty.adapter import Adapter
from selector.embedding.embedder import Embedder
from selector.embedding.encoder import load_encoder
from selector.embedding.metrics import EmbedderCollector
from selector.embedding.store import EmbeddingStore
from selector.metric_families import RunMetrics
from selector.metrics import Metrics, MetricsServer
from selector.replay.store import ReplayStore
from selector.run_metrics import run_metrics
from selector.runs import Runs
from selector.service.calls import Calls
from selector.service.gate import Gate
from selector.service.health import Health
from selector.service.lanes import Lanes
from selector.service.limits import Limits
from selector.service.replay_servicer import ReplayServicer
from selector.service.selector_servicer import SelectorServicer
from selector.settings import ServerSettings
from selector.storage.database import Database
from selector.storage.runs import RunStore
from selector.storage.state_dir import StateDirectory
from selector.v1 import replay_service_pb2, replay_service_pb2_grpc, selector_service_pb2, selector_service_pb2_grpc

_log = logging.getLogger("selector.service")

_SERVICES = (
    selector_service_pb2.DESCRIPTOR.services_by_name["SelectorService"].full_name,
    replay_service_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name,
)

_METHODS = [
    method.name
    for module, service in ((selector_service_pb2, "SelectorService"), (replay_service_pb2, "ReplayService"))
    for method in module.DESCRIPTOR.services_by_name[service].methods
]

# A scrape should come back within Prometheus' usual interval even while a run is busy.
_SCRAPE_BUDGET_S = 5.0

# Time for the last answers to leave.
_FLUSH_S = 1.0


class Server:
    """One server over one state directory; ``start``, then ``stop``."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._blocking = ThreadPoolExecutor(settings.workers, thread_name_prefix="selector-work")
        self._estimating = ThreadPoolExecutor(2, thread_name_prefix="selector-estimate")
        # The encoder takes one call at a time anyway, and must not keep all workers busy.
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="selector-encode")
        self._gate = Gate(settings.tokens)
        self._calls = Calls()
        self._health = Health(_SERVICES)
        self._stores = ExitStack()
        self._server: grpc.aio.Server | None = None
        self._metrics_server: MetricsServer | None = None
        self._scraped: dict[str, RunMetrics] = {}
        self.address = ""
        self.metrics_address = ""

    async def start(self) -> None:
        """Bind, load everything, and begin to serve.

        Raises:
            ServiceError: the state directory cannot be used.
            EncoderError: the encoder cannot be loaded.
            ValueError: an adapter cannot be loaded.
            OSError: an address cannot be bound.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def stop(self) -> None:
        """Drain: refuse new calls, let those in flight finish within the grace time, close everything."""
        self._gate.draining = True
        await self._health.drain()
        # The port stays open meanwhile, so that health can be asked and refusals say why.
        await self._calls.drain(self._settings.grace_s)
        assert self._server is not None
        await self._server.stop(min(_FLUSH_S, self._settings.grace_s))
        await self._close()

    async def _start(self) -> None:
        settings = self._settings
        # Estimates are made of products too small for several threads, which would only spin and wait for each other;
        # and with one thread sums have one order. The encoder has threads of its own.
        threadpool_limits(1, user_api="blas")
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(self._blocking, time.time)
        database, replay, embeddings = await self._lanes.off_loop(self._open_stores)
        adapters = {name: Adapter.load(path) for name, path in settings.adapters.items()}
        self._runs = Runs(
            RunStore(database),
            replay,
            embeddings,
            adapters,
            settings.rewind_window_steps,
            self._estimating,
            time.monotonic,
            time.time,
        )
        self._metrics = Metrics(CollectorRegistry(), self._run_metrics, settings.metrics_max_runs, methods=_METHODS)
        self._gate.unknown_method = lambda method: self._metrics.observe_rpc(method, "UNIMPLEMENTED", 0.0)
        selector = await self._listen()
        # Loading an encoder takes seconds, which the port need not wait for.
        if settings.encoder != "none":
            _log.info("loading encoder %s", settings.encoder)
        encoder = await self._lanes.off_loop(
            lambda: load_encoder(settings.encoder, settings.device, threads=settings.encoder_threads or None)
        )
        selector.embedder = Embedder(encoder, embeddings)
        self._metrics.registry.register(EmbedderCollector(selector.embedder))
        await self._lanes.off_loop(self._runs.open)
        if settings.metrics_listen:
            host, port = split_address(settings.metrics_listen)
            try:
                self._metrics_server = self._metrics.start_http(host, port)
            except OSError as error:
                raise OSError(f"cannot listen on {settings.metrics_listen}: {error}") from error
            self.metrics_address = f"{host}:{self._metrics_server.port}"
        self._gate.ready = True
        await self._health.serve()

    def _open_stores(self) -> tuple[Database, ReplayStore, EmbeddingStore]:
        directory = StateDirectory(self._settings.state_dir)
        self._stores.callback(directory.close)
        database = Database(directory.database)
        self._stores.callback(database.close)
        replay = ReplayStore(directory.replay, self._settings.replay_map_bytes)
        self._stores.callback(replay.close)
        return database, replay, EmbeddingStore(directory.embeddings)

    async def _close(self) -> None:
        """Let go of everything that was opened; calls still in flight are ended."""
        if self._server is not None:
            await self._server.stop(None)
        if self._metrics_server is not None:
            self._metrics_server.close()
        for executor in (self._encoding, self._estimating, self._blocking):
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=executor is not self._blocking)
        self._stores.close()

    async def _listen(self) -> SelectorServicer:
        settings = self._settings
        limits = Limits(settings.max_runs, settings.max_prompts, settings.max_stream_bytes, settings.max_message_bytes)
        options = [
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            # Two servers on one port would share its callers between two states.
            ("grpc.so_reuseport", 0),
        ]
        self._server = server = grpc.aio.server(interceptors=[self._gate], options=options)
        selector = SelectorServicer(
            self._runs, self._lanes, self._encoding, limits, self._calls, self._metrics, time.monotonic
        )
        replay = ReplayServicer(self._runs, self._lanes, limits, self._calls, self._metrics, time.monotonic)
        selector_service_pb2_grpc.add_SelectorServiceServicer_to_server(selector, server)
        replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(replay, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        await self._health.load()
        host, port = split_address(settings.listen)
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            # gRPC does not say which; its own log line does.
            reason = "it is in use, or no address of this machine"
            raise OSError(f"cannot listen on {settings.listen}: {reason}") from error
        self.address = f"{host}:{bound}"
        await server.start()
        return selector

    def _run_metrics(self) -> Iterable[RunMetrics]:
        """Figures of all runs, for the scraping thread; a busy run shows what it showed last."""
        return asyncio.run_coroutine_threadsafe(self._gather_metrics(), self._loop).result()

    async def _gather_metrics(self) -> list[RunMetrics]:
        runs = {run.row.run_id: run for run in self._runs.all()}
        tasks = {
            run_id: asyncio.ensure_future(
                self._lanes.run(run_id, partial(run_metrics, run, self._lanes.last_used(run_id)))
            )
            for run_id, run in runs.items()
        }
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_SCRAPE_BUDGET_S)
        for run_id, task in tasks.items():
            if task.done() and task.exception() is None:
                self._scraped[run_id] = task.result()
            elif task.done():
                _log.error("metrics of run %s failed", run_id, exc_info=task.exception())
        self._scraped = {run_id: self._scraped[run_id] for run_id in runs if run_id in self._scraped}
        return list(self._scraped.values())

    def describe(self) -> dict[str, object]:
        """The effective settings, with secrets redacted."""
        shown = {field.name: getattr(self._settings, field.name) for field in fields(self._settings)}
        shown["tokens"] = f"{len(self._settings.tokens)} redacted" if self._settings.tokens else "none"
        shown["adapters"] = {name: str(path) for name, path in self._settings.adapters.items()}
        return shown


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT as host and port; IPv6 hosts stand in brackets.

    Raises:
        ValueError: it is not HOST:PORT.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT with a port in [0, 65535]; got {address!r}")
    return host, int(port)
