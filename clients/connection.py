"""How a client reaches the service: credentials, call metadata and channel options, the same for both clients."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, TypeAlias

import grpc

LOGGER = logging.getLogger("selector.client")

Tls: TypeAlias = "bool | str | os.PathLike[str] | bytes | grpc.ChannelCredentials | None"

# As the server's default.
MAX_MESSAGE_BYTES = 64 * 2**20
_LOOPBACK = ("localhost", "127.", "[::1]", "::1", "ipv6:[::1]", "unix:")


def channel_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Message limits in both directions, and reconnection quick enough for a service that restarts."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # gRPC's own transparent retries would multiply the attempts of RetryPolicy.
        ("grpc.enable_retries", 0),
    ]


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials | None:
    """None = no TLS; True = the system's certificate authorities; a path or PEM bytes = this authority."""
    if tls is None or tls is False:
        return None
    if tls is True:
        return grpc.ssl_channel_credentials()
    if isinstance(tls, bytes):
        return grpc.ssl_channel_credentials(root_certificates=tls)
    if isinstance(tls, (str, os.PathLike)):
        return grpc.ssl_channel_credentials(root_certificates=Path(tls).read_bytes())
    return tls


def call_metadata(token: str | None, target: str, encrypted: bool) -> tuple[tuple[str, str], ...]:
    """The bearer token as call metadata, which gRPC also sends where there is no TLS."""
    if token is None:
        return ()
    if not encrypted and not target.removeprefix("dns:").lstrip("/").removeprefix("ipv4:").startswith(_LOOPBACK):
        LOGGER.warning("the bearer token travels unencrypted to %s; pass tls=", target)
    return (("authorization", f"Bearer {token}"),)


def health_method(channel: Any) -> Any:
    """grpc.health.v1 Check: service name -> whether it is SERVING.

    The two messages have one field each, so they are written here rather than asking trainers for another package.
    """
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda service: b"\x0a" + bytes([len(service)]) + service.encode(),
        response_deserializer=lambda response: response == b"\x08\x01",
    )
