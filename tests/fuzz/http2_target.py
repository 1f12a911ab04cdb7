"""Bytes on the server's port: recorded HTTP/2 conversations, changed by byte and by frame.

The server may end such a connection as it likes. It must go on serving others, and let go of what the connection took.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.faults import Fault, Findings
from tests.fuzz.mutation import mutated
from tests.fuzz.served import Bystander, Served
from tests.fuzz.stubs import FuzzStubs
from tests.fuzz.world import sound_requests, write_template

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9
_PER_CHECK = 200
_READ_S = 0.01
_RECORDED = ("GetRun", "SelectBatch", "RegisterPrompts", "PushRollouts", "SampleRollouts", "ExportRun")
# DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, and two more.
_TYPES = range(12)


def try_bytes(findings: Findings, count: int, seed: int, scratch: Path) -> None:
    """Try ``count`` connections; faults go to ``findings``."""
    write_template(scratch / "template")
    served = Served(scratch / "template", scratch / "served")
    bystander = Bystander(served.address)
    source = random.Random(seed)
    last = scratch / "input"
    try:
        seeds = [_recorded(served.address, rpc) for rpc in _RECORDED]
        while findings.inputs < count:
            data = mutated(source, seeds) if source.random() < 0.4 else _reframed(source, seeds)
            findings.begin(last, data)
            try:
                findings.ended(_converse(source, served.address, data))
                if findings.inputs % _PER_CHECK == 0:
                    served.check()
                    if bystander.failure is not None:
                        raise Fault("another connection was disturbed", str(bystander.failure))
            except Exception as error:
                findings.record(error, data)
            findings.done()
        for check in (bystander.close, served.restart):
            try:
                check()
            except Exception as error:
                findings.record(error, b"")
    finally:
        served.close()


def _converse(source: random.Random, address: str, data: bytes) -> str:
    """Send bytes, perhaps in pieces, read a little, and leave in one of several ways."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        if source.random() < 0.2:
            # Leaving with RST instead of FIN.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        middle = source.randint(0, len(data)) if source.random() < 0.3 else len(data)
        outcome = "OPEN"
        try:
            connection.sendall(data[:middle])
            connection.sendall(data[middle:])
            if source.random() < 0.3:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_READ_S)
            while received := connection.recv(65536):
                outcome = "ANSWERED" if received else outcome
            outcome = "CLOSED"
        except TimeoutError:
            pass
        except OSError:
            # The server has left first.
            outcome = "RESET"
    return outcome


def _recorded(address: str, rpc: str) -> bytes:
    """What a client sends for a sound call."""
    host, _, port = address.rpartition(":")
    taken = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stubs = FuzzStubs(f"127.0.0.1:{listener.getsockname()[1]}")
        requests = sound_requests("plain", 3)[rpc]

        def relay() -> None:
            near, _ = listener.accept()
            with near, socket.create_connection((host, int(port))) as far:
                back = threading.Thread(target=_pump, args=(far, near, bytearray()), daemon=True)
                back.start()
                _pump(near, far, taken)

        relaying = threading.Thread(target=relay, daemon=True)
        relaying.start()
        stubs.call(rpc, requests if rpc in ("RegisterPrompts", "PushRollouts") else requests[0])
        stubs.close()
        relaying.join(10)
    return bytes(taken)


def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    try:
        while data := source.recv(65536):
            kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # Either end has left.
        return


def _reframed(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A conversation with frames dropped, doubled, moved, made up, or with another head."""
    frames = _frames(source.choice(seeds))
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(frames)) if frames else 0
        kind = source.randint(0, 5)
        if kind == 0 and frames:
            frames[at : at + 1] = [frames[at]] * source.choice((0, 2, 2, 100))
        elif kind == 1 and frames:
            frames.insert(source.randrange(len(frames) + 1), frames.pop(at))
        elif kind == 2:
            payload = source.randbytes(source.choice((0, 4, 5, 6, 8, 8, 64, 1000)))
            stream = source.choice((0, 1, 1, 3, 2, 2**31 - 1))
            frames.insert(at, _frame(len(payload), source.choice(_TYPES), source.randrange(256), stream, payload))
        elif kind == 3 and frames:
            other = _frames(source.choice(seeds))
            frames.insert(at, source.choice(other))
        elif frames:
            length, kind_, flags, stream, payload = _parsed(frames[at])
            changed = source.randint(0, 4)
            length = source.choice((0, 1, 2**14, 2**14 + 1, 2**24 - 1)) if changed == 0 else length
            kind_ = source.choice(_TYPES) if changed == 1 else kind_
            flags = source.randrange(256) if changed == 2 else flags
            stream = source.choice((0, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1)) if changed == 3 else stream
            payload = mutated(source, [payload]) if changed == 4 else payload
            length = len(payload) if changed == 4 else length
            frames[at] = _frame(length, kind_, flags, stream, payload)
    return (_PREFACE if source.random() < 0.97 else b"") + b"".join(frames)


def _frames(conversation: bytes) -> list[bytes]:
    rest = conversation.removeprefix(_PREFACE)
    found = []
    while len(rest) >= _HEAD:
        size = _HEAD + int.from_bytes(rest[:3], "big")
        found.append(rest[:size])
        rest = rest[size:]
    return found


def _parsed(frame: bytes) -> tuple[int, int, int, int, bytes]:
    length = int.from_bytes(frame[:3], "big")
    return length, frame[3], frame[4], int.from_bytes(frame[5:9], "big"), frame[9:]


def _frame(length: int, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
