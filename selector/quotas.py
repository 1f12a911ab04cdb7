"""How much the runs may keep, each of them and all together; beyond it a write is refused before anything is changed.

A run's usage is raised before its write begins and settled when it has ended. What all runs use is checked and raised
under one lock, so neither writes of several runs at once nor writes that fail let it overshoot or leak. Usage counts
what is stored: retired prompts, and replay groups that left the buffer and are kept for a rewind, count as well.

Limits that are lower than what is there already refuse growth and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from selector.errors import ServiceError
from selector.v1.reasons import Reason

UNLIMITED = 2**63 - 1

_RETRY_AFTER_S = 60.0


@dataclass(frozen=True)
class Usage:
    """What one run keeps; ``prompt_bytes`` are ids, texts and domains, ``replay_bytes`` the groups' payloads."""

    prompts: int = 0
    prompt_bytes: int = 0
    replay_groups: int = 0
    replay_bytes: int = 0


_KINDS = tuple(field.name for field in fields(Usage))


@dataclass(frozen=True)
class Quotas:
    """Limits: ``max_...`` of one run, ``max_total_...`` of the server."""

    max_runs: int = UNLIMITED
    max_prompts: int = UNLIMITED
    max_total_prompts: int = UNLIMITED
    max_prompt_bytes: int = UNLIMITED
    max_total_prompt_bytes: int = UNLIMITED
    max_replay_groups: int = UNLIMITED
    max_total_replay_groups: int = UNLIMITED
    max_replay_bytes: int = UNLIMITED
    max_total_replay_bytes: int = UNLIMITED


_COUNTED = {
    "prompts": "retired prompts count as well",
    "prompt_bytes": "ids, texts and domains count",
    "replay_groups": "groups kept for a rewind count as well",
    "replay_bytes": "groups kept for a rewind count as well",
}


class Ledger:
    """What every run uses. Threads may share it; the changes of one run are serialised by the caller."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._lock = threading.Lock()
        self._used: dict[int, Usage] = {}
        self._total = Usage()

    def total(self) -> Usage:
        """What all runs use, writes under way included."""
        return self._total

    def check_runs(self, existing: int) -> None:
        """One more run fits."""
        if existing >= self.quotas.max_runs:
            raise quota_exceeded("max_runs", self.quotas.max_runs, "delete runs that are done")

    def check(self, run: int, **wanted: int) -> None:
        """A run may use so much of each kind, as things stand; nothing is reserved."""
        with self._lock:
            self._checked(run, wanted)

    @contextmanager
    def change(self, run: int, **wanted: int) -> Iterator[None]:
        """A write inside the block makes the run use so much of each kind, and nothing new if the block raises.

        Raises:
            ServiceError: QUOTA_EXCEEDED, before the block is entered.
        """
        with self._lock:
            before, after = self._checked(run, wanted)
            # Until it is known how the write ends, the larger of both is taken.
            self._set(run, Usage(**{kind: max(getattr(before, kind), getattr(after, kind)) for kind in _KINDS}))
        settled = before
        try:
            yield
            settled = after
        finally:
            self.settle(run, settled)

    def settle(self, run: int, usage: Usage) -> None:
        """A run is known to use so much."""
        with self._lock:
            self._set(run, usage)

    def close(self, run: int) -> None:
        """A run is gone."""
        with self._lock:
            self._set(run, Usage())
            del self._used[run]

    def _checked(self, run: int, wanted: dict[str, int]) -> tuple[Usage, Usage]:
        """Usage of the run before and after."""
        before = self._used.get(run, Usage())
        after = replace(before, **wanted)
        for kind in wanted:
            old, new = getattr(before, kind), getattr(after, kind)
            if new <= old:
                continue
            for name, amount in ((f"max_{kind}", new), (f"max_total_{kind}", getattr(self._total, kind) - old + new)):
                limit = getattr(self.quotas, name)
                if amount > limit:
                    raise quota_exceeded(name, limit, f"this would make {amount}; {_hint(kind, name)}")
        return before, after

    def _set(self, run: int, usage: Usage) -> None:
        before = self._used.get(run, Usage())
        self._used[run] = usage
        self._total = Usage(
            **{kind: getattr(self._total, kind) - getattr(before, kind) + getattr(usage, kind) for kind in _KINDS}
        )


def _hint(kind: str, name: str) -> str:
    """What counts, and the remedy: deleting other runs frees nothing of a limit that each run has for itself."""
    raised = f"start the server with a larger --{name.replace('_', '-')}"
    if kind.startswith("replay"):
        raised += " or a smaller --rewind-window-steps"
    remedy = f"delete runs that are done, or {raised}" if name.startswith("max_total_") else f"per run: {raised}"
    return f"{_COUNTED[kind]}; {remedy}"


def quota_exceeded(name: str, limit: int, hint: str) -> ServiceError:
    """The error about a limit of what is kept: it stays until somebody deletes something or raises the limit."""
    return ServiceError(
        Reason.QUOTA_EXCEEDED,
        f"the server's limit {name}={limit} is reached; {hint}",
        metadata={"limit": name, "value": str(limit)},
        retry_after_s=_RETRY_AFTER_S,
    )
