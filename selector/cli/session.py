"""A client for the inspecting commands: of a running service, or of a state directory that no server has open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from clients import RetryPolicy, SelectorClient
from selector.cli.tls_options import chosen_tls, tls_options

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_TARGET = "127.0.0.1:50051"
# Somebody waits at the terminal: say soon that nobody answers.
_RETRY = RetryPolicy(max_attempts=3)


def target_options(command: _F) -> _F:
    """``--target``, ``--state-dir``, ``--token`` and those of TLS."""
    options = (
        click.option(
            "--target",
            envvar="SELECTOR_TARGET",
            show_envvar=True,
            default=DEFAULT_TARGET,
            show_default=True,
            help="HOST:PORT of a service.",
        ),
        click.option(
            "--state-dir",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Open a state directory that no server has open, instead of asking a service. Only as a flag: no "
            "variable is read, so that SELECTOR_STATE_DIR of 'selector serve' does not keep anybody from the service.",
        ),
        click.option(
            "--token",
            envvar="SELECTOR_TOKEN",
            show_envvar=True,
            help="Bearer token. Other users see flags in the list of processes: use the variable.",
        ),
        tls_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def connected(run_id: str, target: str, state_dir: Path | None, token: str | None) -> Iterator[SelectorClient]:
    """A client; errors end the command with one line and exit code 1."""
    from clients import SelectorError

    if state_dir and click.get_current_context().get_parameter_source("target") is ParameterSource.COMMANDLINE:
        raise click.UsageError("give --target or --state-dir, not both")
    try:
        if state_dir is None:
            with _client(target, run_id, token) as client:
                yield client
        else:
            with _opened(state_dir) as address, SelectorClient(address, run_id) as client:
                yield client
    except SelectorError as error:
        raise click.ClickException(str(error)) from error


def _client(target: str, run_id: str, token: str | None) -> SelectorClient:
    try:
        return SelectorClient(target, run_id, token=token or None, tls=chosen_tls(), retry=_RETRY)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _opened(state_dir: Path) -> Iterator[str]:
    """A private service over a state directory, on a free loopback port."""
    from selector.errors import ServiceError
    from selector.service.server import Server
    from selector.settings import ServerSettings

    if not (state_dir / "state.db").is_file():
        raise click.ClickException(f"{state_dir} is no state directory: it has no state.db")
    server = Server(
        ServerSettings(
            state_dir,
            listen="127.0.0.1:0",
            metrics_listen="",
            encoder="none",
            grace_s=0.0,
            predictor_threads=0,
        )
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="selector-private-service", daemon=True)
    thread.start()
    try:
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        except (ServiceError, OSError) as error:
            raise click.ClickException(f"{error} (or look through it with --target)") from error
        try:
            yield server.address
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
