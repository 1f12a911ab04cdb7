"""``selector serve`` and ``selector health``."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from selector.cli.limits import limit_options
from selector.cli.log_lines import FORMAT, LogLines
from selector.cli.options import load_config
from selector.cli.tls_options import chosen_tls, tls_options

_LEVELS = ("debug", "info", "warning", "error")

# Python's own are 700, 10, 10: a registration, which makes several objects of every prompt and no cycles of them, would
# spend a fifth of its time in searches for garbage.
_COLLECTOR_THRESHOLDS = (50_000, 20, 20)


def _address(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from selector.service.addresses import split_address

    if value == "" and parameter.name == "metrics_listen":
        return value
    try:
        split_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _adapters(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for value in values:
        name, _, path = value.partition("=")
        if not name or not path:
            raise click.BadParameter(f"expected NAME=FILE; got {value!r}")
        if name in found:
            raise click.BadParameter(f"adapter {name!r} is given twice")
        found[name] = Path(path)
    return found


def _predictor_device(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    from selector.difficulty.kernel import DEVICES

    if not DEVICES.fullmatch(value):
        raise click.BadParameter(f"expected cpu, cuda, cuda:N or torch-cpu; got {value!r}")
    return value


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number; got {value}")
    return value


def _token(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    # What a header cannot carry could never be presented; the message does not repeat it.
    if not all("!" <= character <= "~" for character in value):
        raise click.BadParameter("expected printable ASCII characters without spaces")
    return value


def _token_file(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Say what is wrong with the file at once, rather than when the server starts."""
    import time

    from selector.service.tokens import Tokens

    try:
        Tokens((), path, time.time).load()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return path


