"""Which RPC needs what: the one table, and the check against it.

========  ==================================================================================
READ      looks at a run
WRITE     changes a run: creates, feeds, samples, rewinds and deletes it
(none)    any valid token will do; the answer holds the runs that the token may read
========  ==================================================================================

DeleteRun asks for no more than WRITE because RewindRun to step 0 and RetirePrompts already take away all that a run
holds. SampleRollouts writes: it counts uses, and what it drew is the answer to that step from then on. What is not in
the table is refused to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selector.errors import ServiceError
from selector.grants import Grant, Scope
from selector.service import checks
from selector.v1.reasons import Reason


@dataclass(frozen=True)
class Need:
    """A scope on the run that a field of the request names."""

    scope: Scope
    field: str = "run_id"


_READ = (Need(Scope.READ),)
_WRITE = (Need(Scope.WRITE),)

# By the RPC's name; no two services share one.
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "CreateRun": _WRITE,
    "GetRun": _READ,
    "ListRuns": (),
    "DeleteRun": _WRITE,
    "ForkRun": (Need(Scope.READ), Need(Scope.WRITE, "new_run_id")),
    "RewindRun": _WRITE,
    "RegisterPrompts": _WRITE,
    "RetirePrompts": _WRITE,
    "ImportPriors": _WRITE,
    "SelectBatch": _WRITE,
    "ReportOutcomes": _WRITE,
    "PredictDifficulty": _READ,
    "ExplainPrompt": _READ,
    "ReportTraining": _WRITE,
    "GetSelectionQuality": _READ,
    "ExportRun": _READ,
    "PushRollouts": _WRITE,
    "SampleRollouts": _WRITE,
}


def check_method(method: str) -> None:
    """The RPC is in the table.

    Raises:
        ServiceError: PERMISSION_DENIED.
    """
    if method not in NEEDS:
        raise ServiceError(Reason.PERMISSION_DENIED, "no token lets anybody call this")


def check(grant: Grant, method: str, request: Any) -> None:
    """A request, or the first message of a stream of requests, is one that the holder may send.

    Nothing is looked up: the refusal is the same whether the run exists or not.

    Raises:
        ServiceError: PERMISSION_DENIED; INVALID_ARGUMENT for what cannot be a run's id.
    """
    check_method(method)
    if grant.scope is Scope.ADMIN:
        return
    for need in NEEDS[method]:
        run_id = checks.run_id(getattr(request, need.field), need.field)
        if not grant.allows(need.scope, run_id):
            raise ServiceError(
                Reason.PERMISSION_DENIED,
                f"{need.field}: the token does not let its holder {need.scope.value} run {run_id!r}",
                metadata={"scope": need.scope.value, "field": need.field},
            )
