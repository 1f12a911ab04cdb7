"""Reports and rollouts that a service which did not answer has still to get, in order."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Write:
    """One call to be made until it succeeds.

    Attributes:
        call: makes it, with the request id that all its attempts share, so that it is applied once.
        nbytes: what is kept for it; 0 for reports, which are never dropped.
    """

    call: Callable[[str], object]
    nbytes: int = 0
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def send(self) -> None:
        """Makes the call."""
        self.call(self.request_id)


class Backlog:
    """Writes in the order in which they were made.

    Args:
        capacity_bytes: of all writes; beyond it those with bytes are dropped, oldest first.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._writes: deque[Write] = deque()
        self._nbytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        """Number of writes."""
        return len(self._writes)

    def add(self, write: Write) -> None:
        """Appends; what no longer fits is counted in ``dropped``."""
        self._writes.append(write)
        self._nbytes += write.nbytes
        while self._nbytes > self._capacity_bytes:
            oldest = next(index for index, each in enumerate(self._writes) if each.nbytes)
            self._nbytes -= self._writes[oldest].nbytes
            del self._writes[oldest]
            self.dropped += 1

    def send(self) -> None:
        """Sends in order. An error leaves the write that met it, and all after it, where they are."""
        while self._writes:
            self._writes[0].send()
            self._nbytes -= self._writes.popleft().nbytes

    def drop_first(self) -> None:
        """Gives up the oldest write, one that the service will never take."""
        self._nbytes -= self._writes.popleft().nbytes
        self.dropped += 1
