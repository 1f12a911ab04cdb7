"""When a failed call is tried again.

UNAVAILABLE is: the service was not reached, or is shutting down, or could not write. So is OVERLOADED: too much was
under way at once. Reading calls are safe to repeat, and every changing call carries a ``request_id`` that is the same
on all attempts, so the service applies it once even if an answer was lost. Everything else either cannot get better by
itself or has used up its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from clients.errors import SelectorError, Unavailable

# Of selector.v1.reasons: a limit of what is under way, unlike the quotas of what is kept, passes by itself.
_OVERLOADED = "OVERLOADED"


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff, bounded by the call's deadline, so that a call outlasts a restart of the service.

    Attributes:
        max_attempts: calls in all, the first included; 1 turns retries off, None = until the deadline.
        initial_backoff_s: mean wait before the second attempt, in seconds; it doubles from one attempt to the next.
        max_backoff_s: largest wait, in seconds, unless the service asks for a longer one.
    """

    max_attempts: int | None = None
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0

    def delay_s(
        self, attempt: int, error: SelectorError, remaining_s: float, jitter: float, patient: bool = False
    ) -> float | None:
        """Seconds to wait before the next attempt, None to give up.

        Args:
            attempt: attempts made, from 1.
            error: how the last one failed.
            remaining_s: seconds left of the deadline; a wait that would outlast it is not begun.
            jitter: uniform in [0, 1); spreads callers that failed together over [0.5, 1.5) of the backoff.
            patient: go on until the deadline, whatever ``max_attempts`` is.
        """
        passing = isinstance(error, Unavailable) or error.reason == _OVERLOADED
        spent = self.max_attempts is not None and attempt >= self.max_attempts
        if not passing or (spent and not patient):
            return None
        # The exponent is bounded because a patient caller may try thousands of times.
        backoff = min(self.initial_backoff_s * 2.0 ** min(attempt - 1, 30), self.max_backoff_s) * (0.5 + jitter)
        delay = max(backoff, error.retry_after_s or 0.0)
        return delay if delay < remaining_s else None
