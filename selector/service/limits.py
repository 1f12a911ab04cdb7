"""Limits of what may be under way at once; each is answered with RESOURCE_EXHAUSTED, its name and its value.

What is kept for good is limited by ``selector.quotas``.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.errors import ServiceError
from selector.quotas import UNLIMITED, quota_exceeded
from selector.v1.reasons import Reason

# Of every call; more than this of a call counts as bytes in flight. Small calls go on while large ones fill the budget.
FREE_BYTES = 2**20

_RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class Limits:
    """Limits of the calls: ``max_...`` of one run, message or stream, ``max_total_...`` of the server.

    Attributes:
        max_stream_bytes: content of one client stream.
        max_message_bytes: one message; a stored group must fit into one on its way back.
        max_calls, max_total_calls: calls at the same time, of any kind but health and reflection.
        max_streams, max_total_streams: of these, calls that stream in either direction.
        max_inflight_bytes, max_total_inflight_bytes: message bytes held for calls that have not ended.
        stream_idle_s: seconds that a caller may take to send or to take one message.
    """

    max_stream_bytes: int = UNLIMITED
    max_message_bytes: int = 2**31 - 1
    max_calls: int = UNLIMITED
    max_total_calls: int = UNLIMITED
    max_streams: int = UNLIMITED
    max_total_streams: int = UNLIMITED
    max_inflight_bytes: int = UNLIMITED
    max_total_inflight_bytes: int = UNLIMITED
    stream_idle_s: float = 300.0

    def check_stream(self, received: int) -> None:
        """A client stream has not grown too large."""
        if received > self.max_stream_bytes:
            raise quota_exceeded("max_stream_bytes", self.max_stream_bytes, "send several streams")

    def check_message(self, size: int) -> None:
        """A message is not too large."""
        if size > self.max_message_bytes:
            raise quota_exceeded("max_message_bytes", self.max_message_bytes, f"this message has {size} bytes")


def overloaded(name: str, limit: int) -> ServiceError:
    """The error about a limit of what is under way: it passes by itself."""
    return ServiceError(
        Reason.OVERLOADED,
        f"the server's limit {name}={limit} is reached by the calls under way; nothing was applied, try again",
        metadata={"limit": name, "value": str(limit)},
        retry_after_s=_RETRY_AFTER_S,
    )


def stood_still(direction: str, stream_idle_s: float) -> ServiceError:
    """The error of a caller who neither goes on nor leaves."""
    return ServiceError(
        Reason.STREAM_IDLE,
        f"no message was {direction} for {stream_idle_s:g} s; nothing was applied",
        metadata={"limit": "stream_idle_s", "value": f"{stream_idle_s:g}"},
        retry_after_s=_RETRY_AFTER_S,
    )
