"""Memory lent to the service for what a call pushes or samples, where both run on one host.

The service is offered memory when it listens on a loopback address; it says whether it could reach it, and if it could
not (it is behind a forwarded port, in a container that does not see this process, or runs as somebody else), everything
travels over the connection, and it is not offered any for a while. Linux alone has such memory.

Memory is used again, because touching fresh memory costs more than copying into it. Only a call that ended well gives
it back: of any other the service may still be reading or writing it.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from google.protobuf.message import DecodeError

from selector.v1 import memory as shared
from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import Part

# Larger pushes travel over the connection, and so does what larger samples have beyond it.
_MOST_BYTES = 256 << 20
# One for pushes and one for samples, if these overlap.
_MOST_IDLE = 2
_NOT_OFFERED_S = 60.0
# Samples differ in size; what has no room is sent.
_HEADROOM = 1.1
# Room for the first message at least, which tells that the service reaches the memory.
_LEAST_BYTES = 4 << 20


class Memory:
    """Some memory, lent to one call at a time.

    Attributes:
        used: the service has said that it read or wrote it.
        close: lets go of it, which otherwise happens when nobody holds it any more.
    """

    def __init__(self) -> None:
        """Raises OSError when there is none to be had."""
        self._descriptor = os.memfd_create("selector-replay")
        self.close = weakref.finalize(self, os.close, self._descriptor)
        os.fchmod(self._descriptor, 0o600)
        self._key = secrets.token_bytes(shared.KEY_BYTES)
        self._size = shared.write(self._descriptor, [self._key], 0)
        self.prepare(0)

    def prepare(self, size: int) -> None:
        """Begin anew, with room for ``size`` bytes of messages: taken here, it counts as memory of this process.

        Raises:
            OSError: there is not enough.
        """
        self.used = False
        self._at = shared.KEY_BYTES
        if self._at + size > self._size:
            os.posix_fallocate(self._descriptor, 0, self._at + size)
            self._size = self._at + size

    def named(self) -> pb.SharedMemory:
        """How the service finds it."""
        return pb.SharedMemory(process=os.getpid(), descriptor=self._descriptor, key=self._key)

    def write(self, parts: Sequence[Part]) -> int:
        """Add a message; its bytes."""
        written = shared.write(self._descriptor, parts, self._at)
        self._at += written
        return written

    def message(self, response: pb.SampleRolloutsResponse) -> pb.SampleRolloutsResponse:
        """The response, or the message in the memory that it stands for.

        Raises:
            ValueError: it is not there.
        """
        size = response.memory_bytes
        if not size:
            return response
        content = os.pread(self._descriptor, size, self._at) if size > 0 else b""
        if len(content) != size or not content:
            raise ValueError(f"memory_bytes: expected a message of {size} bytes in the memory lent")
        self._at += size
        self.used = True
        try:
            return pb.SampleRolloutsResponse.FromString(content)
        except DecodeError as error:
            raise ValueError(f"memory_bytes: {error}") from error


class SameHost:
    """What a client has lent, and whether it may lend more; threads may share it.

    Args:
        local: the service listens on a loopback address.
        clock: monotonic seconds.
    """

    def __init__(self, local: bool, clock: Callable[[], float]) -> None:
        self._possible = local and hasattr(os, "memfd_create")
        self._clock = clock
        self._not_before = clock()
        self._idle: list[Memory] = []
        self._lock = threading.Lock()
        self._closed = False
        self._sampled_bytes = 0

    @property
    def offered(self) -> bool:
        """Whether the service is offered memory at the moment."""
        return self._possible and self._clock() >= self._not_before

    @contextmanager
    def lent(self, size: int) -> Iterator[Memory | None]:
        """Memory with room for so many bytes of messages, None = send them; ``used`` is to be set when it was."""
        memory = self._taken(size)
        yield memory
        if memory is not None:
            self._give_back(memory)

    def room_for_sample(self) -> int:
        """Bytes of memory worth lending to a sample, 0 before the first."""
        return min(max(int(_HEADROOM * self._sampled_bytes), _LEAST_BYTES), _MOST_BYTES) if self._sampled_bytes else 0

    def sampled(self, size: int) -> None:
        """A sample's messages had about so many bytes."""
        self._sampled_bytes = size

    def close(self) -> None:
        """Let go of all memory."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def _taken(self, size: int) -> Memory | None:
        if not self.offered or not 0 < size <= _MOST_BYTES:
            return None
        with self._lock:
            memory = self._idle.pop() if self._idle else None
        with suppress(OSError):
            memory = memory or Memory()
            memory.prepare(size)
            return memory
        return None

    def _give_back(self, memory: Memory) -> None:
        with self._lock:
            if memory.used and not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(memory)
                return
            if not memory.used:
                self._not_before = self._clock() + _NOT_OFFERED_S
        memory.close()
