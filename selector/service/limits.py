"""Limits that keep one caller from using up the server; each is answered with RESOURCE_EXHAUSTED and its value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from selector.errors import ServiceError
from selector.requests import PromptSpec
from selector.runs import Runs
from selector.v1.reasons import Reason


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Attributes:
        max_runs: runs in the state directory.
        max_prompts: prompts of one run.
        max_stream_bytes: content of one client stream.
        max_message_bytes: one message; a stored group must fit into one on its way back.
    """

    max_runs: int
    max_prompts: int
    max_stream_bytes: int
    max_message_bytes: int

    def check_runs(self, run_id: str, runs: Runs) -> None:
        """One more run fits, if this one is new."""
        existing = {run.row.run_id for run in runs.all()}
        if run_id not in existing and len(existing) >= self.max_runs:
            raise _exceeded("max_runs", self.max_runs, "delete runs that are done")

    def check_prompts(self, registered: Collection[str], specs: Sequence[PromptSpec]) -> None:
        """The prompts that are new fit into the run."""
        new = {spec.prompt_id for spec in specs if spec.prompt_id not in registered}
        if len(registered) + len(new) > self.max_prompts:
            hint = f"{len(registered)} prompts are registered, {len(new)} new ones were sent"
            raise _exceeded("max_prompts", self.max_prompts, hint)

    def check_stream(self, received: int) -> None:
        """A client stream has not grown too large."""
        if received > self.max_stream_bytes:
            raise _exceeded("max_stream_bytes", self.max_stream_bytes, "send several streams")


def _exceeded(name: str, limit: int, hint: str) -> ServiceError:
    return ServiceError(
        Reason.QUOTA_EXCEEDED,
        f"the server's limit {name}={limit} is reached; {hint}",
        metadata={"limit": name, "value": str(limit)},
        retry_after_s=60.0,
    )
