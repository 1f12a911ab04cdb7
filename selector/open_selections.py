"""Selections that have not been reported yet: who is on lease, and which selection a report belongs to.

A report names the step whose policy made the rollouts; that is the selection's step with a synchronous trainer, an
earlier one when selection runs ahead, and it may arrive after the lease has expired and the prompt has been selected
again. A report therefore belongs to the open selection of its purpose

    1. of the same step; else
    2. of the smallest later step; else
    3. of the largest earlier step.

Further reports of the same prompt and step belong to the selection that the first one belonged to, unless the prompt
was selected for that step again. Reports of prompts that were not selected belong to none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from selector.events import SelectionEvent
from selector.pool import extended

NEVER = -1

# Selections of one prompt that are remembered while unreported; only a trainer that loses reports has more.
_OPEN_PER_PROMPT = 4


class OpenSelection(NamedTuple):
    """One prompt's part of a selection; a tuple, because a batch makes a thousand of them while its caller waits.

    Attributes:
        difficulty: predicted when it was selected.
        population: success rate predicted without the prompt's own outcomes.
    """

    step: int
    purpose: int
    arm: int
    difficulty: float
    population: float


NO_SELECTION = OpenSelection(NEVER, 0, 0, float("nan"), float("nan"))


class OpenSelections:
    """The open selections of a run.

    Attributes:
        leased_at: (N,) int64 step of each prompt's newest open selection, NEVER when there is none.
    """

    def __init__(self) -> None:
        self.leased_at = np.zeros(0, dtype=np.int64)
        # Batches that are not in ``_open`` yet: they are put there when something is looked for, which is not while the
        # caller waits for its batch.
        self._added: list[SelectionEvent] = []
        self._open: dict[int, list[OpenSelection]] = {}
        # (prompt, purpose) -> the step last reported, and the selection it belonged to.
        self._reported: dict[tuple[int, int], tuple[int, OpenSelection]] = {}

    def grow(self, count: int) -> None:
        """Make room for ``count`` more prompts."""
        self.leased_at = extended(self.leased_at, count, NEVER)

    def add(self, event: SelectionEvent) -> None:
        """Open the selections of a batch."""
        self._added.append(event)
        self.leased_at[event.prompt] = np.maximum(self.leased_at[event.prompt], event.step)

    def _settle(self) -> None:
        for event in self._added:
            self._put(event)
        self._added.clear()

    def _put(self, event: SelectionEvent) -> None:
        steps, purposes = repeat(event.step), repeat(event.purpose)
        columns = (column.tolist() for column in (event.arm, event.difficulty, event.population))
        made = map(OpenSelection, steps, purposes, *columns)
        for prompt, selection in zip(event.prompt.tolist(), made, strict=True):
            selections = self._open.setdefault(prompt, [])
            selections.append(selection)
            if len(selections) > _OPEN_PER_PROMPT:
                del selections[0]

    def belonging(self, prompts: Sequence[int], purpose: int, step: int) -> list[OpenSelection]:
        """The selection that a report of each prompt belongs to; nothing changes."""
        self._settle()
        return [self._find(prompt, purpose, step) for prompt in prompts]

    def close(self, prompts: Sequence[int], purpose: int, step: int) -> None:
        """Close the selections that a report belongs to."""
        self._settle()
        done: list[int] = []
        for prompt in prompts:
            found = self._find(prompt, purpose, step)
            self._reported[prompt, purpose] = (step, found)
            selections = self._open.get(prompt, [])
            if len(selections) == 1 and selections[0] is found:
                # Nearly always.
                del self._open[prompt]
                done.append(prompt)
                continue
            if found in selections:
                selections.remove(found)
            if not selections:
                self._open.pop(prompt, None)
            self.leased_at[prompt] = max((selection.step for selection in selections), default=NEVER)
        self.leased_at[done] = NEVER

    def state_dict(self) -> dict[str, Any]:
        """In the terms of ``selector.state_codec``."""
        self._settle()
        still_open = [(prompt, 0, selection) for prompt, found in self._open.items() for selection in found]
        reported = [(prompt, step, selection) for (prompt, _), (step, selection) in self._reported.items()]
        return {
            "leased_at": self.leased_at,
            "open": _table(still_open),
            "reported": _table(reported),
            "reported_purpose": np.array([purpose for _, purpose in self._reported], dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.leased_at = state["leased_at"].copy()
        self._added, self._open = [], {}
        for prompt, _, selection in _entries(state["open"]):
            self._open.setdefault(prompt, []).append(selection)
        self._reported = {
            (prompt, purpose): (step, selection)
            for (prompt, step, selection), purpose in zip(
                _entries(state["reported"]), state["reported_purpose"].tolist(), strict=True
            )
        }

    def _find(self, prompt: int, purpose: int, step: int) -> OpenSelection:
        selections = self._open.get(prompt, ())
        if len(selections) == 1 and selections[0].step == step and selections[0].purpose == purpose:
            return selections[0]
        candidates = [selection for selection in selections if selection.purpose == purpose]
        # Drawn again within a step, as a reference may be, it is reported again for that.
        same_step = next((selection for selection in candidates if selection.step == step), None)
        if same_step is not None:
            return same_step
        reported = self._reported.get((prompt, purpose))
        if reported is not None and reported[0] == step:
            return reported[1]
        if not candidates:
            return NO_SELECTION
        return min(candidates, key=lambda selection: (selection.step < step, abs(selection.step - step)))


def _table(entries: Sequence[tuple[int, int, OpenSelection]]) -> dict[str, np.ndarray]:
    """Entries of (prompt, step of the report, selection) as columns."""
    selections = [selection for _, _, selection in entries]
    return {
        "prompt": np.array([prompt for prompt, _, _ in entries], dtype=np.int64),
        "reported_at": np.array([step for _, step, _ in entries], dtype=np.int64),
        "step": np.array([selection.step for selection in selections], dtype=np.int64),
        "purpose": np.array([selection.purpose for selection in selections], dtype=np.int64),
        "arm": np.array([selection.arm for selection in selections], dtype=np.int64),
        "difficulty": np.array([selection.difficulty for selection in selections], dtype=np.float64),
        "population": np.array([selection.population for selection in selections], dtype=np.float64),
    }


def _entries(table: Mapping[str, np.ndarray]) -> list[tuple[int, int, OpenSelection]]:
    """Inverse of ``_table``."""
    names = ("prompt", "reported_at", "step", "purpose", "arm", "difficulty", "population")
    columns = [table[name].tolist() for name in names]
    return [(prompt, step, OpenSelection(*selection)) for prompt, step, *selection in zip(*columns, strict=True)]
