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
from heapq import nsmallest
from typing import TypeVar

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry
from threadpoolctl import threadpool_limits

from selector.difficulty.adapter import Adapter
from selector.difficulty.kernel import CPU, DeviceUnavailable
from selector.embedding.embedder import Embedder
from selector.embedding.encoder import load_encoder
from selector.embedding.metrics import EmbedderCollector
from selector.embedding.store import EmbeddingStore
from selector.mending import mend
from selector.metric_families import RunMetrics
from selector.metrics import Metrics, MetricsServer
from selector.neighbours.search import check_device
from selector.predictor.metrics import PredictorCollector
from selector.predictor.predictor import LocalPredictor, Predictor, PredictorLost
from selector.predictor.process import ProcessPredictor
from selector.quotas import Quotas
from selector.replay.store import ReplayStore
from selector.run_adapter import RunAdapter
from selector.run_metrics import run_metrics
from selector.runs import Runs
from selector.service.access import Access
from selector.service.addresses import split_address
from selector.service.calls import Calls
from selector.service.channel import channel_options
from selector.service.exposure import check_exposure
from selector.service.gate import Gate
from selector.service.health import Health
from selector.service.intake import Intake
from selector.service.lanes import Lanes
from selector.service.limits import Limits
from selector.service.pushed_groups import decode_push
from selector.service.replay_servicer import ReplayServicer
from selector.service.selector_servicer import SelectorServicer
from selector.service.tls import ServerTls, tls_files
from selector.service.tokens import Tokens
from selector.settings import ServerSettings
from selector.storage.database import Database
from selector.storage.reserve import Reserve
from selector.storage.runs import RunStore
from selector.storage.snapshot_files import SnapshotFiles
from selector.storage.state_dir import StateDirectory
from selector.storage.watermark import Watermark
from selector.torch_devices import unusable
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

# How often it is looked whether gRPC still serves.
_LOOK_S = 1.0


_Limiting = TypeVar("_Limiting", Limits, Quotas)


