"""A client that a training survives the loss of.

======================  ============================================================================================
situation               what ``Connection`` does
======================  ============================================================================================
service away            ``on_failure="open"``: the caller is told to do without, reports and rollouts are kept, the
                        error is logged and counted; ``"closed"``: raised
still away              asked for where ``reach`` is called, for ``probe_s``; nothing else waits
back                    what was kept is sent first, in order, each under its first request id: applied once
call that is wrong      raised, whatever ``on_failure`` says: trying again cannot help. So are a run or a right that is
                        no longer there
quota reached           rollouts that do not fit are dropped, logged and counted
write never taken       dropped after three answers that say so, logged and counted, for what comes after it
======================  ============================================================================================

What is kept is in memory: a training that ends during an outage loses it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from clients import (
    AlreadyExists,
    ClientClosed,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SelectorClient,
    SelectorError,
    Unauthenticated,
    Unavailable,
)
from trainer_adapters.backlog import Backlog, Write
from trainer_adapters.config import CurriculumConfig

LOGGER = logging.getLogger("selector.adapter")
T = TypeVar("T")

# What the caller sent, or may do, is wrong; the service is well.
_CALLER = (
    InvalidArgument,
    FailedPrecondition,
    AlreadyExists,
    NotFound,
    Unauthenticated,
    PermissionDenied,
    ClientClosed,
)
# Of selector.v1.reasons: unlike the quotas of what is kept, this passes by itself.
_OVERLOADED = "OVERLOADED"
# So often a write is answered with an error of the service's own before it is given up.
_ANSWERS = 3


class Connection:
    """One process's connection to the service.

    Args:
        config: which service and run.
        client: None = one made from ``config`` where it is used first: processes that never ask need neither a token
            nor a connection.

    Attributes:
        away: whether the last call found no service.
        failed_calls: calls that found none.
        dropped_writes: reports and pushes that were given up.
    """

    def __init__(self, config: CurriculumConfig, client: SelectorClient | None = None) -> None:
        self.away = False
        self.failed_calls = 0
        self.dropped_writes = 0
        self._config = config
        self._given = client
        self._backlog = Backlog(config.backlog_bytes)
        self._answers = 0

    @cached_property
    def client(self) -> SelectorClient:
        """For calls whose errors end the training."""
        return self._given or self._config.client()

    @property
    def unsent(self) -> int:
        """Writes that are kept."""
        return len(self._backlog)

    def close(self) -> None:
        """Sends what is kept, if the service answers, and ends the connection."""
        if "client" not in self.__dict__:
            # Nothing was ever asked.
            return
        try:
            if self.unsent and self.reach():
                self.attempt("close", lambda: None)
        except SelectorError as error:
            LOGGER.error("run %s: what was kept is refused: %s", self._config.run_id, error)
        finally:
            if self.unsent:
                LOGGER.error("run %s: %d reports or pushes could not be delivered", self._config.run_id, self.unsent)
            self.client.close()

    def reach(self) -> bool:
        """Whether the service can be used, asking one that was away."""
        if self.away:
            try:
                self.client.wait_ready(timeout_s=self._config.probe_s)
            except SelectorError as error:
                LOGGER.error("run %s: the service is still away: %s", self._config.run_id, error)
                return False
            self.away = False
            LOGGER.warning("run %s: the service answers again", self._config.run_id)
        return True

    def attempt(self, name: str, call: Callable[[], T]) -> T | None:
        """The call's answer, after everything that is kept; None when the service cannot be used.

        Raises:
            SelectorError: the call is wrong, or the service is away and that ends the training.
        """
        under_way = name
        try:
            while (first := self._backlog.first) is not None:
                under_way = first.name
                self._sent(first)
                self._backlog.remove_first()
            under_way = name
            return call()
        except _CALLER:
            raise
        except SelectorError as error:
            self.failed_calls += 1
            if self._config.on_failure == "closed":
                raise
            self.away = True
            LOGGER.error(
                "run %s: %s failed: training goes on with prompts drawn uniformly and without replay: %s",
                self._config.run_id,
                under_way,
                error,
            )
            return None

    def write(self, name: str, call: Callable[[str], object], nbytes: int = 0) -> None:
        """Makes the call, or keeps it for later.

        Args:
            call: gets the request id that all attempts share.
            nbytes: of what is kept for it; 0 for reports, which are never dropped for want of room.
        """
        write = Write(name, call, nbytes)
        if not self.away and self.attempt(name, lambda: self._sent(write)):
            return
        dropped = self._backlog.add(write)
        if dropped:
            self.dropped_writes += dropped
            LOGGER.error("run %s: dropped %d pushes: backlog_bytes is full", self._config.run_id, dropped)

    def report_training(self, step: int, **figures: float | int | None) -> None:
        """As ``SelectorClient.report_training``; figures that are not known are None, and those that are not finite are
        left out: they say that the trainer has another trouble, which must not end it here.
        """
        known = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        for name in figures.keys() - known.keys():
            if figures[name] is not None:
                LOGGER.warning("run %s: %s of step %d is %s", self._config.run_id, name, step, figures[name])

        def call(request_id: str) -> None:
            self.client.report_training(step, request_id=request_id, **known)  # type: ignore[arg-type]

        if known:
            self.write("report_training", call)

    def _sent(self, write: Write) -> bool:
        """True when the call was made, or never can be: then it is counted and logged."""
        try:
            write.send()
        except (*_CALLER, Unavailable, DeadlineExceeded):
            raise
        except SelectorError as error:
            if not isinstance(error, ResourceExhausted):
                # The service's own fault; another state of it, or its next release, may take the write.
                self._answers += 1
                if self._answers < _ANSWERS:
                    raise
            elif error.reason == _OVERLOADED or not write.nbytes:
                raise
            self.dropped_writes += 1
            LOGGER.error("run %s: %s given up: %s", self._config.run_id, write.name, error)
        self._answers = 0
        return True
