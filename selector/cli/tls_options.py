"""TLS of the commands that talk to a service: options that a command need not take as arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from clients import Tls

_F = TypeVar("_F", bound=Callable[..., Any])

_META = "selector.cli.tls"


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    context.meta.setdefault(_META, {})[parameter.name] = value
    return value


def _file(name: str, env: str, help_text: str) -> Any:
    return click.option(
        name,
        envvar=f"SELECTOR_{env}",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        expose_value=False,
        callback=_keep,
        help=help_text,
    )


def tls_options(command: _F) -> _F:
    """``--tls`` and ``--tls-…``; ``chosen_tls`` has what was chosen."""
    options = (
        click.option(
            "--tls",
            envvar="SELECTOR_TLS",
            show_envvar=True,
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="Use TLS and trust the authorities that this system trusts; the options below imply it.",
        ),
        _file("--tls-ca", "TLS_CA", "PEM file of the authorities to trust instead."),
        _file("--tls-client-cert", "TLS_CLIENT_CERT", "PEM file of a client certificate, for a service that asks."),
        _file("--tls-client-key", "TLS_CLIENT_KEY", "PEM file of the client certificate's private key."),
        click.option(
            "--tls-server-name",
            envvar="SELECTOR_TLS_SERVER_NAME",
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help="Name to expect in the service's certificate, if not the host of --target.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def chosen_tls() -> Tls | None:
    """TLS of the current command, None = plaintext."""
    chosen: dict[str, Any] = click.get_current_context().meta.get(_META, {})
    if not any(chosen.values()):
        return None
    return Tls(
        ca=chosen["tls_ca"],
        client_cert=chosen["tls_client_cert"],
        client_key=chosen["tls_client_key"],
        server_name=chosen["tls_server_name"],
    )
