"""Memory lent to the service for what a call pushes or samples, where both run on one host.

The service is offered memory when it listens on a loopback address; it says whether it could reach it, and if it could
not (it is behind a forwarded port, in a container that does not see this process, or runs as somebody else), everything
travels over the connection, and it is not offered any for a while. Linux alone has such memory.

Memory is used again, because touching fresh memory costs more than copying into it: once a call has ended well, and
nobody has a view of what it sampled any more. Of any other call the service may still be reading or writing it; and of
memory from before a fork the other process may have views, in the data set of a worker for example.

Which way rollouts take, and why, is logged at level DEBUG, each statement once per client.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar

from clients.connection import LOGGER, is_local
from selector.v1 import memory as shared
from selector.v1 import replay_service_pb2 as pb
from selector.v1.wire import Part

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

# Smaller calls travel over the connection, for which they are fast; so do larger pushes, and what larger samples have
# beyond it.
_LEAST_BYTES = 256 << 10
_MOST_BYTES = 256 << 20
# One for pushes, and two for samples, of which one is often still looked at when the next is taken.
_MOST_IDLE = 3
_NOT_OFFERED_S = 60.0
# Samples differ in size; what has no room is sent.
_HEADROOM = 1.1
# Room for one message at least, which tells that the service reaches the memory.
_LEAST_ROOM = 8 << 20

_LENT = "rollouts go through shared memory"
_NOT_WANTED = "rollouts go over the connection: same_host=False"
_ELSEWHERE = "rollouts go over the connection: the target is no loopback address"
_NO_SUCH_MEMORY = "rollouts go over the connection: this system, or the Python on it, has no memory to lend"
_NOT_REACHED = (
    "rollouts go over the connection: the service did not use this process's memory; it runs in another container or "
    f"as another user, behind a forwarded port, or is an older one; memory is offered again in {_NOT_OFFERED_S:.0f} s"
)
_SMALL = f"calls smaller than {_LEAST_BYTES >> 10} KiB, and a first sample, go over the connection"
_LARGE = f"pushes larger than {_MOST_BYTES >> 20} MiB go over the connection"
_NONE_LEFT = "rollouts of a call go over the connection: there was no memory to be had"


class Memory:
    """Some memory, lent to one call at a time.

    Attributes:
        used: the service has said that it read or wrote it.
        close: lets go of it, which otherwise happens when nobody holds it any more.
    """

    # That this process has been on either side of.
    _forks: ClassVar[int] = 0

    def __init__(self) -> None:
        """Raises OSError when there is none to be had."""
        self._descriptor = os.memfd_create(shared.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self._made_after = Memory._forks
        os.fchmod(self._descriptor, 0o600)
        # What is mapped must not be cut off.
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._key = secrets.token_bytes(shared.KEY_BYTES)
        self._size = shared.write(self._descriptor, [self._key], 0)
        self.prepare(0)

    @classmethod
    def forked(cls) -> None:
        """This process has forked, or is the new one."""
        cls._forks += 1

    @property
    def own(self) -> bool:
        """No other process may have views of it."""
        return self._made_after == Memory._forks

    def prepare(self, size: int) -> None:
        """Begin anew, with room for ``size`` bytes of messages: taken here, it counts as memory of this process.

        Raises:
            OSError: there is not enough.
        """
        self.used = False
        self._mapped: mmap.mmap | None = None
        self._at = shared.KEY_BYTES
        if self._at + size > self._size:
            os.posix_fallocate(self._descriptor, 0, self._at + size)
            self._size = self._at + size

    def named(self) -> pb.SharedMemory:
        """How the service finds it."""
        return pb.SharedMemory(process=os.getpid(), descriptor=self._descriptor, key=self._key)

    def write(self, parts: Sequence[Part]) -> int:
        """Add a message, be it beyond what there was room for; its bytes.

        Raises:
            OSError: there is not enough memory.
        """
        written = shared.write(self._descriptor, parts, self._at)
        self._at += written
        self._size = max(self._size, self._at)
        return written

    def message(self, size: int) -> memoryview:
        """The next message, as a view.

        Raises:
            ValueError: it is not there.
        """
        if self._mapped is None:
            # One for each call, so that it ends with the last view of what the call answered.
            self._mapped = mmap.mmap(
                self._descriptor, self._size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        begin, self._at = self._at, self._at + size
        if size <= 0 or self._at > self._size:
            raise ValueError(f"memory_bytes: expected a message within the memory lent; got one of {size} bytes")
        self.used = True
        return memoryview(self._mapped)[begin : self._at]

    def when_free(self, free: Callable[[Memory], None]) -> None:
        """Call ``free`` once nobody has a view of it any more."""
        mapped, self._mapped = self._mapped, None
        if mapped is None:
            free(self)
        else:
            weakref.finalize(mapped, free, self).atexit = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=Memory.forked, after_in_child=Memory.forked)


class SameHost:
    """What a client has lent, and whether it may lend more; threads may share it.

    Args:
        wanted: memory may be lent.
        target: where the service is.
        clock: monotonic seconds.
    """

    def __init__(self, wanted: bool, target: str, clock: Callable[[], float]) -> None:
        self._target = target
        self._impossible = _impossible(wanted, target)
        self._told: set[str] = set()
        self._clock = clock
        self._not_before = clock()
        self._idle: list[Memory] = []
        # Views may end, and so memory be given back, in the middle of anything.
        self._lock = threading.RLock()
        self._closed = False
        self._sampled_bytes = 0

    @contextmanager
    def lent(self, size: int) -> Iterator[Memory | None]:
        """Memory with room for so many bytes of messages, None = send them; ``used`` is to be set when it was."""
        memory = self._taken(size)
        yield memory
        if memory is not None:
            self._tell(_LENT if memory.used else _NOT_REACHED)
            memory.when_free(self._give_back)

    def room_for_sample(self) -> int:
        """Bytes of memory worth lending to a sample: about as many as the last one had, 0 before the first."""
        if self._sampled_bytes < _LEAST_BYTES:
            return 0
        return min(max(int(_HEADROOM * self._sampled_bytes), _LEAST_ROOM), _MOST_BYTES)

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
        unfit = _SMALL if size < _LEAST_BYTES else _LARGE if size > _MOST_BYTES else None
        why_not = self._impossible or unfit
        if why_not is not None:
            self._tell(why_not)
            return None
        if self._clock() < self._not_before:
            return None
        with self._lock:
            memory = self._idle.pop() if self._idle else None
        if memory is not None and not memory.own:
            memory.close()
            memory = None
        with suppress(OSError):
            memory = memory or Memory()
            memory.prepare(size)
            return memory
        self._tell(_NONE_LEFT)
        return None

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            LOGGER.debug("%s: %s", self._target, what)

    def _give_back(self, memory: Memory) -> None:
        if not memory.own:
            # In a new process the lock may be held for ever, by a thread that is not there.
            memory.close()
            return
        with self._lock:
            if memory.used and not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(memory)
                return
            if not memory.used:
                self._not_before = self._clock() + _NOT_OFFERED_S
        memory.close()


def _impossible(wanted: bool, target: str) -> str | None:
    """Why no memory can be lent, None = it can."""
    if not wanted:
        return _NOT_WANTED
    if not is_local(target):
        return _ELSEWHERE
    # A Python that was built for an old C library has no such memory, wherever it runs.
    return None if hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS") else _NO_SUCH_MEMORY