def _option(*names: str, env: str, **settings: Any) -> Any:
    return click.option(*names, envvar=f"SELECTOR_{env}", show_envvar=True, **{"show_default": True, **settings})


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="SELECTOR_CONFIG",
    show_envvar=True,
    is_eager=True,
    callback=load_config,
    help="YAML file with any of these options; flags and environment variables come first.",
)
@_option(
    "--listen", env="LISTEN", default="127.0.0.1:50051", callback=_address, help="HOST:PORT of gRPC; port 0 = any."
)
@_option(
    "--metrics-listen",
    env="METRICS_LISTEN",
    default="127.0.0.1:9090",
    callback=_address,
    help="HOST:PORT of the Prometheus endpoint; port 0 = any, empty = none.",
)
@_option(
    "--state-dir",
    env="STATE_DIR",
    default="selector-state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of everything durable; one server at a time.",
)
@_option(
    "--encoder",
    env="ENCODER",
    default="default",
    help="What embeds prompt texts: 'default' (MiniLM, packaged), 'none', or a sentence-transformers name or path.",
)
@_option(
    "--device",
    env="DEVICE",
    default="cpu",
    help="Device of the encoder, as torch names it: cpu, cuda, cuda:1, mps and so on.",
)
@_option(
    "--encoder-threads",
    env="ENCODER_THREADS",
    default=0,
    type=click.IntRange(0),
    help="Threads of the encoder, 0 = torch's choice.",
)
@_option(
    "--neighbours-device",
    env="NEIGHBOURS_DEVICE",
    default="cpu",
    type=click.Choice(["cpu", "cuda"]),
    help="Where faiss searches for nearest neighbours; cuda needs the [gpu] extra instead of [server].",
)
@_option(
    "--adapter",
    "adapters",
    env="ADAPTERS",
    multiple=True,
    callback=_adapters,
    help="NAME=FILE of a trained adapter; may be repeated (spaces in the variable, a mapping in the file).",
)
@_option(
    "--token",
    env="TOKEN",
    default="",
    show_default=False,
    callback=_token,
    help="Bearer token that may do everything. Other users see flags in the list of processes: use the variable.",
)
@_option(
    "--token-file",
    env="TOKEN_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_token_file,
    help="YAML file of bearer tokens with scopes, or one token a line; read again when it changes, and on SIGHUP.",
)
@_option(
    "--tls-cert",
    env="TLS_CERT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file of the certificate with its chain; read again when it changes, and on SIGHUP.",
)
@_option(
    "--tls-key",
    env="TLS_KEY",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file of the certificate's private key, without a passphrase.",
)
@_option(
    "--tls-client-ca",
    env="TLS_CLIENT_CA",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file of authorities; every client must then have a certificate of one of them (mTLS).",
)
@_option(
    "--insecure",
    env="INSECURE",
    is_flag=True,
    help="Serve other machines although calls are plaintext or no token is asked for.",
)
@_option(
    "--grace-s",
    env="GRACE_S",
    default=30.0,
    type=click.FloatRange(0),
    callback=_finite,
    help="Seconds for calls in flight on stop.",
)
@_option("--workers", env="WORKERS", default=8, type=click.IntRange(1, 256), help="Threads for blocking work.")
@_option(
    "--predictor-threads",
    env="PREDICTOR_THREADS",
    default=1,
    type=click.IntRange(0, 1024),
    help="Threads of the process that computes estimates; 0 = in the server itself, as long as pools are small.",
)
@_option(
    "--predictor-device",
    env="PREDICTOR_DEVICE",
    default="cpu",
    callback=_predictor_device,
    help="Where that process computes attention: cpu (numpy), torch-cpu (torch), or cuda, cuda:1 and so on (torch).",
)
@_option(
    "--rewind-window-steps",
    env="REWIND_WINDOW_STEPS",
    default=100,
    type=click.IntRange(1),
    help="Steps for which replay groups that left the buffer are kept for RewindRun.",
)
@_option(
    "--replay-map-bytes",
    env="REPLAY_MAP_BYTES",
    default=64 * 2**30,
    type=click.IntRange(2**20),
    help="Largest size of the replay store on disk.",
)
@_option(
    "--reserve-bytes",
    env="RESERVE_BYTES",
    default=8 * 2**20,
    type=click.IntRange(0),
    help="Disk space kept back for deleting and rewinding runs when the disk is full; 0 = none.",
)
@_option(
    "--snapshot-groups",
    env="SNAPSHOT_GROUPS",
    default=32_768,
    type=click.IntRange(1),
    help="Groups reported between two snapshots of a run's state, which keep starts and rewinds short.",
)
@limit_options
@_option(
    "--metrics-max-runs",
    env="METRICS_MAX_RUNS",
    default=100,
    type=click.IntRange(1),
    help="Runs shown on the metrics endpoint; the least recently used are left out.",
)
@_option("--log-level", env="LOG_LEVEL", default="info", type=click.Choice(_LEVELS), help="Least severe log lines.")
def serve(config: Path | None, log_level: str, token: str, **values: Any) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Prints one line with the bound addresses when it serves; logs go to standard error. Exit code 1 when it could not
    start, or stopped serving although nobody asked for it.
    """
    from selector.grants import admin
    from selector.service.allocator import keep_freed_memory
    from selector.settings import ServerSettings

    keep_freed_memory()
    _allow_open_files()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(FORMAT))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    # Alembic tells of its plugins when it is imported, which is before the settings are known.
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    settings = ServerSettings(tokens=(admin(token),) if token else (), **values)
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    sys.exit(asyncio.run(_serve(settings)))


def _allow_open_files() -> None:
    """As many as may be: every connection takes one, and the usual soft limit of 1,024 is for what calls select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Refused where the hard limit is one that no process may have; what there is has to do then.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: Any) -> int:
    from selector.embedding.errors import EmbeddingError
    from selector.errors import ServiceError
    from selector.service.server import Server

    server = Server(settings)
    log = logging.getLogger("selector")
    log.info("settings: %s", json.dumps(server.describe(), default=str))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    try:
        await server.start()
    except (ServiceError, EmbeddingError, OSError, ValueError) as error:
        click.echo(f"selector: cannot start: {error}", err=True)
        return 1
    # What was loaded stays; calls need not wait while the collector looks through it.
    gc.collect()
    gc.freeze()
    metrics = server.metrics_address or "none"
    click.echo(f"selector: serving grpc={server.address} metrics={metrics} state-dir={settings.state_dir}")
    asked, ended = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(server.ended())
    await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
    failed = ended.done() and not asked.done()
    if failed:
        log.error("gRPC has stopped serving although nobody asked for it; the service ends", exc_info=ended.exception())
    for waiting in (asked, ended):
        waiting.cancel()
    log.info("stopping: calls in flight have %g s", settings.grace_s)
    await server.stop()
    log.info("stopped")
    return 1 if failed else 0


@click.command()
@_option("--target", env="TARGET", default="127.0.0.1:50051", help="HOST:PORT of the service.")
@_option(
    "--timeout-s",
    env="HEALTH_TIMEOUT_S",
    default=3.0,
    type=click.FloatRange(0.001),
    callback=_finite,
    help="Seconds to wait for an answer.",
)
@tls_options
def health(target: str, timeout_s: float) -> None:
    """Ask a server whether it serves; exit code 0 if so. No token is asked for."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from clients.errors import from_rpc_error
    from clients.tls import channel_security

    try:
        credentials, options = channel_security(chosen_tls())
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        with (
            grpc.insecure_channel(target)
            if credentials is None
            else grpc.secure_channel(target, credentials, options) as channel
        ):
            stub: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            answer = stub.Check(request, timeout=timeout_s)
    except grpc.RpcError as error:
        click.echo(f"selector: {target}: {from_rpc_error(error, plaintext=credentials is None)}", err=True)
        sys.exit(1)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(status)
    sys.exit(0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1)
