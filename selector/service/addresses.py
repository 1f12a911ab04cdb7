"""Addresses that servers listen on."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT as host and port; IPv6 hosts stand in brackets.

    Raises:
        ValueError: it is not HOST:PORT.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT with a port in [0, 65535]; got {address!r}")
    return host, int(port)
