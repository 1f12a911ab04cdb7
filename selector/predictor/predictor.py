"""What computes the estimates of a run."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol

from selector.config import RunConfig
from selector.difficulty.adapter import Adapter
from selector.difficulty.estimate import Estimate, PoolFeatures
from selector.state import RunState

References = list[tuple[int, float, float]]


class PredictorLost(Exception):
    """What computed is gone, and with it what it was computing; another attempt starts anew."""


class ReplicaGone(PredictorLost):
    """What was asked for is not known any more; asking again sends it anew, and is all it takes."""


class RunPredictor(Protocol):
    """Computes what one run asks for; calls are serialised by the caller, as are changes of the run's state."""

    def submit(self, state: RunState, features: PoolFeatures, step: int) -> Future[Estimate]:
        """``state.estimator.estimate(features, step)`` as of now, however ``state`` goes on.

        The future fails with ``PredictorLost`` when it has to be asked for again.
        """
        ...

    def references(
        self, state: RunState, features: PoolFeatures, step: int, prompt: int, limit: int
    ) -> Future[References]:
        """The same of ``state.estimator.references``."""
        ...

    def forget(self) -> None:
        """The run is gone, or its state was rebuilt."""
        ...


class Predictor(Protocol):
    """Computes the estimates of all runs.

    Attributes:
        starts: how often a process was started for it.
    """

    starts: int

    def of_run(self, config: RunConfig, adapter: Adapter | None, device: str) -> RunPredictor:
        """For one run; ``device`` as in ``make_estimator``."""
        ...

    def close(self) -> None:
        """What has not begun is not computed any more."""
        ...


class LocalPredictor:
    """In threads of this process."""

    def __init__(self) -> None:
        self.starts = 0
        # One run's long computation should not keep all others waiting.
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="selector-estimate")

    def of_run(self, config: RunConfig, adapter: Adapter | None, device: str) -> RunPredictor:
        """Everything that is needed is in the run's own estimator."""
        return _LocalRun(self._executor)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class _LocalRun:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, state: RunState, features: PoolFeatures, step: int) -> Future[Estimate]:
        # The copy may be estimated from while later reports are folded into the original.
        return self._executor.submit(state.estimator.copy().estimate, features, step)

    def references(
        self, state: RunState, features: PoolFeatures, step: int, prompt: int, limit: int
    ) -> Future[References]:
        return self._executor.submit(state.estimator.copy().references, features, step, prompt, limit)

    def forget(self) -> None:
        """Nothing is kept."""
