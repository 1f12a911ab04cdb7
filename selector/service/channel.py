"""How gRPC itself treats connections: what it refuses, and how it finds out that nobody is there any more."""

from __future__ import annotations

from selector.settings import ServerSettings

# A caller whose machine is gone is given up this long after an unanswered ping, or if it never finishes connecting.
_GONE_AFTER_S = 20.0

# Callers may ping as often as this without being sent away; gRPC's own limit is five minutes.
_SHORTEST_PING_INTERVAL_S = 5.0

# Names and tokens of a call; gRPC refuses larger ones at random sizes between its two limits, so both are this.
_METADATA_BYTES = 16 * 2**10


def channel_options(settings: ServerSettings) -> list[tuple[str, int]]:
    """Options of the server's channels."""
    milliseconds = 1000
    return [
        # The service itself refuses messages beyond the limit, and says why. gRPC refuses, by the length that a message
        # announces, what is so large that it should not be taken in at all.
        ("grpc.max_receive_message_length", min(2 * settings.max_message_bytes, 2**31 - 1)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.max_concurrent_streams", settings.max_connection_streams),
        ("grpc.keepalive_time_ms", int(settings.keepalive_s * milliseconds)),
        ("grpc.keepalive_timeout_ms", int(min(_GONE_AFTER_S, settings.keepalive_s) * milliseconds)),
        # Without it newer releases of gRPC wait a minute for the answer to any ping.
        ("grpc.http2.ping_timeout_ms", int(min(_GONE_AFTER_S, settings.keepalive_s) * milliseconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", int(_SHORTEST_PING_INTERVAL_S * milliseconds)),
        ("grpc.server_handshake_timeout_ms", int(_GONE_AFTER_S * milliseconds)),
        # Two servers on one port would share its callers between two states.
        ("grpc.so_reuseport", 0),
    ]
