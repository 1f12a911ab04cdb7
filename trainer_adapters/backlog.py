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
        name: of the call.
        call: makes it, with the request id that all its attempts share, so that it is applied once.
        nbytes: what is kept for it; 0 for reports, which are never dropped for want of room.
    """

    name: str
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

    def __len__(self) -> int:
        """Number of writes."""
        return len(self._writes)

    @property
    def first(self) -> Write | None:
        """The oldest, None when there is none."""
        return self._writes[0] if self._writes else None

    def add(self, write: Write) -> int:
        """Appends; the number of writes, this one included, that were dropped for want of room."""
        self._writes.append(write)
        self._nbytes += write.nbytes
        dropped = 0
        while self._nbytes > self._capacity_bytes:
            oldest = next(index for index, each in enumerate(self._writes) if each.nbytes)
            self._nbytes -= self._writes[oldest].nbytes
            del self._writes[oldest]
            dropped += 1
        return dropped

    def remove_first(self) -> None:
        """Takes the oldest out, because it has been sent or never can be."""
        self._nbytes -= self._writes.popleft().nbytes
