"""Who calls, and whether they may: the bearer token of a call against the valid tokens and the table of scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from selector.errors import ServiceError
from selector.grants import Grant, Scope
from selector.service import scopes
from selector.service.tokens import Tokens
from selector.v1.reasons import Reason

_SCHEME = "bearer "


class Access:
    """Decides about calls; asks for tokens only if there are any."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def authenticate(self, metadata: Any) -> Grant:
        """The rights of whoever sent this metadata.

        Raises:
            ServiceError: UNAUTHENTICATED.
        """
        given = "" if not self._tokens.required else _bearer(metadata)
        grant = self._tokens.grant(given)
        if grant is None:
            raise ServiceError(Reason.UNAUTHENTICATED, "the bearer token is not valid")
        return grant

    def check_method(self, method: str) -> None:
        """The RPC is one that tokens are for."""
        if self._tokens.required:
            scopes.check_method(method)

    def check(self, context: grpc.aio.ServicerContext, method: str, request: Any) -> None:
        """The caller may send this request, or a stream that begins with it.

        Raises:
            ServiceError: UNAUTHENTICATED, PERMISSION_DENIED, or INVALID_ARGUMENT for what is no run id.
        """
        if self._tokens.required:
            scopes.check(self.authenticate(context.invocation_metadata()), method, request)

    def readable(self, context: grpc.aio.ServicerContext) -> Callable[[str], bool]:
        """Tells whether the caller may read a run."""
        grant = self.authenticate(context.invocation_metadata())
        return lambda run_id: grant.allows(Scope.READ, run_id)


def _bearer(metadata: Any) -> str:
    given = [value for key, value in metadata or () if key == "authorization"]
    if len(given) != 1 or not isinstance(given[0], str) or given[0][: len(_SCHEME)].lower() != _SCHEME:
        raise ServiceError(Reason.UNAUTHENTICATED, "expected metadata authorization: Bearer TOKEN")
    return given[0][len(_SCHEME) :]
