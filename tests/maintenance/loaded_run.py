"""A run under load that keeps a journal, and its continuation from a backup, compared with what really came after.

The calls of a run and their answers follow from its seed alone. So a copy of the run as of any moment, from which the
same calls are made again from there on, must give the answers that the run itself gave.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients import SelectorClient
from tests.service.trainer import (
    contents,
    group_contents,
    group_of,
    noise,
    outcomes_of,
    prediction_contents,
    prompts,
)

POOL, BATCH = 12, 3
# Enough for a rewind.
CALLS_AFTER = 40
# Prompts registered one a step, and then again with other content.
LATE_IDS = 4

# Rewind epoch of a run, and events in its log: where it stands, as far as the database is concerned.
Place = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A call that was answered.

    Attributes:
        place: where the run stood after it.
        logged: whether the call changed that.
    """

    name: str
    begun: float
    ended: float
    answer: object
    place: Place
    logged: bool


@dataclass
class LoadedRun:
    """One run and its calls: steps with a rewind after every fifth."""

    run_id: str
    config: dict[str, Any]
    journal: list[Entry] = field(default_factory=list)

    def begin(self, client: SelectorClient) -> None:
        """Create the run."""
        client.create_run({"seed": 11, "cool_down_steps": 1, **self.config})
        client.register_prompts(
            prompts(POOL),
            texts=[f"What is {i} plus {i}?" for i in range(POOL)],
            embeddings=noise("pool", self.run_id).normal(size=(POOL, 4)),
        )

    def work(self, client: SelectorClient, stop: threading.Event) -> None:
        """Make calls, one after the other, until some after the event; keeps the journal."""
        epoch, log, left = 0, list[int](), CALLS_AFTER
        for name, step, call in self._calls():
            left -= stop.is_set()
            if left < 0:
                return
            begun = time.monotonic()
            answer = call(client)
            ended = time.monotonic()
            before = (epoch, len(log))
            if name.startswith(("select", "report", "training")):
                log.append(step)
            elif name.startswith("register") and answer:
                # Prompts were replaced, which no rewind undoes.
                log.append(-1)
            elif name.startswith("rewind"):
                epoch, log = epoch + 1, [logged for logged in log if logged < step]
            place = (epoch, len(log))
            self.journal.append(Entry(name, begun, ended, answer, place, place != before))

    def check_continuation(self, client: SelectorClient, state_dir: Path, begun: float, ended: float) -> int:
        """Continue from a copy taken between two moments; how many calls it went on for.

        The copy holds every call that was answered before the first moment and none that was made after the second.
        """
        place = _place(state_dir, self.run_id)
        reached = max((i for i, entry in enumerate(self.journal) if entry.logged and entry.place == place), default=-1)
        assert place == (self.journal[reached].place if reached >= 0 else (0, 0)), place
        for index, entry in enumerate(self.journal):
            if entry.logged and entry.ended < begun:
                assert index <= reached, f"{entry.name} was answered before the backup began, and is not in it"
            if entry.logged and entry.begun > ended:
                assert index > reached, f"{entry.name} was made after the backup, and is in it"
        for index, (entry, (name, _, call)) in enumerate(zip(self.journal, self._calls(), strict=False)):
            if index <= reached:
                continue
            assert name == entry.name
            answer = call(client)
            assert answer == entry.answer, f"{self.run_id}: {name} differs after the restore"
        return len(self.journal) - 1 - reached

    def ending(self, client: SelectorClient) -> list[object]:
        """What the run shows of itself at the end."""
        run = client.get_run()
        return [
            prediction_contents(client.predict_difficulty()),
            client.quality(),
            run.pool,
            (run.last_step, run.selections, run.outcome_groups, run.outcome_rollouts),
            (run.replay_groups, run.replay_bytes),
        ]

    def _calls(self) -> Iterator[tuple[str, int, Callable[[SelectorClient], object]]]:
        for step in itertools.count():
            yield from self._step(step, "")
            if step % 5 == 4:
                yield f"rewind after {step}", step - 1, _rewinding(step - 1, f"{self.run_id}/rewind/{step}")
                for again in (step - 1, step):
                    yield from self._step(again, f"again {step}")

    def _step(self, step: int, salt: str) -> Iterator[tuple[str, int, Callable[[SelectorClient], object]]]:
        key = f"{self.run_id}/{step}/{salt}"
        chosen: list[str] = []

        def select(client: SelectorClient) -> object:
            selection = client.select_batch(step, BATCH)
            chosen[:] = selection.prompt_ids
            return contents(selection)

        def picked(client: SelectorClient) -> list[str]:
            # A continuation may begin after the selection, which is then repeated.
            return chosen or list(client.select_batch(step, BATCH).prompt_ids)

        def report(client: SelectorClient) -> object:
            outcomes = outcomes_of(picked(client), step, salt)
            return _once(client.report_outcomes(step, outcomes, request_id=f"{key}/report"))

        def push(client: SelectorClient) -> object:
            outcomes = outcomes_of(picked(client), step, salt)
            groups = [group_of(prompt_id, step, values, salt) for prompt_id, values in outcomes.items()]
            return _once(client.push_rollouts(step, groups, request_id=f"{key}/push"))

        def sample(client: SelectorClient) -> object:
            sampled = client.sample_rollouts(step, 2)
            return [(sampled.shortfall, sampled.eligible_groups), *map(group_contents, sampled)]

        def training(client: SelectorClient) -> object:
            signals = {"entropy": {p: float(noise("signal", step, p).normal()) for p in picked(client)}}
            client.report_training(step, signals=signals, request_id=f"{key}/training")
            return None

        def register(client: SelectorClient) -> object:
            # Embeddings are appended to outside of the two stores.
            vector = noise("late", self.run_id, step).normal(size=(1, 4))
            ids = [f"late-{step % LATE_IDS}"]
            return client.register_prompts(
                ids, texts=["?"], embeddings=vector, replace=True, request_id=f"{key}/register"
            ).replaced

        for name, call in (
            ("register", register),
            ("select", select),
            ("report", report),
            ("push", push),
            ("sample", sample),
            ("training", training),
        ):
            yield f"{name} {step} {salt}", step, call


def _rewinding(step: int, request_id: str) -> Callable[[SelectorClient], object]:
    return lambda client: client.rewind(step, request_id=request_id)


def _once(result: Any) -> object:
    """An answer but for whether it was given before."""
    return {name: value for name, value in vars(result).items() if name != "already_applied"}


def _place(state_dir: Path, run_id: str) -> Place:
    with closing(sqlite3.connect(state_dir / "state.db")) as database:
        ((epoch, events),) = database.execute(
            "SELECT rewind_epoch, (SELECT count(*) FROM events WHERE run = id) FROM runs WHERE run_id = ?", (run_id,)
        )
    return int(epoch), int(events)
