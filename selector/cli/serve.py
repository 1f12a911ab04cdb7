"""``selector serve`` and ``selector health``."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from selector.cli.options import load_config

_LEVELS = ("debug", "info", "warning", "error")


def _address(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    from selector.service.server import split_address

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


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number; got {value}")
    return value


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
@_option("--device", env="DEVICE", default="cpu", help="Device of the encoder, such as cpu or cuda.")
@_option(
    "--encoder-threads",
    env="ENCODER_THREADS",
    default=0,
    type=click.IntRange(0),
    help="Threads of the encoder, 0 = torch's choice.",
)
@_option(
    "--adapter",
    "adapters",
    env="ADAPTERS",
    multiple=True,
    callback=_adapters,
    help="NAME=FILE of a trained adapter; may be repeated (spaces in the variable, a mapping in the file).",
)
@_option("--token", env="TOKEN", default="", show_default=False, help="Bearer token that callers must present.")
@_option(
    "--token-file",
    env="TOKEN_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with valid bearer tokens, one a line.",
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
@_option("--max-runs", env="MAX_RUNS", default=1000, type=click.IntRange(1), help="Most runs.")
@_option("--max-prompts", env="MAX_PROMPTS", default=10_000_000, type=click.IntRange(1), help="Most prompts of a run.")
@_option(
    "--max-stream-bytes",
    env="MAX_STREAM_BYTES",
    default=4 * 2**30,
    type=click.IntRange(1),
    help="Most bytes of a stream.",
)
@_option(
    "--max-message-bytes",
    env="MAX_MESSAGE_BYTES",
    default=64 * 2**20,
    type=click.IntRange(2**16, 2**31 - 1),
    help="Most bytes of a message.",
)
@_option(
    "--metrics-max-runs",
    env="METRICS_MAX_RUNS",
    default=100,
    type=click.IntRange(1),
    help="Runs shown on the metrics endpoint; the least recently used are left out.",
)
@_option("--log-level", env="LOG_LEVEL", default="info", type=click.Choice(_LEVELS), help="Least severe log lines.")
def serve(config: Path | None, log_level: str, token: str, token_file: Path | None, **values: Any) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Prints one line with the bound addresses when it serves; logs go to standard error.
    """
    from selector.settings import ServerSettings

    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    tokens = (*([token] if token else []), *_token_lines(token_file))
    settings = ServerSettings(tokens=tokens, **values)
    sys.exit(asyncio.run(_serve(settings)))


def _token_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}", param_hint="--token-file") from error
    found = [line for line in lines if line]
    if not found:
        raise click.BadParameter(f"{path} holds no token", param_hint="--token-file")
    return found


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
    try:
        await server.start()
    except (ServiceError, EmbeddingError, OSError, ValueError) as error:
        click.echo(f"selector: cannot start: {error}", err=True)
        return 1
    metrics = server.metrics_address or "none"
    click.echo(f"selector: serving grpc={server.address} metrics={metrics} state-dir={settings.state_dir}")
    await stop.wait()
    log.info("stopping: calls in flight have %g s", settings.grace_s)
    await server.stop()
    log.info("stopped")
    return 0


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
def health(target: str, timeout_s: float) -> None:
    """Ask a server whether it serves; exit code 0 if so."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    try:
        with grpc.insecure_channel(target) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            answer = stub.Check(request, timeout=timeout_s)
    except grpc.RpcError as error:
        click.echo(f"selector: {target}: {error.code().name}", err=True)
        sys.exit(1)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(status)
    sys.exit(0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1)
