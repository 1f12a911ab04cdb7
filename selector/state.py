"""What a run has come to: the fold of its events, over the pool it was registered with.

Restarting, rewinding and forking all build this state from the log, in order, so they cannot differ from the run that
was never interrupted. Nothing but ``apply`` changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np

from selector.config import RunConfig
from selector.difficulty.estimate import Estimator, OutcomeBatch
from selector.events import (
    REFERENCE,
    TRAIN,
    Event,
    EventRow,
    PriorsEvent,
    ReplacementEvent,
    ReportEvent,
    SelectionEvent,
    TrainingEvent,
    TrainingFacts,
)
from selector.imported_priors import ImportedPriors
from selector.open_selections import NEVER, OpenSelections
from selector.pool import extended
from selector.quality import QualityWindow
from selector.selection.choose import UNIFORM

# Of the configured share of replay, with each step that is fine.
_RETURNS = 1 / 16

# What an estimator was told: a report, or prompts whose own evidence it must forget.
Change: TypeAlias = OutcomeBatch | np.ndarray

_NUMBERS = (
    "next_seq",
    "last_step",
    "evidence_version",
    "signals_version",
    "pool_size_at_start",
    "evidence_step",
    "last_reference_step",
    "last_selection_step",
    "selections",
    "degraded_selections",
    "outcome_groups",
    "outcome_rollouts",
    "skipped_rollouts",
    "dropped_rollouts",
    "clipped_outcomes",
    "late_reports",
    "training_step",
    "replay_allowed",
)


class RunState:
    """The fold of a run's events."""

    def __init__(self, config: RunConfig, estimator: Estimator) -> None:
        self.config = config
        self.estimator = estimator
        self.quality = QualityWindow()
        self.next_seq = 1
        self.last_step = NEVER
        # Grows with every change that an estimate depends on.
        self.evidence_version = 0
        # What the estimator was told since somebody took it over from here; None = nobody follows it.
        self.changes: list[Change] | None = None

        # Per prompt, in order of registration.
        self.last_selected = np.zeros(0, dtype=np.int64)
        self.open = OpenSelections()
        self.signals: dict[str, np.ndarray] = {}
        self.signals_version = 0
        self.priors = ImportedPriors()

        self.latest_selection: SelectionEvent | None = None
        self.pool_size_at_start: int | None = None
        self.replaced: set[int] = set()
        self.evidence_step = NEVER
        self.last_reference_step = NEVER
        self.last_selection_step = NEVER
        self.selections = 0
        self.degraded_selections = 0
        self.shortfalls: Counter[int] = Counter()
        self.outcome_groups = 0
        self.outcome_rollouts = 0
        self.skipped_rollouts = 0
        self.dropped_rollouts = 0
        self.clipped_outcomes = 0
        self.late_reports = 0
        # The newest of each fact that the trainer reported.
        self.training = TrainingFacts(None, None, None, None)
        self.training_step = NEVER
        # Part of the configured share of replay that the guard leaves.
        self.replay_allowed = 1.0

    def grow(self, size: int) -> None:
        """Make room for prompts registered since."""
        count = size - len(self.last_selected)
        if count <= 0:
            return
        self.last_selected = extended(self.last_selected, count, NEVER)
        self.open.grow(count)
        self.priors.grow(count)
        self.signals = {name: extended(column, count, np.nan) for name, column in self.signals.items()}

    def apply(self, event: Event) -> None:
        """Fold one event; events come in order of seq."""
        self.next_seq = event.seq + 1
        if isinstance(event, SelectionEvent):
            self._apply_selection(event)
        elif isinstance(event, ReportEvent):
            self._apply_report(event)
        elif isinstance(event, TrainingEvent):
            self._apply_training(event)
        elif isinstance(event, PriorsEvent):
            self._apply_priors(event)
        else:
            self._apply_replacement(event)

    def state_dict(self) -> dict[str, Any]:
        """Everything folded so far, in the terms of ``selector.state_codec``."""
        latest = self.latest_selection
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "last_selected": self.last_selected,
            "open": self.open.state_dict(),
            "quality": self.quality.state_dict(),
            "estimator": self.estimator.state_dict(),
            # Names come from callers and may be of any form, so they are no keys here.
            "signals": [[name, column] for name, column in self.signals.items()],
            "priors": self.priors.state_dict(),
            "latest_selection": None if latest is None else asdict(latest.to_row()),
            "replaced": np.array(sorted(self.replaced), dtype=np.int64),
            "shortfalls": [[reason, count] for reason, count in self.shortfalls.items()],
            "training": asdict(self.training),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of a run of the same configuration; ``grow`` adds what was registered since.

        Raises:
            KeyError, TypeError, ValueError: it is not such a state; this one is then in no defined state.
        """
        for name in _NUMBERS:
            setattr(self, name, state[name])
        self.last_selected = state["last_selected"].copy()
        self.open.load_state_dict(state["open"])
        self.quality.load_state_dict(state["quality"])
        self.estimator.load_state_dict(state["estimator"])
        self.signals = {name: column.copy() for name, column in state["signals"]}
        self.priors.load_state_dict(state["priors"])
        latest = state["latest_selection"]
        self.latest_selection = None if latest is None else SelectionEvent.from_row(EventRow(**latest))
        self.replaced = set(state["replaced"].tolist())
        self.shortfalls = Counter(dict(state["shortfalls"]))
        self.training = TrainingFacts(**state["training"])

    def leased(self, step: int) -> np.ndarray:
        """(N,) bool: selected, not yet reported, and younger than lease_steps at ``step``."""
        leased_at = self.open.leased_at
        return (leased_at != NEVER) & (step - leased_at < self.config.lease_steps)

    def cooling(self, step: int) -> np.ndarray:
        """(N,) bool: selected for training within the last cool_down_steps before ``step``."""
        return (self.last_selected != NEVER) & (step - self.last_selected <= self.config.cool_down_steps)

    def is_reported(self, event: SelectionEvent) -> bool:
        """Whether nothing of a selection is out any more."""
        return bool((self.open.leased_at[event.prompt] == NEVER).all())

    def reference_due(self, step: int) -> bool:
        """Whether a dedicated reference pass is due before a training selection at ``step``."""
        if self.config.reference.mode != "DEDICATED":
            return False
        last = self.last_reference_step
        return last == NEVER or step - last >= self.config.reference.every_steps

    def _apply_selection(self, event: SelectionEvent) -> None:
        self.open.add(event)
        self.last_step = max(self.last_step, event.step)
        if event.purpose != TRAIN:
            return
        self.last_selected[event.prompt] = np.maximum(self.last_selected[event.prompt], event.step)
        self.last_selection_step = max(self.last_selection_step, event.step)
        self.latest_selection = event
        self.selections += 1
        self.degraded_selections += event.facts.degraded
        if event.facts.shortfall:
            self.shortfalls[event.facts.shortfall_reason] += event.facts.shortfall
        if self.pool_size_at_start is None:
            self.pool_size_at_start = event.facts.pool_size

    def _apply_report(self, event: ReportEvent) -> None:
        self.open.close(event.prompt.tolist(), event.purpose, event.step)
        self.last_step = max(self.last_step, event.step)
        self.skipped_rollouts += event.facts.skipped_rollouts
        self.dropped_rollouts += event.facts.dropped_rollouts
        self.clipped_outcomes += event.facts.clipped_outcomes
        if event.step < self.last_selection_step:
            self.late_reports += len(event.prompt)
        # An aborted pass measured nothing: it does not count as one.
        counted = event.count > 0
        if not counted.any():
            return
        reference = event.purpose == REFERENCE
        if reference:
            self.last_reference_step = max(self.last_reference_step, event.step)
        prompt = event.prompt[counted]
        bounds = event.starts()[:-1][counted]
        trials = event.count[counted].astype(np.float64)
        successes = np.add.reduceat(event.outcomes, bounds)
        self.outcome_groups += len(prompt)
        self.outcome_rollouts += int(trials.sum())
        self.evidence_step = max(self.evidence_step, event.step)
        self.evidence_version += 1
        self.quality.observe(
            step=event.step,
            reference=reference,
            prompt=prompt,
            arm=event.arm[counted],
            predicted=event.predicted[counted],
            trials=trials,
            successes=successes,
            minimum=np.minimum.reduceat(event.outcomes, bounds),
            maximum=np.maximum.reduceat(event.outcomes, bounds),
        )
        batch = OutcomeBatch(
            step=event.step,
            reference=reference,
            prompt=prompt,
            trials=trials,
            successes=successes,
            uniform=(event.arm[counted] == UNIFORM) | reference,
            population=event.population[counted],
        )
        self.estimator.observe(batch)
        if self.changes is not None:
            self.changes.append(batch)

    def _apply_training(self, event: TrainingEvent) -> None:
        self.last_step = max(self.last_step, event.step)
        if event.step > self.training_step and event.facts.effective_sample_size is not None:
            self._guard_replay(event.facts.effective_sample_size)
        if event.step >= self.training_step:
            # What a later report leaves out, such as one that only brings signals, stays as it was.
            reported = {name: value for name, value in asdict(event.facts).items() if value is not None}
            self.training = replace(self.training, **reported)
            self.training_step = event.step
        for name, (prompt, value) in event.signals.items():
            column = self.signals.get(name)
            column = np.full(len(self.last_selected), np.nan) if column is None else column.copy()
            column[prompt] = value
            self.signals[name] = column
            self.signals_version += 1

    def _guard_replay(self, effective_sample_size: float) -> None:
        """Less replay at once where the rows have become too stale to learn from, and more again step by step."""
        if effective_sample_size < self.config.replay.min_effective_sample_size:
            self.replay_allowed /= 2
        else:
            self.replay_allowed = min(self.replay_allowed + _RETURNS, 1.0)

    def _apply_priors(self, event: PriorsEvent) -> None:
        if event.step is not None:
            self.last_step = max(self.last_step, event.step)
        self.priors.put(event.prompt, event.rate, event.trials)

    def _apply_replacement(self, event: ReplacementEvent) -> None:
        self.replaced.update(int(i) for i in event.prompt)
        self.estimator.forget(event.prompt)
        if self.changes is not None:
            self.changes.append(event.prompt)
        self.priors.forget(event.prompt)
        self.evidence_version += 1
        for name, column in self.signals.items():
            self.signals[name] = column.copy()
            self.signals[name][event.prompt] = np.nan
            self.signals_version += 1
