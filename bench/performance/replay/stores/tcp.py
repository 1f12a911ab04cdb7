"""The ceiling: a TCP server in Python that copies bytes into memory it has, and sends them back.

A push is a head (1, bytes of a group, number of groups, first slot), answered with one byte, and a sample a head
(2, bytes of a group, number of groups, seed). Nothing is checked or described, and both ends use their memory again.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections.abc import Sequence

from bench.performance.replay import content
from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import Settings, server, slots

_HEAD = struct.Struct("<qqqq")
# Parts of one system call; the limit is 1024.
_PARTS = 512
_SOCKET_BYTES = 4 << 20


class Tcp:
    """The client."""

    name = "own TCP server (ceiling)"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._like = content.made(1, settings.tokens)[0]
        self._size = sum(array.nbytes for array in self._like.columns)
        self._process, port = server("tcp", str(settings.stored * self._size))
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._received = bytearray(settings.groups * self._size)

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[int, list[memoryview]]:
        return slots(step, self._settings).start, [array.data.cast("B") for each in groups for array in each.columns]

    def push(self, prepared: tuple[int, list[memoryview]]) -> None:
        first, parts = prepared
        self._socket.sendall(_HEAD.pack(1, self._size, self._settings.groups, first))
        _send(self._socket, parts)
        self._socket.recv(1)

    def sample(self, step: int, count: int) -> list[Arrays]:
        self._socket.sendall(_HEAD.pack(2, self._size, count, step))
        view = memoryview(self._received)
        _receive(self._socket, view)
        return [content.unpacked(view[at : at + self._size], self._like) for at in range(0, len(view), self._size)]

    def arrays(self, sampled: list[Arrays]) -> list[Arrays]:
        return sampled

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


def open_store(settings: Settings) -> Tcp:
    """The server and its client."""
    return Tcp(settings)


def serve(capacity: int) -> None:
    """Serve one connection until it ends."""
    memory = memoryview(bytearray(capacity))
    filled = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        connection, _ = listening.accept()
    head = memoryview(bytearray(_HEAD.size))
    with connection:
        while _receive(connection, head):
            what, size, count, argument = _HEAD.unpack(head)
            if what == 1:
                start = argument * size
                _receive(connection, memory[start : start + count * size])
                filled = max(filled, argument + count)
                connection.sendall(b"\1")
            else:
                picks = random.Random(argument).sample(range(filled), count)
                _send(connection, [memory[pick * size : (pick + 1) * size] for pick in picks])


def _receive(connection: socket.socket, view: memoryview) -> bool:
    """Fill the view; False at the end of the connection."""
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def _send(connection: socket.socket, parts: list[memoryview]) -> None:
    """Send all parts without joining them."""
    left = list(reversed(parts))
    while left:
        now = left[: -_PARTS - 1 : -1]
        sent = connection.sendmsg(now)
        while sent and sent >= len(left[-1]):
            sent -= len(left.pop())
        if sent:
            left[-1] = left[-1][sent:]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
