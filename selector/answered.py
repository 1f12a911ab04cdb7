"""Requests that were applied, by request_id: the same id with the same content is answered as before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

from selector.errors import ServiceError, invalid
from selector.requests import RequestKey
from selector.storage.runs import AnsweredRequest, RunStore, Transaction
from selector.stored_json import loads, record
from selector.v1.reasons import Reason

_Result = TypeVar("_Result")


class AnsweredRequests:
    """The applied requests of one run."""

    def __init__(self, store: RunStore, run: int, pushed: Callable[[str], bool] = lambda request_id: False) -> None:
        """``pushed``: whether an id is that of a push, which the replay store remembers."""
        self._store = store
        self._run = run
        self._pushed = pushed

    def find(self, key: RequestKey, result_type: type[_Result]) -> _Result | None:
        """What the request was answered with, if it was applied before.

        Raises:
            ServiceError: REQUEST_ID_REUSED when the id came with other content, STORAGE_FAILED when what was stored is
                damaged.
        """
        answered = self._same(key)
        if answered is None:
            return None
        try:
            return record(result_type, loads(answered.response))
        except ValueError as error:
            raise ServiceError(
                Reason.STORAGE_FAILED, f"the stored answer of request {key.request_id!r} is damaged: {error}"
            ) from error

    def check(self, key: RequestKey) -> bool:
        """Whether the request was applied before; for requests that are found again by what they are about.

        Raises:
            ServiceError: REQUEST_ID_REUSED when the id came with other content.
        """
        return self._same(key) is not None

    def check_push(self, request_id: str) -> None:
        """A push, which the replay store remembers, does not come with the id of another call.

        Raises:
            ServiceError: REQUEST_ID_REUSED.
        """
        answered = self._store.find_request(self._run, request_id) if request_id else None
        if answered is not None:
            raise _reused(request_id, answered.method)

    def remember(self, tx: Transaction, key: RequestKey, result: Any, step: int | None) -> None:
        """Remember a request together with its effect.

        Args:
            result: a dataclass of plain values, or None.
            step: the step it belongs to; a rewind to that step or an earlier one forgets it.
        """
        if not key.request_id:
            return
        response = b"{}" if result is None else json.dumps(dataclasses.asdict(result)).encode()
        tx.remember_request(self._run, AnsweredRequest(key.request_id, key.method, key.fingerprint, response, step))

    def _same(self, key: RequestKey) -> AnsweredRequest | None:
        if not key.request_id:
            return None
        answered = self._store.find_request(self._run, key.request_id)
        if answered is not None and (answered.method, answered.fingerprint) != (key.method, key.fingerprint):
            raise _reused(key.request_id, answered.method)
        if answered is None and self._pushed(key.request_id):
            raise _reused(key.request_id, "PushRollouts")
        return answered


def _reused(request_id: str, method: str) -> ServiceError:
    return invalid("request_id", f"{request_id!r} was used before for a different {method}", Reason.REQUEST_ID_REUSED)
