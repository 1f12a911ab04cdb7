"""Memory of a caller on this host, which messages travel through instead of the connection.

The caller's rights are those of its token, as with any call: the memory is the caller's own, and nothing of the
service's is shown to it. That it is the caller's own is what the key says: the service opens what the caller names,
which could be anything of any process that the service's user may look into, the service's own included, and reads or
writes nothing but anonymous memory that was made for it, as its name says, and begins with the key. The kernel lets one
process open another's memory when both have the same user, or the service is root, and when it sees the other in /proc.
"""

from __future__ import annotations

import hmac
import os
import stat
import sys
import weakref
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from selector.errors import invalid
from selector.service.pushed_groups import PushMessage, decode_push
from selector.v1 import memory as shared
from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import Part

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

_MOST_PROCESS = 2**31 - 1
# Other memory, a pool's embeddings for one, may begin with what the caller knows.
_LINK = f"/memfd:{shared.NAME} (deleted)"


class SharedMemory:
    """See the module docstring; closed when nobody holds it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._at = shared.KEY_BYTES
        # What this process adds to a file in memory would count as memory of its own.
        self._end = os.fstat(descriptor).st_size

    def pushed(self, size: int, field: str) -> PushMessage:
        """A copy of the next message: what the caller does to the memory afterwards changes nothing.

        Raises:
            ServiceError: INVALID_ARGUMENT about the field: it is no message.
        """
        if size <= 0:
            raise invalid(field, f"expected > 0 bytes; got {size}")
        content = os.pread(self._descriptor, size, self._at)
        self._at += size
        if len(content) != size:
            raise invalid(field, f"expected bytes within the memory; got {size}, of which {len(content)} are there")
        try:
            return decode_push(content)
        except DecodeError:
            raise invalid(field, "expected a message of the method's type; got bytes that cannot be decoded") from None

    @property
    def room(self) -> int:
        """Bytes that can still be written."""
        return self._end - self._at

    def write(self, parts: Sequence[Part]) -> int:
        """Add a message; its bytes, or 0 if there is no room."""
        size = sum(map(len, parts))
        if self._at + size > self._end:
            return 0
        try:
            shared.write(self._descriptor, parts, self._at)
        except OSError:
            return 0
        self._at += size
        return size


def reached(request: pb.PushRolloutsRequest | pb.SampleRolloutsRequest) -> SharedMemory | None:
    """The memory that a push begins with, or that a sample may be written to; None = it names none that can be reached.

    Raises:
        ServiceError: INVALID_ARGUMENT.
    """
    if not request.HasField("memory"):
        return None
    memory = request.memory
    if not 0 < memory.process <= _MOST_PROCESS:
        raise invalid("memory.process", f"expected the number of a process; got {memory.process}")
    if memory.descriptor < 0:
        raise invalid("memory.descriptor", f"expected >= 0; got {memory.descriptor}")
    if len(memory.key) != shared.KEY_BYTES:
        raise invalid("memory.key", f"expected {shared.KEY_BYTES} bytes; got {len(memory.key)}")
    return _reach(memory)


def _reach(memory: pb.SharedMemory) -> SharedMemory | None:
    """The memory that a caller names, None = it cannot be reached, or is not the caller's."""
    if not hasattr(os, "O_PATH") or not hasattr(fcntl, "F_GET_SEALS"):
        return None
    try:
        # Not opened before it is known to be a file: opening a pipe or a device may block, or do something.
        found = os.open(f"/proc/{memory.process}/fd/{memory.descriptor}", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.readlink(f"/proc/self/fd/{found}") != _LINK:
            return None
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink:
            return None
        opened = os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(found)
    try:
        # Files on a disk know no seals.
        fcntl.fcntl(opened, fcntl.F_GET_SEALS)
        if hmac.compare_digest(os.pread(opened, shared.KEY_BYTES, 0), memory.key):
            return SharedMemory(opened)
    except OSError:
        pass
    os.close(opened)
    return None
