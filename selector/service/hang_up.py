"""Hanging up on a caller who takes nothing of its answer.

It answers pings, so that keep-alive finds nothing wrong with it, and its call would stay until it leaves. gRPC's Python
servers cannot end one call, so the connection goes.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

# The open descriptors of this process, where the system shows them.
_DESCRIPTORS = Path("/proc/self/fd")


def hang_up(peer: str) -> bool:
    """End the TCP connection of a peer; all calls over it are cancelled.

    Args:
        peer: as ``ServicerContext.peer`` names it.

    Returns:
        Whether there was such a connection; never on systems without ``/proc``.
    """
    address = _address_of(peer)
    if address is None or not _DESCRIPTORS.is_dir():
        return False
    # Every one: the same remote address and port may reach another port of this process, the metrics' say.
    return any([_shut(int(entry), address) for entry in os.listdir(_DESCRIPTORS)])


def _shut(descriptor: int, address: tuple[str, int]) -> bool:
    """End the connection of a descriptor if it is one with that remote address; whether it was."""
    with suppress(OSError):
        # One of our own: gRPC may close its own at any time, and another file may get the number.
        own = os.dup(descriptor)
        try:
            if not stat.S_ISSOCK(os.fstat(own).st_mode):
                return False
            with socket.socket(fileno=os.dup(own)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and address == _remote(connection):
                    connection.shutdown(socket.SHUT_RDWR)
                    return True
        finally:
            os.close(own)
    return False


def _remote(connection: socket.socket) -> tuple[str, int]:
    host, port = connection.getpeername()[:2]
    return _plain(host), port


def _address_of(peer: str) -> tuple[str, int] | None:
    """``ipv4:192.0.2.1:50000`` or ``ipv6:%5B2001:db8::1%5D:50000``, taken apart."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    with suppress(ValueError):
        return _plain(host.strip("[]")), int(port)
    return None


def _plain(host: str) -> str:
    """One spelling for every address: without a zone, and IPv4 as such."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
