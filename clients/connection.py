"""How a client reaches the service: call metadata and channel options, the same for both clients."""

from __future__ import annotations

import ipaddress
import logging
import math
import re
from typing import Any

from clients.messages import number, shown
from selector.v1 import replay_service_pb2
from selector.v1.replay_service_pb2_grpc import ReplayServiceStub

# gRPC's own, each with addresses of a form of its own.
_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p):")
_HOST_AND_PORT = re.compile(r"([^\s:/\[\]]+|\[[^\s/\[\]]+\]):[0-9]{1,5}")

LOGGER = logging.getLogger("selector.client")

# Ten years.
_LONGEST_TIMEOUT_S = 3.2e8
# As the server's default.
MAX_MESSAGE_BYTES = 64 * 2**20


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


def call_metadata(token: str | None, target: str, encrypted: bool) -> tuple[tuple[str, str], ...]:
    """The bearer token as call metadata, which gRPC also sends where there is no TLS.

    Raises:
        ValueError: the target is none; or the token cannot be sent, which gRPC would show in the error of every call.
    """
    _check_target(target)
    if token is None:
        return ()
    if not isinstance(token, str):
        raise ValueError(f"token: expected text, got {type(token).__name__}")
    # Of a file that was read, the end of the line often comes along.
    token = token.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise ValueError("token: expected printable ASCII characters without spaces")
    if not encrypted and not is_local(target):
        LOGGER.warning("the bearer token travels unencrypted to %s; pass tls=", target)
    return (("authorization", f"Bearer {token}"),)


def _check_target(target: str) -> None:
    if not isinstance(target, str):
        raise ValueError(f"target: expected host:port as text, got {shown(target)}")
    if _SCHEME.match(target):
        return
    if _HOST_AND_PORT.fullmatch(target) is None or not 0 < int(target.rpartition(":")[2]) < 2**16:
        raise ValueError(f"target: expected host:port, such as 127.0.0.1:50051, got {shown(target)}")


def seconds(value: float) -> float:
    """A deadline of a method in seconds; one that has passed is allowed.

    Raises:
        ValueError: it is no number.
    """
    timeout_s = number(value, "timeout_s")
    if math.isnan(timeout_s):
        raise ValueError("timeout_s: expected seconds, got nan")
    # gRPC takes a deadline centuries ahead, and so one that never comes, for one that has passed.
    return min(timeout_s, _LONGEST_TIMEOUT_S)


def is_local(target: str) -> bool:
    """Whether a target is an address that only processes of this machine reach."""
    target = target.removeprefix("dns:").lstrip("/")
    if target.startswith("unix:"):
        return True
    host = target.removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def replay_stub(channel: Any) -> ReplayServiceStub:
    """The stub of ReplayService; PushRollouts takes messages that are encoded, and SampleRollouts leaves them so."""
    stub = ReplayServiceStub(channel)
    stub.PushRollouts = channel.stream_unary(
        "/selector.v1.ReplayService/PushRollouts",
        response_deserializer=replay_service_pb2.PushRolloutsResponse.FromString,
    )
    stub.SampleRollouts = channel.unary_stream(
        "/selector.v1.ReplayService/SampleRollouts",
        request_serializer=replay_service_pb2.SampleRolloutsRequest.SerializeToString,
    )
    return stub


def health_method(channel: Any) -> Any:
    """grpc.health.v1 Check: service name -> whether it is SERVING.

    The two messages have one field each, so they are written here rather than asking trainers for another package.
    """
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda service: b"\x0a" + bytes([len(service)]) + service.encode(),
        response_deserializer=lambda response: response == b"\x08\x01",
    )
