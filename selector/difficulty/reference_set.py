"""Which measured prompts serve as the reference set of the attention.

| mode | references |
|---|---|
| DEDICATED | all groups of the newest dedicated reference pass (largest step), as in arXiv 2506.05316 |
| IN_BATCH | the newest ``size`` distinct prompts among groups drawn uniformly |
| NONE | the newest ``size`` distinct prompts among all groups |

Newness is order of observation. Reports of one prompt at the same step add up; a report of a later step replaces what
was measured before; one of an earlier step than the prompt's held measurement, or in DEDICATED than the newest pass,
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from selector.difficulty.estimate import OutcomeBatch

ReferenceMode = Literal["IN_BATCH", "DEDICATED", "NONE"]
REFERENCE_MODES: tuple[str, ...] = get_args(ReferenceMode)


@dataclass(frozen=True)
class References:
    """K measured prompts, oldest first: index into the pool, failure rate in [0, 1], and trials behind it."""

    prompt: np.ndarray
    difficulty: np.ndarray
    trials: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt)

    def take(self, kept: np.ndarray) -> References:
        """Those where the (K,) bool mask is True."""
        return References(self.prompt[kept], self.difficulty[kept], self.trials[kept])


@dataclass(frozen=True)
class _Measurement:
    step: int
    successes: float
    trials: float


class ReferenceSet:
    """The current reference set; ``size`` bounds it except in DEDICATED mode, where a pass has its own size."""

    def __init__(self, mode: ReferenceMode, size: int) -> None:
        if mode not in REFERENCE_MODES:
            raise ValueError(f"reference mode must be one of {', '.join(REFERENCE_MODES)}, got {mode!r}")
        if size < 1:
            raise ValueError(f"reference size must be positive, got {size}")
        self._mode = mode
        self._size = size
        self._pass_step = -1
        # Insertion order is newness: a measurement that changes is taken out and put back at the end.
        self._measured: dict[int, _Measurement] = {}

    def observe(self, batch: OutcomeBatch) -> None:
        """Fold the groups of one report that qualify."""
        if not len(batch.prompt):
            return
        if self._mode == "DEDICATED":
            if not batch.reference or batch.step < self._pass_step:
                return
            if batch.step > self._pass_step:
                self._measured.clear()
                self._pass_step = batch.step
            qualifies = np.ones(len(batch.prompt), dtype=bool)
        elif self._mode == "IN_BATCH":
            qualifies = batch.uniform
        else:
            qualifies = np.ones(len(batch.prompt), dtype=bool)
        columns = (batch.prompt[qualifies], batch.successes[qualifies], batch.trials[qualifies])
        for prompt, successes, trials in zip(*(column.tolist() for column in columns), strict=True):
            self._measure(prompt, _Measurement(batch.step, successes, trials))
        if self._mode != "DEDICATED":
            for prompt in list(self._measured)[: max(len(self._measured) - self._size, 0)]:
                del self._measured[prompt]

    def _measure(self, prompt: int, new: _Measurement) -> None:
        held = self._measured.get(prompt)
        if held is not None:
            if new.step < held.step:
                return
            if new.step == held.step:
                new = _Measurement(new.step, held.successes + new.successes, held.trials + new.trials)
            del self._measured[prompt]
        self._measured[prompt] = new

    def forget(self, prompts: np.ndarray) -> None:
        """Take these prompts out."""
        for prompt in prompts.tolist():
            self._measured.pop(prompt, None)

    def current(self) -> References:
        """The references, oldest first."""
        measured = self._measured.values()
        trials = np.array([m.trials for m in measured], dtype=np.float64)
        successes = np.array([m.successes for m in measured], dtype=np.float64)
        return References(np.array(list(self._measured), dtype=np.int64), 1.0 - successes / trials, trials)

    def state_dict(self) -> dict[str, Any]:
        """The references in order of newness, in the terms of ``selector.state_codec``."""
        measured = self._measured.values()
        return {
            "pass_step": self._pass_step,
            "prompt": np.array(list(self._measured), dtype=np.int64),
            "step": np.array([m.step for m in measured], dtype=np.int64),
            "successes": np.array([m.successes for m in measured], dtype=np.float64),
            "trials": np.array([m.trials for m in measured], dtype=np.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._pass_step = state["pass_step"]
        columns = (state[name].tolist() for name in ("prompt", "step", "successes", "trials"))
        self._measured = {
            prompt: _Measurement(step, successes, trials)
            for prompt, step, successes, trials in zip(*columns, strict=True)
        }

    def copy(self) -> ReferenceSet:
        other = ReferenceSet(self._mode, self._size)
        other._pass_step = self._pass_step
        other._measured = dict(self._measured)
        return other
