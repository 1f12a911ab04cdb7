"""Many threads that report to one run at once: after a kill several calls are in doubt, in an order nobody knows.

Every report has a step of its own, so that each can be told apart in what the service recorded: there must be all of
its groups, with its very outcomes, or none of them, and after it was sent again all of them once.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from selector.v1 import selector_service_pb2 as pb
from tests.crash.model import TRAIN, first_difference
from tests.crash.observation import ask
from tests.crash.operations import fresh_id
from tests.crash.service import Lost, Mismatch, NotTaken, Service

_PROMPTS = 30
_GROUPS = 5
# The run begins anew after so many reports, so that looking at it stays quick.
_MOST_REPORTS = 600

_Rows = list[tuple[str, tuple[float, ...]]]


class Crowd:
    """Reporters of one run.

    Attributes:
        in_doubt: reports that were on their way when the server was killed.
    """

    def __init__(self, run_id: str, threads: int, rng: np.random.Generator) -> None:
        self.run_id = run_id
        self.counted: Counter[str] = Counter()
        self.in_doubt: list[pb.ReportOutcomesRequest] = []
        self._acknowledged: list[pb.ReportOutcomesRequest] = []
        self._steps = itertools.count()
        self._threads = threads
        self._changing = threading.Lock()
        self._rng = rng
        self._begun = False

    def work(self, service: Service, stop: threading.Event, answered: Callable[[], None]) -> None:
        """Report from several threads until the server is gone, or ``stop`` is set."""
        if not self._begun and not self._begin(service):
            return
        seeds = self._rng.integers(0, 2**32, self._threads)
        with ThreadPoolExecutor(self._threads) as threads:
            list(threads.map(lambda seed: self._report(service, int(seed), stop, answered), seeds))

    def check(self, service: Service) -> None:
        """Compare what the service recorded with what was acknowledged, after a restart."""
        if not self._begun:
            return
        found = self._recorded(service)
        for request in self.in_doubt:
            there = found.pop(request.step, [])
            if there and (difference := first_difference(_rows(request), there)):
                raise Mismatch(f"a report was applied in part: {difference}")
            answer = ask(service, "ReportOutcomes", request)
            if answer.already_applied != bool(there) or answer.applied_groups != len(request.outcomes):
                raise Mismatch(f"a report that was {'' if there else 'not '}applied was answered with {answer}")
            self.counted["in doubt, applied" if there else "in doubt, not applied"] += 1
        self._acknowledged += self.in_doubt
        self.in_doubt = []
        expected = {request.step: _rows(request) for request in self._acknowledged}
        difference = first_difference(expected, self._recorded(service))
        if difference:
            raise Mismatch(f"{self.run_id}, reports by step: {difference}")
        run = ask(service, "GetRun", pb.GetRunRequest(run_id=self.run_id)).run
        if run.outcome_groups != sum(map(len, expected.values())):
            raise Mismatch(f"{self.run_id}: {run.outcome_groups} groups counted, {len(expected)} reports acknowledged")
        self.counted["runs compared"] += 1
        if len(self._acknowledged) > _MOST_REPORTS:
            ask(service, "DeleteRun", pb.DeleteRunRequest(run_id=self.run_id))
            self._acknowledged, self._begun = [], False

    def _begin(self, service: Service) -> bool:
        prompts = [pb.Prompt(prompt_id=f"p{i}") for i in range(_PROMPTS)]
        try:
            # Both may be sent again as they are: the run is the same, and so are the prompts.
            ask(service, "CreateRun", pb.CreateRunRequest(run_id=self.run_id))
            ask(service, "RegisterPrompts", pb.RegisterPromptsRequest(run_id=self.run_id, prompts=prompts))
        except (Lost, NotTaken):
            return False
        self._begun = True
        return True

    def _report(self, service: Service, seed: int, stop: threading.Event, answered: Callable[[], None]) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            with self._changing:
                step = next(self._steps)
            request = pb.ReportOutcomesRequest(run_id=self.run_id, step=step, purpose=TRAIN, request_id=fresh_id())
            for i in rng.choice(_PROMPTS, _GROUPS, replace=False):
                request.outcomes.add(prompt_id=f"p{i}", outcomes=rng.integers(0, 9, 3) / 8)
            try:
                ask(service, "ReportOutcomes", request)
            except NotTaken:
                return
            except Lost:
                with self._changing:
                    self.in_doubt.append(request)
                return
            answered()
            with self._changing:
                self._acknowledged.append(request)
                self.counted["ReportOutcomes"] += 1

    def _recorded(self, service: Service) -> dict[int, _Rows]:
        request = pb.ExportRunRequest(run_id=self.run_id, kind=pb.EXPORT_KIND_OUTCOMES)
        found: dict[int, _Rows] = {}
        for frame in ask(service, "ExportRun", request):
            for row in frame.outcomes:
                found.setdefault(row.record.step, []).append((row.prompt_id, tuple(row.record.outcomes)))
        return found


def _rows(request: Any) -> _Rows:
    return [(group.prompt_id, tuple(group.outcomes)) for group in request.outcomes]
