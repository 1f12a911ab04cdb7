"""Whether other machines could reach what should not be reached: plaintext, or a port that asks for no token."""

from __future__ import annotations

import ipaddress
import logging

from selector.service.addresses import split_address
from selector.settings import ServerSettings

_log = logging.getLogger("selector.service")


def check_exposure(settings: ServerSettings) -> None:
    """Only this machine can reach the port, or it is protected, or somebody said that it need not be.

    Raises:
        ValueError: none of these.
    """
    missing = {}
    if settings.tls_cert is None:
        missing["TLS"] = "--tls-cert FILE --tls-key FILE, for calls and tokens would travel in plaintext"
    if not settings.tokens and settings.token_file is None:
        missing["tokens"] = "--token-file FILE, for everybody who reaches the port could change and delete every run"
    if missing and not is_loopback(settings.listen):
        if not settings.insecure:
            remedies = "; and ".join(missing.values())
            raise ValueError(
                f"--listen {settings.listen} can be reached from other machines; add {remedies}. "
                "Or listen on 127.0.0.1, or add --insecure if the network itself keeps strangers out"
            )
        lacking = " or ".join(missing)
        _log.warning("INSECURE: %s can be reached from other machines without %s", settings.listen, lacking)
    if settings.metrics_listen and not is_loopback(settings.metrics_listen):
        _log.warning(
            "metrics at %s are plaintext for everybody who reaches the port: run ids and figures, no prompts",
            settings.metrics_listen,
        )


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is this machine's alone. A host name other than ``localhost`` may be anything."""
    host = split_address(address)[0].strip("[]").partition("%")[0]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
