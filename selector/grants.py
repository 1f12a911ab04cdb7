"""What a bearer token lets its holder do: everything, or reading or writing some runs.

A token itself is never kept, only its SHA-256: tokens are random and long, so nothing slower is needed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum


class Scope(Enum):
    """READ and WRITE hold for the runs of a grant, WRITE implies READ; ADMIN holds for everything."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True)
class Grant:
    """One token's rights.

    Attributes:
        digest: SHA-256 of the token.
        scope: what it may do.
        runs: ids of runs, or prefixes that end with ``*``; empty for ADMIN.
        name: for people; empty = none.
    """

    digest: bytes = field(repr=False)
    scope: Scope
    runs: tuple[str, ...] = ()
    name: str = ""

    def allows(self, scope: Scope, run_id: str) -> bool:
        """Whether the holder has READ or WRITE on a run, which need not exist."""
        if self.scope is Scope.ADMIN:
            return True
        if scope is not Scope.READ and self.scope is not scope:
            return False
        return any(run_id.startswith(p[:-1]) if p.endswith("*") else run_id == p for p in self.runs)


# A server without tokens lets everybody do everything.
ANYBODY = Grant(b"", Scope.ADMIN)


def digest_of(token: str) -> bytes:
    """The SHA-256 by which a token is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def admin(token: str) -> Grant:
    """A token that may do everything."""
    return Grant(digest_of(token), Scope.ADMIN)