class Server:
    """One server over one state directory; ``start``, then ``stop``."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._blocking = ThreadPoolExecutor(settings.workers, thread_name_prefix="selector-work")
        threads = settings.predictor_threads
        self._predictor: Predictor = (
            ProcessPredictor(threads, settings.predictor_device) if threads else LocalPredictor()
        )
        # The encoder takes one call at a time anyway, and must not keep all workers busy.
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="selector-encode")
        self._tokens = Tokens(settings.tokens, settings.token_file, time.time)
        self._access = Access(self._tokens)
        self._gate = Gate(self._access)
        self._tls: ServerTls | None = None
        self._limits = _of_settings(Limits, settings)
        self._calls = Calls(self._limits)
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
            ValueError: an adapter, a device, the tokens or the TLS files cannot be used, or strangers could get in.
            OSError: an address cannot be bound.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    def reload(self) -> None:
        """Read tokens and TLS files again, changed or not; from now on they count, unless they cannot be used."""
        self._tokens.refresh(force=True)
        if self._tls is not None:
            self._tls.refresh(force=True)

    async def ended(self) -> None:
        """Return once gRPC serves no more, be it by ``stop`` or by itself.

        Raises:
            BaseException: what gRPC failed with.
        """
        assert self._server is not None
        # Without a time limit gRPC would wait for the calls under way, such as a watch of health, also after it failed.
        while await self._server.wait_for_termination(_LOOK_S):
            pass

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
        check_exposure(settings)
        self._tokens.load()
        # Estimates are made of products too small for several threads, which would only spin and wait for each other;
        # and with one thread sums have one order. The encoder has threads of its own.
        threadpool_limits(1, user_api="blas")
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(self._blocking, time.time)
        database, replay, embeddings, snapshots = await self._lanes.off_loop(self._open_stores)
        check_device(settings.neighbours_device)
        await self._lanes.off_loop(self._check_encoder_device)
        await self._lanes.off_loop(self._check_predictor_device)
        adapters = {name: Adapter.load(path) for name, path in settings.adapters.items()}
        self._runs = Runs(
            RunStore(database),
            replay,
            embeddings,
            snapshots,
            adapters,
            settings.rewind_window_steps,
            settings.snapshot_groups,
            self._predictor,
            time.monotonic,
            time.time,
            _of_settings(Quotas, settings),
            self._reserve,
            settings.neighbours_device,
        )
        self._stores.callback(self._runs.close)
        self._metrics = Metrics(
            CollectorRegistry(),
            self._run_metrics,
            settings.metrics_max_runs,
            methods=_METHODS,
            run_ids=lambda: [run.row.run_id for run in self._runs.all()],
        )
        self._gate.turned_away = lambda method, code: self._metrics.observe_rpc(method, code, 0.0)
        selector = await self._listen()
        # Loading an encoder takes seconds, which the port need not wait for.
        if settings.encoder != "none":
            _log.info("loading encoder %s", settings.encoder)
        encoder = await self._lanes.off_loop(
            lambda: load_encoder(settings.encoder, settings.device, threads=settings.encoder_threads or None)
        )
        for name, adapter in adapters.items():
            misfit = None if encoder is None else RunAdapter(name, adapter).misfit(encoder)
            if misfit is not None:
                _log.warning("%s: only runs whose prompts come with embeddings can use it", misfit)
        selector.embedder = Embedder(encoder, embeddings)
        self._metrics.registry.register(EmbedderCollector(selector.embedder))
        self._metrics.registry.register(PredictorCollector(self._predictor))
        await self._lanes.off_loop(self._runs.open)
        await self._lanes.off_loop(lambda: mend(self._runs.all(), embeddings, selector.embedder))
        if settings.metrics_listen:
            host, port = split_address(settings.metrics_listen)
            try:
                self._metrics_server = self._metrics.start_http(host, port)
            except OSError as error:
                raise OSError(f"cannot listen on {settings.metrics_listen}: {error}") from error
            self.metrics_address = f"{host}:{self._metrics_server.port}"
        self._gate.ready = True
        await self._health.serve()

    def _check_encoder_device(self) -> None:
        if self._settings.encoder == "none" or self._settings.device == "cpu":
            return
        reason = unusable(self._settings.device)
        if reason is not None:
            raise ValueError(f"--device {reason}")

    def _check_predictor_device(self) -> None:
        device = self._settings.predictor_device
        if device == CPU:
            # Numpy is always there; the process can wait until it is needed.
            return
        if not isinstance(self._predictor, ProcessPredictor):
            raise ValueError(f"predictor_device {device}: predictor_threads must not be 0; the server computes on cpu")
        try:
            self._predictor.check()
        except DeviceUnavailable as error:
            raise ValueError(f"predictor_device {error}") from error
        except PredictorLost as error:
            raise ValueError(f"predictor_device {device}: the process that should use it ended: {error}") from error

    def _open_stores(self) -> tuple[Database, ReplayStore, EmbeddingStore, SnapshotFiles]:
        directory = StateDirectory(self._settings.state_dir)
        self._stores.callback(directory.close)
        watermark = Watermark(directory.watermark)
        self._stores.callback(watermark.close)
        self._reserve = reserve = Reserve(directory.reserve, self._settings.reserve_bytes)
        # Opening takes a little space too, which a full disk has only here.
        database = reserve.spend(lambda: Database(directory.database, watermark))
        self._stores.callback(database.close)
        map_bytes = self._settings.replay_map_bytes
        replay = reserve.spend(lambda: ReplayStore(directory.replay, map_bytes, watermark))
        self._stores.callback(replay.close)
        embeddings = EmbeddingStore(directory.embeddings, self._settings.max_total_embedding_bytes)
        return database, replay, embeddings, SnapshotFiles(directory.snapshots)

    async def _close(self) -> None:
        """Let go of everything that was opened; calls still in flight are ended."""
        if self._server is not None:
            await self._server.stop(None)
        if self._metrics_server is not None:
            self._metrics_server.close()
        await asyncio.to_thread(self._predictor.close)
        for executor in (self._encoding, self._blocking):
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=executor is not self._blocking)
        self._stores.close()

    async def _listen(self) -> SelectorServicer:
        settings = self._settings
        limits = self._limits
        intake = Intake(self._calls, self._metrics, {"PushRollouts": decode_push})
        self._server = server = grpc.aio.server(interceptors=[self._gate, intake], options=channel_options(settings))
        selector = SelectorServicer(
            self._runs, self._lanes, self._encoding, self._access, self._calls, self._metrics, time.monotonic
        )
        replay = ReplayServicer(
            self._runs,
            self._lanes,
            limits,
            self._access,
            self._calls,
            self._metrics,
            time.monotonic,
            self._metrics.carried,
        )
        selector_service_pb2_grpc.add_SelectorServiceServicer_to_server(selector, server)
        replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(replay, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        await self._health.load()
        host, port = split_address(settings.listen)
        credentials = self._credentials()
        try:
            bound = (
                server.add_insecure_port(f"{host}:{port}")
                if credentials is None
                else server.add_secure_port(f"{host}:{port}", credentials)
            )
        except RuntimeError as error:
            # gRPC does not say which; its own log line does.
            reason = "it is in use, or no address of this machine"
            raise OSError(f"cannot listen on {settings.listen}: {reason}") from error
        self.address = f"{host}:{bound}"
        await server.start()
        return selector

    def _credentials(self) -> grpc.ServerCredentials | None:
        settings = self._settings
        files = tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        if files is None:
            return None
        self._tls = ServerTls(files, time.time)
        return self._tls.credentials()

    def _run_metrics(self) -> Iterable[RunMetrics]:
        """Figures of the runs shown, for the scraping thread; a busy run shows what it showed last."""
        return asyncio.run_coroutine_threadsafe(self._gather_metrics(), self._loop).result()

    async def _gather_metrics(self) -> list[RunMetrics]:
        used = self._lanes.last_used
        shown = nsmallest(
            self._settings.metrics_max_runs, self._runs.all(), key=lambda run: (-used(run.row.run_id), run.row.run_id)
        )
        works = {run.row.run_id: partial(run_metrics, run, used(run.row.run_id)) for run in shown}
        for run_id, look in (await self._lanes.look_at("metrics", works, _SCRAPE_BUDGET_S)).items():
            if look.exception() is None:
                self._scraped[run_id] = look.result()
            else:
                _log.error("metrics of run %s failed", run_id, exc_info=look.exception())
        self._scraped = {run_id: self._scraped[run_id] for run_id in works if run_id in self._scraped}
        return list(self._scraped.values())

    def describe(self) -> dict[str, object]:
        """The effective settings, with secrets redacted."""
        shown: dict[str, object] = {}
        for field in fields(self._settings):
            if field.name == "tokens":
                # Of the option --token; those of the token file are beside it.
                shown["token"] = "set" if self._settings.tokens else "not set"
            else:
                shown[field.name] = getattr(self._settings, field.name)
        shown["adapters"] = {name: str(path) for name, path in self._settings.adapters.items()}
        return shown


def _of_settings(kind: type[_Limiting], settings: ServerSettings) -> _Limiting:
    """The limits that the settings hold under the same names."""
    return kind(**{field.name: getattr(settings, field.name) for field in fields(kind)})
